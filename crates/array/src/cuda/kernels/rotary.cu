// Rotation of pairs of elements by angles that depend on the position, in place or from one array to another.
//
// rotary(x, y, tokens, heads, row_stride, y_stride, dim, half, positions, length, cosines, sines, turn)
//   grid any (strides), block 256. Rows of `heads` heads of `dim` elements each, `row_stride` elements apart; the first
//   2 * half elements of a head are rotated, the rest copied (where y is not x). The position of token t is positions[t],
//   or t % length where that is null. Tables are [positions, half], f32 (f64 for f64). turn is 1, or -1 for the gradient.
//   With PACKETS halves, strides and addresses are multiples of 16 bytes.
//
// Defines: ELEMENT, PAIRS (0 halves (x[i], x[i + half]), 1 neighbours (x[2 i], x[2 i + 1])), PACKETS (0, 1).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
#if PACKETS
static const int LEN = Packet<T>::LEN;
#else
static const int LEN = 1;
#endif
struct alignas(LEN * sizeof(T)) Piece { T at[LEN]; };

KERNEL void __launch_bounds__(256) rotary(
    const T* x, T* y, i64 tokens, i32 heads, i64 row_stride, i64 y_stride, i32 dim, i32 half, const i64* positions, i64 length,
    const R* __restrict__ cosines, const R* __restrict__ sines, i32 turn) {
    // Work units: LEN pairs of a head; behind them the elements past 2 * half, to be copied.
    const u32 pairs = half / LEN, rest = x == y ? 0 : dim - 2 * half, units = heads * (pairs + rest);
    const i64 all = tokens * units;
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < all; i += (i64)gridDim.x * 256) {
        const i64 token = i / units;
        const u32 unit = (u32)(i - token * units), head = unit / (pairs + rest), at = unit % (pairs + rest);
        const T* from = x + token * row_stride + (i64)head * dim;
        T* to = y + token * y_stride + (i64)head * dim;
        if (at >= pairs) {
            const u32 e = 2 * half + at - pairs;
            to[e] = from[e];
            continue;
        }
        const i64 position = positions ? positions[token] : token % length;
        const R *cos = cosines + position * half + at * LEN, *sin = sines + position * half + at * LEN;
        const u32 low = PAIRS ? 2 * at * LEN : at * LEN, high = PAIRS ? low + LEN : low + half;
        Piece a = *(const Piece*)(from + low), b = *(const Piece*)(from + high);
#pragma unroll
        for (int j = 0; j < LEN; j++) {
            // Neighbours: the two pieces are one stretch of 2 * LEN elements.
            T& p = PAIRS ? (2 * j < LEN ? a.at[2 * j % LEN] : b.at[2 * j % LEN]) : a.at[j];
            T& q = PAIRS ? (2 * j + 1 < LEN ? a.at[(2 * j + 1) % LEN] : b.at[(2 * j + 1) % LEN]) : b.at[j];
            const R u = widen(p), v = widen(q), c = cos[j], s = turn < 0 ? -sin[j] : sin[j];
            p = narrow<T>(fma(u, c, -(v * s)));
            q = narrow<T>(fma(v, c, u * s));
        }
        *(Piece*)(to + low) = a;
        *(Piece*)(to + high) = b;
    }
}
