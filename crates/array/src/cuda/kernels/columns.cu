// Sums down the columns of a matrix in a fixed order: bias gradients, and the second half of weight gradients of norms.
//
// column_parts(x, rows, cols, stride, parts)      grid (ceil(cols / (32 * LEN)), ceil(rows / 128)), block 256
//   parts[b][c] = sum of rows 128 b .. 128 b + 127: warp w takes rows w, w + 8, .., then warps in order
// column_fold(parts, count, cols, out, include)   grid ceil(cols / 32), block 256
//   out[c] (+)= parts[0][c] + parts[1][c] + ..: sixteen runs of equal length in order, then the runs in order
//
// Defines: ELEMENT (of x), OUT (of the result), PACKETS (1: cols and stride are multiples of a packet, aligned).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
#if PACKETS
static const int LEN = Packet<T>::LEN;
#else
static const int LEN = 1;
#endif
struct alignas(LEN * sizeof(T)) Piece { T at[LEN]; };
static const int ROWS = 128, WARPS = 8;

KERNEL void __launch_bounds__(256) column_parts(const T* __restrict__ x, i64 rows, i64 cols, i64 stride, R* parts) {
    __shared__ R room[WARPS][32 * LEN + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 column = ((i64)blockIdx.x * 32 + lane) * LEN, first = (i64)blockIdx.y * ROWS;
    R sum[LEN] = {};
    if (column < cols) {
#pragma unroll
        for (int r = 0; r < ROWS / WARPS; r += 4) {
            Piece held[4];
#pragma unroll
            for (int a = 0; a < 4; a++) {
                const i64 row = first + (r + a) * WARPS + warp;
                if (row < rows) held[a] = *(const Piece*)(x + row * stride + column);
            }
#pragma unroll
            for (int a = 0; a < 4; a++)
                if (first + (r + a) * WARPS + warp < rows) {
#pragma unroll
                    for (int i = 0; i < LEN; i++) sum[i] += widen(held[a].at[i]);
                }
        }
    }
#pragma unroll
    for (int i = 0; i < LEN; i++) room[warp][lane * LEN + i] = sum[i];
    __syncthreads();
    for (int c = threadIdx.x; c < 32 * LEN; c += 256) {
        const i64 at = (i64)blockIdx.x * 32 * LEN + c;
        if (at >= cols) break;
        R total = room[0][c];
#pragma unroll
        for (int w = 1; w < WARPS; w++) total += room[w][c];
        parts[blockIdx.y * cols + at] = total;
    }
}

KERNEL void __launch_bounds__(256) column_fold(const R* parts, i64 count, i64 cols, OUT* out, i32 include) {
    const int RUNS = 16, EACH = RUNS / WARPS;
    __shared__ R room[RUNS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 column = (i64)blockIdx.x * 32 + lane, run = (count + RUNS - 1) / RUNS;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const i64 from = (warp * EACH + e) * run, to = from + run < count ? from + run : count;
        R sum = 0;
        if (column < cols) {
#pragma unroll 8
            for (i64 b = from; b < to; b++) sum += parts[b * cols + column];
        }
        room[warp * EACH + e][lane] = sum;
    }
    __syncthreads();
    if (warp == 0 && column < cols) {
        R total = room[0][lane];
#pragma unroll
        for (int r = 1; r < RUNS; r++) total += room[r][lane];
        if (include) total += widen(out[column]);
        out[column] = narrow<OUT>(total);
    }
}
