// Products of few rows with a large matrix of weights, for generation: each weight is read once, straight into the operands of the
// tensor cores.
//
// gemv(x, weights, bias, added, y, rows, n, k, x_stride, y_stride)
//   grid ceil(n / 16), block 32 * WARPS. y[r, j] = sum over i of x[r, i] * weights[j, i] (+ bias[j]) (+ added[r, j], of y's stride) for
//   rows <= 8 * TILES. weights is contiguous [n, k]; k, x_stride and addresses are multiples of 16 bytes. Null: bias, added. Warps take
//   stretches of k in turn and are added in order.
// gemv_gated(x, weights, y, rows, n, k, x_stride, y_stride)
//   grid ceil(n / 16), block 32 * WARPS. y[r, j] = silu(x[r] . weights[j]) * (x[r] . weights[n + j]): gate and up in one array.
//
// Defines: ELEMENT (bf16, f16), TILES (1 .. 8: eight rows each), WARPS (4, 8).
#include "tensor_core.cuh"

typedef ELEMENT T;
static const int AHEAD = 4; // steps of 32 elements of k whose loads are in flight

// Sixteen rows of weights against the rows of x. Which elements of k meet is the same for both operands, so their order is free: a
// thread's sixteen bytes of a row serve two products.
template <int MATRICES>
static DEVICE void products(f32 (&sum)[MATRICES][TILES][4], const T* x, const T* weights, i64 apart, int rows, int n, int k, i64 x_stride, int j0) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % 4 * 8;
    const bool low = j0 + lane / 4 < n, high = j0 + 8 + lane / 4 < n;
    const T* row = weights + (i64)(j0 + lane / 4) * k + part;
    for (int first = warp * 32; first < k; first += 32 * WARPS * AHEAD) {
        uint4 w[AHEAD][MATRICES][2];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int at = first + a * 32 * WARPS;
            const bool there = at + part < k;
#pragma unroll
            for (int m = 0; m < MATRICES; m++) {
                w[a][m][0] = there && low ? *(const uint4*)(row + m * apart + at) : make_uint4(0, 0, 0, 0);
                w[a][m][1] = there && high ? *(const uint4*)(row + m * apart + (i64)8 * k + at) : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int at = first + a * 32 * WARPS;
            if (at >= k) break;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int r = 8 * t + lane / 4;
                const uint4 v = r < rows && at + part < k ? *(const uint4*)(x + r * x_stride + at + part) : make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int m = 0; m < MATRICES; m++) {
                    const u32 left0[4] = {w[a][m][0].x, w[a][m][1].x, w[a][m][0].y, w[a][m][1].y};
                    const u32 left1[4] = {w[a][m][0].z, w[a][m][1].z, w[a][m][0].w, w[a][m][1].w};
                    multiply<T>(sum[m][t], left0, v.x, v.y);
                    multiply<T>(sum[m][t], left1, v.z, v.w);
                }
            }
        }
    }
}

// Adds the warps in order; thread i of the block then holds outputs i, i + 256, .. of the 16 x 8 TILES.
template <int MATRICES> struct Joined {
    static const int COUNT = 16 * 8 * TILES;
    f32 at[MATRICES][(COUNT + 32 * WARPS - 1) / (32 * WARPS)];

    DEVICE Joined(const f32 (&sum)[MATRICES][TILES][4], f32* room) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            __syncthreads();
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) room[(warp * TILES + t) * 128 + i * 32 + lane] = sum[m][t][i];
            __syncthreads();
#pragma unroll
            for (int s = 0; s < sizeof(at[0]) / 4; s++) {
                const int o = s * 32 * WARPS + threadIdx.x;
                f32 total = 0;
                if (o < COUNT) {
                    total = room[o];
#pragma unroll
                    for (int w = 1; w < WARPS; w++) total += room[w * COUNT + o];
                }
                at[m][s] = total;
            }
        }
    }
    // Output `o` belongs to this row of x and, of the sixteen, this row of weights.
    static DEVICE int row(int o) { return o / 128 * 8 + o % 4 * 2 + o / 32 % 2; }
    static DEVICE int column(int o) { return o % 32 / 4 + o / 64 % 2 * 8; }
};

KERNEL void __launch_bounds__(32 * WARPS) gemv(
    const T* x, const T* weights, const T* bias, const T* added, T* y, i32 rows, i32 n, i32 k, i64 x_stride, i64 y_stride) {
    __shared__ f32 room[WARPS * TILES * 128];
    const int j0 = blockIdx.x * 16;
    f32 sum[1][TILES][4] = {};
    products<1>(sum, x, weights, 0, rows, n, k, x_stride, j0);
    const Joined<1> all(sum, room);
#pragma unroll
    for (int s = 0; s < sizeof(all.at[0]) / 4; s++) {
        const int o = s * 32 * WARPS + threadIdx.x, r = Joined<1>::row(o), j = j0 + Joined<1>::column(o);
        if (o >= Joined<1>::COUNT || r >= rows || j >= n) continue;
        f32 v = all.at[0][s];
        if (bias) v += widen(bias[j]);
        if (added) v = widen(narrow<T>(v)) + widen(added[r * y_stride + j]);
        y[r * y_stride + j] = narrow<T>(v);
    }
}

KERNEL void __launch_bounds__(32 * WARPS) gemv_gated(const T* x, const T* weights, T* y, i32 rows, i32 n, i32 k, i64 x_stride, i64 y_stride) {
    __shared__ f32 room[WARPS * TILES * 128];
    const int j0 = blockIdx.x * 16;
    f32 sum[2][TILES][4] = {};
    products<2>(sum, x, weights, (i64)n * k, rows, n, k, x_stride, j0);
    const Joined<2> all(sum, room);
#pragma unroll
    for (int s = 0; s < sizeof(all.at[0]) / 4; s++) {
        const int o = s * 32 * WARPS + threadIdx.x, r = Joined<2>::row(o), j = j0 + Joined<2>::column(o);
        if (o >= Joined<2>::COUNT || r >= rows || j >= n) continue;
        // Gate and up are rounded as the separate products would be.
        const f32 gate = widen(narrow<T>(all.at[0][s])), up = widen(narrow<T>(all.at[1][s]));
        y[r * y_stride + j] = narrow<T>(gate / (1 + expf(-gate)) * up);
    }
}
