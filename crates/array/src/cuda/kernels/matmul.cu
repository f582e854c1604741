// Products of matrices of any strides, for what the library does not take: every sum runs over k in order, so a piece of a
// product has the bits of the whole.
//
// matmul(Matmul)   grid (ceil(n / 64), ceil(m / 64), batches up to any: strides), block 256
//   out[b] = a[b] x b[b] (+ start), sums in f32 (f64 for f64), rounded once. A batch's matrices are found by the strides of a Walk.
//
// Defines: ELEMENT (f64, f32, bf16, f16).
#include "prelude.cuh"
#include "walk.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
static const int TILE = 64, DEEP = 16, EACH = 4;

struct Matmul {
    const T *a, *b;
    const T* start; // or null; added to every row, its stride between columns below
    T* out;         // dense [batch, m, n]
    i64 m, n, k;
    i64 a_row, a_column, b_row, b_column, start_column;
    Walk<2> batch; // operands a and b
};

KERNEL void __launch_bounds__(256) matmul(const __grid_constant__ Matmul p) {
    __shared__ R left[DEEP][TILE + 1], right[DEEP][TILE + 1];
    const int across = threadIdx.x % 16, down = threadIdx.x / 16;
    const i64 column = (i64)blockIdx.x * TILE;
    for (u64 batch = blockIdx.z; batch < p.batch.numel; batch += gridDim.z)
        for (i64 row = (i64)blockIdx.y * TILE; row < p.m; row += (i64)gridDim.y * TILE) {
            i64 at[2];
            locate(p.batch, batch, at);
            R sum[EACH][EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const i64 c = column + across + 16 * j;
                    sum[i][j] = p.start && c < p.n ? (R)widen(p.start[c * p.start_column]) : (R)0;
                }
            for (i64 deep = 0; deep < p.k; deep += DEEP) {
                // Neighbours read neighbours: along k where that is contiguous, else along the rows or columns.
                for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
                    const bool k_first = p.a_column == 1;
                    const int r = k_first ? i / DEEP : i % TILE, d = k_first ? i % DEEP : i / TILE;
                    const bool there = row + r < p.m && deep + d < p.k;
                    left[d][r] = there ? (R)widen(p.a[at[0] + (row + r) * p.a_row + (deep + d) * p.a_column]) : (R)0;
                }
                for (int i = threadIdx.x; i < TILE * DEEP; i += 256) {
                    const bool k_first = p.b_row == 1;
                    const int c = k_first ? i / DEEP : i % TILE, d = k_first ? i % DEEP : i / TILE;
                    const bool there = column + c < p.n && deep + d < p.k;
                    right[d][c] = there ? (R)widen(p.b[at[1] + (deep + d) * p.b_row + (column + c) * p.b_column]) : (R)0;
                }
                __syncthreads();
                const int last = p.k - deep < DEEP ? (int)(p.k - deep) : DEEP;
                for (int d = 0; d < last; d++) {
                    R x[EACH], y[EACH];
#pragma unroll
                    for (int i = 0; i < EACH; i++) x[i] = left[d][down + 16 * i], y[i] = right[d][across + 16 * i];
#pragma unroll
                    for (int i = 0; i < EACH; i++)
#pragma unroll
                        for (int j = 0; j < EACH; j++) sum[i][j] = fma(x[i], y[j], sum[i][j]);
                }
                __syncthreads();
            }
            T* out = p.out + (i64)batch * p.m * p.n;
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const i64 r = row + down + 16 * i, c = column + across + 16 * j;
                    if (r < p.m && c < p.n) out[r * p.n + c] = narrow<T>(sum[i][j]);
                }
        }
}
