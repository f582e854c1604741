// Softmax and log-softmax of contiguous rows, and their gradients.
//
// softmax(x, y, rows, cols)                 y = softmax or log-softmax of each row; a row of -inf gives NaN, as the CPU does
// softmax_grad(dy, y, dx, rows, cols)       dx from the result y
//   grid any (strides), block 256; LANES threads take a row (32: short rows, 256: long ones), which is read twice, the second time
//   from the cache. y may be x, dx may be dy or y.
//
// Defines: ELEMENT (f64, f32, bf16, f16), LOG (0, 1), LANES (32, 256), PACKETS (1: cols is a multiple of a packet, aligned).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
#if PACKETS
static const int LEN = Packet<T>::LEN;
#else
static const int LEN = 1;
#endif
struct alignas(LEN * sizeof(T)) Piece { T at[LEN]; };
static const int AHEAD = 4, ROWS = 256 / LANES;

[[maybe_unused]] static DEVICE f32 power(f32 x) { return exp2_fast(x * 1.4426950408889634f); }
[[maybe_unused]] static DEVICE f64 power(f64 x) { return exp(x); }

// Calls `use(piece, column)` for this lane's pieces of a row, several loads ahead.
template <class Use> static DEVICE void each_piece(const T* row, i64 cols, int lane, Use use) {
    for (i64 first = (i64)lane * LEN; first < cols; first += AHEAD * LANES * LEN) {
        Piece held[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (first + a * LANES * LEN < cols) held[a] = *(const Piece*)(row + first + a * LANES * LEN);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (first + a * LANES * LEN < cols) use(held[a], first + a * LANES * LEN);
    }
}

static DEVICE R sum_of(R x, R* room) { return LANES == 32 ? warp_sum(x) : block_sum<256>(x, room); }
static DEVICE R max_of(R x, R* room) { return LANES == 32 ? warp_max(x) : block_max<256>(x, room); }

KERNEL void __launch_bounds__(256) softmax(const T* x, T* y, i64 rows, i64 cols) {
    __shared__ R room[8];
    const int lane = threadIdx.x % LANES;
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / LANES; row < rows; row += (i64)gridDim.x * ROWS) {
        const T* from = x + row * cols;
        T* to = y + row * cols;
        R top = -(R)INFINITE, sum = 0;
        each_piece(from, cols, lane, [&](const Piece& p, i64) {
            R most = top;
#pragma unroll
            for (int i = 0; i < LEN; i++) most = widen(p.at[i]) > most ? widen(p.at[i]) : most;
            const R base = most == -(R)INFINITE ? (R)0 : most;
            sum *= power(top - base);
#pragma unroll
            for (int i = 0; i < LEN; i++) sum += power(widen(p.at[i]) - base);
            top = most;
        });
        const R all = max_of(top, room), base = all == -(R)INFINITE ? (R)0 : all;
        sum = sum_of(sum * power((top == -(R)INFINITE ? base : top) - base), room);
        const R scale = LOG ? log(sum) + all : (R)1 / sum;
        each_piece(from, cols, lane, [&](const Piece& p, i64 c) {
            Piece out;
#pragma unroll
            for (int i = 0; i < LEN; i++) out.at[i] = narrow<T>(LOG ? widen(p.at[i]) - scale : power(widen(p.at[i]) - all) * scale);
            *(Piece*)(to + c) = out;
        });
    }
}

KERNEL void __launch_bounds__(256) softmax_grad(const T* dy, const T* y, T* dx, i64 rows, i64 cols) {
    __shared__ R room[8];
    const int lane = threadIdx.x % LANES;
    for (i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / LANES; row < rows; row += (i64)gridDim.x * ROWS) {
        const T *g = dy + row * cols, *from = y + row * cols;
        R sum = 0;
        each_piece(g, cols, lane, [&](const Piece& p, i64 c) {
            Piece q;
            if (!LOG) q = *(const Piece*)(from + c);
#pragma unroll
            for (int i = 0; i < LEN; i++) sum += LOG ? widen(p.at[i]) : widen(p.at[i]) * widen(q.at[i]);
        });
        const R total = sum_of(sum, room);
        each_piece(g, cols, lane, [&](const Piece& p, i64 c) {
            const Piece q = *(const Piece*)(from + c);
            Piece out;
#pragma unroll
            for (int i = 0; i < LEN; i++) {
                const R a = widen(p.at[i]), b = widen(q.at[i]);
                out.at[i] = narrow<T>(LOG ? a - power(b) * total : b * (a - total));
            }
            *(Piece*)(dx + row * cols + c) = out;
        });
    }
}
