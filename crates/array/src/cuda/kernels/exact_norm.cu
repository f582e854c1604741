// Sums of squares of many tensors without rounding, as integers in units of the smallest positive f64: the words of ExactNorm.
//
// exact_norm(tensors, pieces, words)   grid: number of pieces, block 256. A piece is up to 65536 elements of one tensor; words
//   u64[70], zeroed or a sum so far: 68 words of 32 bits in 64, then how many elements are NaN and how many infinite. The host carries
//   between words.
//
// A warp keeps sums whose unit follows the largest value it has met; what is too small for them goes to the block's words at once. All are
// integers in their unit and integers add in any order, so all of this gives the same sum. Narrow types: two f64 that stay below 2^53 units, for
// 14 (bf16) or 11 exponents each, since f64 adds faster than integers of 64 bits; f32: one integer of 128 bits for 32 exponents.
//
// Defines: ELEMENT (f32, bf16, f16).
#include "prelude.cuh"

typedef ELEMENT T;
struct Tensor {
    const T* x;
    i64 count;
};
struct Piece {
    i32 tensor, number;
};
static const int WORDS = 68, LEN = Packet<T>::LEN, PIECE = 65536;

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

// Exponent (at least 1) and mantissa of a finite f32; the exponent of zero is 0.
static DEVICE u32 split(u32 bits, int& exponent) {
    const int e = bits >> 23 & 255;
    const u32 mantissa = (bits & 0x7fffff) | (u32)(e != 0) << 23;
    exponent = mantissa == 0 ? 0 : e > 0 ? e : 1;
    return mantissa;
}

// The sum of a value over the warp, in 128 bits.
static DEVICE void warp_add(u64& low, u64& high) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const u64 l = __shfl_xor_sync(~0u, low, step), h = __shfl_xor_sync(~0u, high, step);
        low += l;
        high += h + (low < l);
    }
}

#define NARROW (sizeof(T) == 2)
// Zeros at the end of a mantissa that was widened.
template <class E> struct Zeros { static const int COUNT = 0; };
template <> struct Zeros<f16> { static const int COUNT = 13; };
template <> struct Zeros<bf16> { static const int COUNT = 16; };
static const int SHORT = Zeros<T>::COUNT;
// Exponents of one sum: squares have twice the bits that are left, and 256 of them are added by a thread.
static const int WINDOW = NARROW ? (53 - 8 - 2 * (24 - SHORT)) / 2 : 16;
static const int SPAN = 2 * WINDOW;

// Two to a power.
static DEVICE f64 power(int exponent) { return double_of((u64)(1023 + exponent) << 52); }

struct Sums {
    f64 below, above; // narrow: of a window each, the first from `base` on
    u64 low, high;    // wide
    int base;

    // All lanes together.
    DEVICE void empty_one(u64 low, u64 high, int exponent, u64* words) {
        warp_add(low, high);
        if (threadIdx.x % 32 == 0 && (low | high)) add_at(words, low, high, 2 * exponent + 774 + 2 * SHORT);
    }
    DEVICE void empty(u64* words) {
        if (NARROW) {
            const f64 unit = power(300 - 2 * SHORT - 2 * base);
            empty_one((u64)(below * unit), 0, base, words);
            empty_one((u64)(above * unit * power(-2 * WINDOW)), 0, base + WINDOW, words);
        } else {
            empty_one(low, high, base, words);
        }
        low = high = 0;
        below = above = 0;
    }
    // Makes room for values up to this exponent.
    DEVICE void reach(int most, u64* words) {
        if (most < base + SPAN) return;
        empty(words);
        base = most + 4 - SPAN > 1 ? most + 4 - SPAN : 1;
    }
    // Adds a finite value; false where it is too small for these sums.
    DEVICE bool add(u32 bits) {
        if (NARROW) {
            const u32 size = bits & 0x7fffffff, first = (u32)base << 23, second = (u32)(base + WINDOW) << 23;
            if (size >= 0x7f800000) return true;
            // The same value as f64; that has no exponent where this one has none.
            const f64 x = double_of((u64)((size >> 3) + (896u << 20)) << 32);
            const f64 x1 = size >= first && size < second ? x : 0, x2 = size >= second ? x : 0;
            below = fma(x1, x1, below);
            above = fma(x2, x2, above);
            return size >= first || size == 0;
        }
        int exponent;
        u32 mantissa = split(bits, exponent);
        if (exponent == 255) return true;
        const bool fits = exponent >= base || exponent == 0;
        if (!fits) mantissa = 0;
        const u64 square = (u64)mantissa * mantissa;
        const u32 shift = 2 * max(exponent - base, 0);
        const u64 part = square << shift, over = shift ? square >> (64 - shift) : 0;
        low += part;
        high += over + (low < part);
        return fits;
    }
};

KERNEL void __launch_bounds__(256) exact_norm(const Tensor* tensors, const Piece* pieces, u64* words) {
    __shared__ u64 room[WORDS + 2];
    for (int i = threadIdx.x; i < WORDS + 2; i += 256) room[i] = 0;
    __syncthreads();
    const Piece piece = pieces[blockIdx.x];
    const Tensor t = tensors[piece.tensor];
    const i64 first = (i64)piece.number * PIECE, last = first + PIECE < t.count ? first + PIECE : t.count;
    const bool aligned = ((u64)t.x & 15) == 0;
    Sums sums = {0, 0, 0, 0, 1};
    u32 nans = 0, infinities = 0;
    // At most 256 elements a thread: sums of 53 bits (narrow) or 118.
    for (i64 base = first; base < last; base += 256 * LEN) {
        const i64 at = base + threadIdx.x * LEN;
        u32 bits[LEN];
        if (aligned && at + LEN <= last) {
            const Packet<T> held = load16(t.x + at);
#pragma unroll
            for (int i = 0; i < LEN; i++) bits[i] = __float_as_uint(widen(held.at[i]));
        } else {
#pragma unroll
            for (int i = 0; i < LEN; i++) bits[i] = at + i < last ? __float_as_uint(widen(t.x[at + i])) : 0;
        }
        u32 most = 0, small = 0;
        bool special = false;
#pragma unroll
        for (int i = 0; i < LEN; i++) {
            const u32 e = bits[i] >> 23 & 255;
            special |= e == 255;
            most = max(most, e == 255 ? 0 : e);
        }
        if (special) {
#pragma unroll
            for (int i = 0; i < LEN; i++) {
                const bool odd = (bits[i] >> 23 & 255) == 255, nan = odd && (bits[i] & 0x7fffff) != 0;
                nans += nan, infinities += odd && !nan;
            }
        }
        sums.reach(__reduce_max_sync(~0u, most), room);
#pragma unroll
        for (int i = 0; i < LEN; i++) small |= (u32)!sums.add(bits[i]) << i;
        for (; small; small &= small - 1) {
            int exponent;
            const u32 mantissa = split(__float_as_uint(widen(t.x[at + __ffs(small) - 1])), exponent);
            add_at(room, (u64)mantissa * mantissa, 0, 2 * exponent + 774);
        }
    }
    sums.empty(room);
    if (nans) atomicAdd(&room[WORDS], (u64)nans);
    if (infinities) atomicAdd(&room[WORDS + 1], (u64)infinities);
    __syncthreads();
    for (int i = threadIdx.x; i < WORDS + 2; i += 256)
        if (room[i]) atomicAdd(words + i, room[i]);
}
