// The AdamW update of many tensors in one launch. Compiled with --fmad=false: each operation rounds once, and the fused
// ones are written as such, so the result has the bits of the CPU's.
//
// adamw(tensors, pieces, constants)
//   grid: number of pieces, block 256. A piece is up to PIECE elements of one tensor. `constants` holds eight f32 per group:
//   gradient scale, what decay leaves, 1 - beta1, beta2, 1 - beta2, eps, rate / (1 - beta1^step), 1 / sqrt(1 - beta2^step).
//
// Defines: PARAM (f32, bf16, f16), GRAD (f32, bf16, f16), MASTER (1: a narrow parameter has an f32 copy that holds its value),
//   MAX (1: amsgrad). Moments are f32.
#include "prelude.cuh"

struct Tensor {
    PARAM* param;
    f32* master; // with MASTER
    const GRAD* grad;
    f32 *exp_avg, *exp_avg_sq, *max_avg; // the last with MAX
    i64 count;
    i32 group;
    i32 aligned; // 1: all addresses are multiples of 16
};
struct Piece {
    i32 tensor, number;
};
static const int PIECE = 8192, EACH = 4;

static DEVICE f32 moved(f32 p, f32 m, f32 v, const f32* k) {
    return __fmaf_rn(p, k[1], -__fdiv_rn(__fmul_rn(k[6], m), __fmaf_rn(__fsqrt_rn(v), k[7], k[5])));
}

static DEVICE void update(f32 g, f32& p, f32& m, f32& v, f32& most, const f32* k) {
    g = __fmul_rn(g, k[0]);
    m = __fmaf_rn(k[2], __fsub_rn(g, m), m);
    v = __fmaf_rn(k[3], v, __fmul_rn(__fmul_rn(k[4], g), g));
    if (MAX) most = most > v || most != most ? most : v;
    p = moved(p, m, MAX ? most : v, k);
}

template <class T> struct alignas(EACH * sizeof(T)) Four { T at[EACH]; };

KERNEL void __launch_bounds__(256) adamw(const Tensor* tensors, const Piece* pieces, const f32* constants) {
    const Piece piece = pieces[blockIdx.x];
    const Tensor t = tensors[piece.tensor];
    f32 k[8];
#pragma unroll
    for (int i = 0; i < 8; i++) k[i] = constants[8 * t.group + i];
    const i64 first = (i64)piece.number * PIECE, last = first + PIECE < t.count ? first + PIECE : t.count;
    const i64 whole = t.aligned ? first + (last - first) / EACH * EACH : first;
#pragma unroll 2
    for (i64 i = first + threadIdx.x * EACH; i < whole; i += 256 * EACH) {
        const Four<GRAD> g = *(const Four<GRAD>*)(t.grad + i);
        Four<f32> m = *(const Four<f32>*)(t.exp_avg + i), v = *(const Four<f32>*)(t.exp_avg_sq + i), p, most = {};
        Four<PARAM> narrow_p;
        if (MAX) most = *(const Four<f32>*)(t.max_avg + i);
        if (MASTER) {
            p = *(const Four<f32>*)(t.master + i);
        } else {
            narrow_p = *(const Four<PARAM>*)(t.param + i);
#pragma unroll
            for (int j = 0; j < EACH; j++) p.at[j] = widen(narrow_p.at[j]);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            update(widen(g.at[j]), p.at[j], m.at[j], v.at[j], most.at[j], k);
            narrow_p.at[j] = narrow<PARAM>(p.at[j]);
        }
        *(Four<f32>*)(t.exp_avg + i) = m, *(Four<f32>*)(t.exp_avg_sq + i) = v;
        if (MAX) *(Four<f32>*)(t.max_avg + i) = most;
        if (MASTER) *(Four<f32>*)(t.master + i) = p;
        *(Four<PARAM>*)(t.param + i) = narrow_p;
    }
    for (i64 i = whole + threadIdx.x; i < last; i += 256) {
        f32 m = t.exp_avg[i], v = t.exp_avg_sq[i], most = MAX ? t.max_avg[i] : 0, p = MASTER ? t.master[i] : widen(t.param[i]);
        update(widen(t.grad[i]), p, m, v, most, k);
        t.exp_avg[i] = m, t.exp_avg_sq[i] = v;
        if (MAX) t.max_avg[i] = most;
        if (MASTER) t.master[i] = p;
        t.param[i] = narrow<PARAM>(p);
    }
}
