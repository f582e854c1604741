// Sums of squares without rounding, as integers in units of the smallest positive f64: the words of ExactNorm.
//
// exact_norm(x, count, words)   grid any (strides), block 256; words u64[70], zeroed or a sum so far: 68 words of 32 bits in
//   64, then how many elements are NaN and how many infinite. The host carries between words.
//
// A thread keeps a sum of 128 bits whose lowest bit follows the largest value it has met; what lies below that window goes
// to the block's words at once. Integers add in any order, so all of this gives the same sum.
//
// Defines: ELEMENT (f32, bf16, f16).
#include "prelude.cuh"

typedef ELEMENT T;
static const int WORDS = 68, LEN = Packet<T>::LEN;

// Adds `value` (low, high) times two to the power `bit`.
static DEVICE void add_at(u64* words, u64 low, u64 high, u32 bit) {
    const u32 first = bit / 32, shift = bit % 32;
    const u32 parts[4] = {(u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32)};
    u32 below = 0;
#pragma unroll
    for (int i = 0; i < 5; i++) {
        const u32 part = i < 4 ? parts[i] : 0, word = __funnelshift_l(below, part, shift);
        below = part;
        if (word && first + i < WORDS) atomicAdd(words + first + i, (u64)word);
    }
}

struct Window {
    u64 low, high;
    int base; // exponent of the lowest value that fits

    DEVICE void empty(u64* words) {
        if (low | high) add_at(words, low, high, 2 * base + 774);
        low = high = 0;
    }
    DEVICE void add(f32 x, u64* words) {
        const u32 bits = __float_as_uint(x);
        int exponent = bits >> 23 & 255;
        if (exponent == 255) {
            atomicAdd(words + WORDS + ((bits & 0x7fffff) == 0), 1ull);
            return;
        }
        const u32 mantissa = (bits & 0x7fffff) | (u32)(exponent != 0) << 23;
        if (mantissa == 0) return;
        exponent = max(exponent, 1);
        const u64 square = (u64)mantissa * mantissa; // 48 bits
        if (exponent > base + 31) {
            empty(words);
            base = max(exponent - 28, 1);
        }
        if (exponent < base) {
            add_at(words, square, 0, 2 * exponent + 774);
            return;
        }
        // Up to 62 places, so at most 110 bits: room for 2^18 additions between two emptyings.
        const u32 shift = 2 * (exponent - base);
        const u64 a = square << shift, b = shift ? square >> (64 - shift) : 0;
        low += a;
        high += b + (low < a);
    }
};

KERNEL void __launch_bounds__(256) exact_norm(const T* x, i64 count, u64* words) {
    __shared__ u64 room[WORDS + 2];
    for (int i = threadIdx.x; i < WORDS + 2; i += 256) room[i] = 0;
    __syncthreads();
    const i64 threads = (i64)gridDim.x * 256, thread = (i64)blockIdx.x * 256 + threadIdx.x;
    const i64 packets = ((u64)x & 15) == 0 ? count / LEN : 0;
    Window window = {0, 0, 1};
    u32 added = 0;
    for (i64 p = thread; p < packets; p += threads) {
        const Packet<T> held = load16(x + p * LEN);
#pragma unroll
        for (int i = 0; i < LEN; i++) window.add(widen(held.at[i]), room);
        if ((added += LEN) > 200000) window.empty(room), added = 0;
    }
    for (i64 i = packets * LEN + thread; i < count; i += threads) {
        window.add(widen(x[i]), room);
        if (++added > 200000) window.empty(room), added = 0;
    }
    window.empty(room);
    __syncthreads();
    for (int i = threadIdx.x; i < WORDS + 2; i += 256)
        if (room[i]) atomicAdd(words + i, room[i]);
}
