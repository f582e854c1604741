// Softmax cross-entropy of rows of scores without a stored softmax; the gradient may take the place of the scores.
//
// cross_entropy(CrossEntropy)
//   grid min(rows, any) (strides), block THREADS. A block takes a row: one reading for the running maximum and sum, and
//   with GRAD 1 a second one (mostly from the cache) that writes the gradient; with GRAD 2 only that one, from `lse`. Labels below zero are ignored: loss 0,
//   gradient 0. Labels from `cols` on are reported and treated like ignored ones.
//
// Defines: ELEMENT (f64, f32, bf16, f16), GRAD (0, 1, 2), THREADS, PACKETS (1: cols and stride are multiples of a packet,
//   aligned).
#include "prelude.cuh"

typedef ELEMENT T;
typedef Real<T>::type R;
struct CrossEntropy {
    const T* x;
    T* dx; // may be x
    const i64* labels;
    const R* scale; // gradient of each row's loss
    R *loss, *lse;
    u64* fault; // a slot of late.cuh
    i64 rows, cols, stride; // elements between rows of x and of dx
    i64 scale_stride; // 0: one for all rows
    f64 smoothing;
};

#if PACKETS
static const int LEN = Packet<T>::LEN;
#else
static const int LEN = 1;
#endif
struct alignas(LEN * sizeof(T)) Piece { T at[LEN]; };
static const int AHEAD = 4;

[[maybe_unused]] static DEVICE f32 power(f32 x) { return exp2_fast(x * 1.4426950408889634f); }
[[maybe_unused]] static DEVICE f64 power(f64 x) { return exp(x); }

// Joins two running maxima with their sums.
static DEVICE void join(R& top, R& sum, R other_top, R other_sum) {
    const R most = top > other_top ? top : other_top, base = most == -(R)INFINITE ? (R)0 : most;
    sum = sum * power(top - base) + other_sum * power(other_top - base);
    top = most;
}

KERNEL void __launch_bounds__(THREADS) cross_entropy(const __grid_constant__ CrossEntropy a) {
    __shared__ R tops[THREADS / 32], sums[THREADS / 32], plains[THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 pieces = a.cols / LEN;
    for (i64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T* x = a.x + row * a.stride;
        const i64 label = a.labels[row];
        if (label >= a.cols && threadIdx.x == 0 && a.fault) report(a.fault, row, label);
        const bool ignored = label < 0 || label >= a.cols;
        const R smoothing = (R)a.smoothing, even = smoothing / (R)a.cols;
        R lse;
        if (GRAD == 2) {
            lse = a.lse[row];
        } else {
            R top = -(R)INFINITE, sum = 0, plain = 0;
            for (i64 first = threadIdx.x; first < pieces; first += AHEAD * THREADS) {
                Piece held[AHEAD];
#pragma unroll
                for (int h = 0; h < AHEAD; h++)
                    if (first + h * THREADS < pieces) held[h] = *(const Piece*)(x + (first + h * THREADS) * LEN);
                R most = top;
#pragma unroll
                for (int h = 0; h < AHEAD; h++)
                    if (first + h * THREADS < pieces) {
#pragma unroll
                        for (int i = 0; i < LEN; i++) {
                            const R v = widen(held[h].at[i]);
                            most = most > v ? most : v;
                            if (a.smoothing != 0) plain += v;
                        }
                    }
                const R base = most == -(R)INFINITE ? (R)0 : most;
                sum *= power(top - base);
                top = most;
#pragma unroll
                for (int h = 0; h < AHEAD; h++)
                    if (first + h * THREADS < pieces) {
#pragma unroll
                        for (int i = 0; i < LEN; i++) sum += power(widen(held[h].at[i]) - base);
                    }
            }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                // A fixed tree: the lower lane's pair comes first in both partners.
                const R other_top = __shfl_xor_sync(~0u, top, step), other_sum = __shfl_xor_sync(~0u, sum, step);
                plain += __shfl_xor_sync(~0u, plain, step);
                join(top, sum, other_top, other_sum);
            }
            __syncthreads();
            if (lane == 0) tops[warp] = top, sums[warp] = sum, plains[warp] = plain;
            __syncthreads();
            top = tops[0], sum = sums[0], plain = plains[0];
            for (int w = 1; w < THREADS / 32; w++) join(top, sum, tops[w], sums[w]), plain += plains[w];
            lse = (top == -(R)INFINITE ? (R)0 : top) + log(sum);
            if (threadIdx.x == 0) {
                a.lse[row] = lse;
                R loss = 0;
                if (!ignored) {
                    loss = lse - widen(x[label]);
                    if (smoothing != 0) loss = ((R)1 - smoothing) * loss + even * ((R)a.cols * lse - plain);
                }
                a.loss[row] = loss;
            }
        }
        if (!GRAD) continue;
        __syncthreads(); // the label's score is read before it is overwritten
        const R scale = ignored ? (R)0 : a.scale[row * a.scale_stride], hard = scale * ((R)1 - smoothing), each = scale * even;
        const R total = hard + each * (R)a.cols;
        T* dx = a.dx + row * a.stride;
        for (i64 first = threadIdx.x; first < pieces; first += AHEAD * THREADS) {
            Piece held[AHEAD];
#pragma unroll
            for (int h = 0; h < AHEAD; h++)
                if (first + h * THREADS < pieces) held[h] = *(const Piece*)(x + (first + h * THREADS) * LEN);
#pragma unroll
            for (int h = 0; h < AHEAD; h++)
                if (first + h * THREADS < pieces) {
                    const i64 c = (first + h * THREADS) * LEN;
#pragma unroll
                    for (int i = 0; i < LEN; i++) {
                        R d = power(widen(held[h].at[i]) - lse) * total - each;
                        if (c + i == label) d -= hard;
                        held[h].at[i] = narrow<T>(ignored ? (R)0 : d);
                    }
                    *(Piece*)(dx + c) = held[h];
                }
        }
    }
}
