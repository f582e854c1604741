// Products of few rows with matrices of weights, for generation: each weight is read once, at the speed of memory.
//
// linears(Linears)   grid any (blocks take outputs in turn), block 256, dynamic shared memory ROWS * k * sizeof(ELEMENT)
//   y[i][r, j] = n(x)[r] . weights[i][j] (+ bias[i][j]) (+ added[r, j]) for up to three matrices [n[i], k], rows <= ROWS; all contiguous, k and
//   addresses multiples of 16 bytes. n is the rms norm with the weight `norm`, or nothing where that is null; `added` only with one matrix.
//   GATED: y[0][r, j] = silu(gate) * up, the rows of weights[0] and weights[1]. Norm, gate and up are rounded as the separate operations do.
//   Lanes take packets of k in turn, SPLIT warps of them, and are added in a fixed order: a row has the same bits beside any others.
//
// Defines: ELEMENT (bf16, f16, f32), ROWS (1, 2, 4, 8), SPLIT (1, 4: warps that share an output), GATED (0, 1).
#include "prelude.cuh"

typedef ELEMENT T;
static const int LEN = Packet<T>::LEN, WARPS = 8, OUTPUTS = WARPS / SPLIT, PER_ROW = WARPS / ROWS, MATRICES = GATED ? 2 : 1;
static const int AHEAD = 4; // packets of a lane whose loads are in flight

struct Linears {
    const T *x, *norm, *added;
    const T* weights[3];
    const T* bias[3];
    T* y[3];
    i64 n[3];
    i32 rows, k;
    f64 eps;
};

// The rows of x in shared memory, after their norm.
static DEVICE void take_rows(const Linears& a, T* rows, f32* sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, packets = a.k / LEN;
    const int row = warp / PER_ROW, first = warp % PER_ROW * 32 + lane;
    T* own = rows + (i64)row * a.k;
    f32 squares = 0;
    for (int p = first; p < packets && row < a.rows; p += 32 * PER_ROW) {
        const Packet<T> v = load16(a.x + (i64)row * a.k + p * LEN);
        store16(own + p * LEN, v);
#pragma unroll
        for (int i = 0; i < LEN; i++) squares += widen(v.at[i]) * widen(v.at[i]);
    }
    if (a.norm) {
        squares = warp_sum(squares);
        if (lane == 0) sums[warp] = squares;
        __syncthreads();
        f32 sum = 0;
#pragma unroll
        for (int i = 0; i < PER_ROW; i++) sum += sums[row * PER_ROW + i];
        const f32 scale = 1.f / sqrtf(sum / (f32)a.k + (f32)a.eps);
        for (int p = first; p < packets && row < a.rows; p += 32 * PER_ROW) {
            Packet<T> v = load16(own + p * LEN);
            const Packet<T> w = load16(a.norm + p * LEN);
#pragma unroll
            for (int i = 0; i < LEN; i++) v.at[i] = narrow<T>(widen(v.at[i]) * scale * widen(w.at[i]));
            store16(own + p * LEN, v);
        }
    }
    __syncthreads();
}

// One output: row `j` of matrix `which`, if there is one.
struct Output {
    i64 j;
    int which;
    bool there;
    DEVICE Output(const Linears& a, i64 number, i64 total) : j(number), which(0), there(number < total) {
        for (; !GATED && which < 2 && j >= a.n[which]; which++) j -= a.n[which];
    }
};

// A round of a lane's weights, from packet `p` on; zeros behind the end.
static DEVICE void fetch(Packet<T> (&w)[MATRICES][AHEAD], const Linears& a, const Output& at, int p, int packets) {
#pragma unroll
    for (int m = 0; m < MATRICES; m++)
#pragma unroll
        for (int b = 0; b < AHEAD; b++) {
            const int q = p + b * 32 * SPLIT;
            if (at.there && q < packets) w[m][b] = load16(a.weights[GATED ? m : at.which] + at.j * a.k + q * LEN);
        }
}

KERNEL void __launch_bounds__(256) linears(const __grid_constant__ Linears a) {
    DYNAMIC(room);
    __shared__ f32 joined[WARPS * MATRICES * ROWS];
    T* rows = (T*)room;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, packets = a.k / LEN, start = warp % SPLIT * 32 + lane;
    const i64 total = GATED ? a.n[0] : a.n[0] + a.n[1] + a.n[2], stride = (i64)gridDim.x * OUTPUTS;
    // Weights are under way while the rows are made ready, and those of the next output while one is added up.
    Packet<T> w[MATRICES][AHEAD];
    Output at(a, (i64)blockIdx.x * OUTPUTS + warp / SPLIT, total);
    fetch(w, a, at, start, packets);
    take_rows(a, rows, joined);
    for (i64 first = (i64)blockIdx.x * OUTPUTS; first < total; first += stride) {
        f32 sum[MATRICES][ROWS] = {};
        for (int p = start; p < packets; p += 32 * SPLIT * AHEAD) {
#pragma unroll
            for (int b = 0; b < AHEAD; b++) {
                const int q = p + b * 32 * SPLIT;
                if (q >= packets || !at.there) break;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const Packet<T> v = load16(rows + (i64)r * a.k + q * LEN);
#pragma unroll
                    for (int m = 0; m < MATRICES; m++)
#pragma unroll
                        for (int i = 0; i < LEN; i++) sum[m][r] += widen(w[m][b].at[i]) * widen(v.at[i]);
                }
            }
            if (p + 32 * SPLIT * AHEAD < packets) fetch(w, a, at, p + 32 * SPLIT * AHEAD, packets);
        }
        const Output done = at;
        at = Output(a, first + stride + warp / SPLIT, total);
        fetch(w, a, at, start, packets);
#pragma unroll
        for (int m = 0; m < MATRICES; m++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                sum[m][r] = warp_sum(sum[m][r]);
                if (SPLIT > 1 && lane == 0) joined[(warp * MATRICES + m) * ROWS + r] = sum[m][r];
            }
        if (SPLIT > 1) {
            __syncthreads();
#pragma unroll
            for (int m = 0; m < MATRICES; m++)
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int s = 1; s < SPLIT; s++) sum[m][r] += joined[((warp / SPLIT * SPLIT + s) * MATRICES + m) * ROWS + r];
            __syncthreads();
        }
        if (!done.there || warp % SPLIT != 0) continue;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (lane != r || r >= a.rows) continue;
            const i64 j = done.j, n = a.n[done.which];
            const T* bias = a.bias[done.which];
            f32 v = sum[0][r] + (bias ? widen(bias[j]) : 0.f);
            if (GATED) {
                const f32 gate = widen(narrow<T>(v)), up = widen(narrow<T>(sum[MATRICES - 1][r] + (a.bias[1] ? widen(a.bias[1][j]) : 0.f)));
                v = gate * (1.f / (1.f + exp(-gate))) * up;
            }
            if (a.added) v = widen(narrow<T>(v)) + widen(a.added[r * n + j]);
            a.y[done.which][r * n + j] = narrow<T>(v);
        }
    }
}
