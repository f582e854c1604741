// The AdamW update of many tensors in one launch. Compiled with --fmad=false: each operation rounds once, and the fused
// ones are written as such, so the result has the bits of the CPU's.
//
// adamw(tensors, pieces, constants)
//   grid: number of pieces, block 256. A piece is up to PIECE elements of one tensor. `constants` holds eight R per group:
//   gradient scale, what decay leaves, 1 - beta1, beta2, 1 - beta2, eps, rate / (1 - beta1^step), 1 / sqrt(1 - beta2^step).
//
// Defines: PARAM (f32, f64, bf16, f16), GRAD and MOMENT (PARAM or R), MASTER (1: a narrow parameter has an f32 copy that holds its value),
//   MAX (1: amsgrad).
#include "prelude.cuh"

typedef Real<PARAM>::type R;

struct Tensor {
    PARAM* param;
    R* master; // with MASTER
    const GRAD* grad;
    MOMENT *exp_avg, *exp_avg_sq, *max_avg; // the last with MAX
    i64 count;
    i32 group;
    i32 aligned; // 1: all addresses are multiples of 16
};
struct Piece {
    i32 tensor, number;
};
static const int PIECE = 8192, EACH = 4;

static DEVICE void update(R g, R& p, R& m, R& v, R& most, const R* k) {
    g = g * k[0];
    m = fma(k[2], g - m, m);
    v = fma(k[3], v, k[4] * g * g);
    if (MAX) most = most > v || most != most ? most : v;
    p = fma(p, k[1], -(k[6] * m / fma(sqrt(MAX ? most : v), k[7], k[5])));
}

template <class T> struct alignas(EACH * sizeof(T)) Four { T at[EACH]; };

KERNEL void __launch_bounds__(256) adamw(const Tensor* tensors, const Piece* pieces, const R* constants) {
    const Piece piece = pieces[blockIdx.x];
    const Tensor t = tensors[piece.tensor];
    R k[8];
#pragma unroll
    for (int i = 0; i < 8; i++) k[i] = constants[8 * t.group + i];
    const i64 first = (i64)piece.number * PIECE, last = first + PIECE < t.count ? first + PIECE : t.count;
    const i64 whole = t.aligned ? first + (last - first) / EACH * EACH : first;
#pragma unroll 2
    for (i64 i = first + threadIdx.x * EACH; i < whole; i += 256 * EACH) {
        const Four<GRAD> g = *(const Four<GRAD>*)(t.grad + i);
        Four<MOMENT> m = *(const Four<MOMENT>*)(t.exp_avg + i), v = *(const Four<MOMENT>*)(t.exp_avg_sq + i), most = {};
        Four<PARAM> narrow_p;
        Four<R> p;
        if (MAX) most = *(const Four<MOMENT>*)(t.max_avg + i);
        if (MASTER) {
            p = *(const Four<R>*)(t.master + i);
        } else {
            narrow_p = *(const Four<PARAM>*)(t.param + i);
#pragma unroll
            for (int j = 0; j < EACH; j++) p.at[j] = widen(narrow_p.at[j]);
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            R a = widen(m.at[j]), b = widen(v.at[j]), c = MAX ? widen(most.at[j]) : (R)0;
            update(widen(g.at[j]), p.at[j], a, b, c, k);
            m.at[j] = narrow<MOMENT>(a), v.at[j] = narrow<MOMENT>(b), most.at[j] = narrow<MOMENT>(c);
            narrow_p.at[j] = narrow<PARAM>(p.at[j]);
        }
        *(Four<MOMENT>*)(t.exp_avg + i) = m, *(Four<MOMENT>*)(t.exp_avg_sq + i) = v;
        if (MAX) *(Four<MOMENT>*)(t.max_avg + i) = most;
        if (MASTER) *(Four<R>*)(t.master + i) = p;
        *(Four<PARAM>*)(t.param + i) = narrow_p;
    }
    for (i64 i = whole + threadIdx.x; i < last; i += 256) {
        R m = widen(t.exp_avg[i]), v = widen(t.exp_avg_sq[i]), most = MAX ? widen(t.max_avg[i]) : (R)0;
        R p = MASTER ? t.master[i] : widen(t.param[i]);
        update(widen(t.grad[i]), p, m, v, most, k);
        t.exp_avg[i] = narrow<MOMENT>(m), t.exp_avg_sq[i] = narrow<MOMENT>(v);
        if (MAX) t.max_avg[i] = narrow<MOMENT>(most);
        if (MASTER) t.master[i] = p;
        t.param[i] = narrow<PARAM>(p);
    }
}
