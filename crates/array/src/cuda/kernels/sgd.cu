// The SGD update of one tensor. Compiled with --fmad=false: the result has the bits of the CPU's.
//
// sgd(Sgd)   grid any (strides), block 256. Constants: gradient scale, rate, decay, momentum, share of the gradient in the velocity, what the
//   old velocity counts.
//
// Defines: PARAM (f32, f64, bf16, f16), GRAD and MOMENT (PARAM or R).
#include "prelude.cuh"

typedef Real<PARAM>::type R;

struct Sgd {
    PARAM* param;
    R* master; // or null
    const GRAD* grad;
    MOMENT* velocity; // or null
    i64 count;
    i64 nesterov;
    f64 constants[6];
};

KERNEL void __launch_bounds__(256) sgd(const __grid_constant__ Sgd s) {
    const R scale = (R)s.constants[0], rate = (R)s.constants[1], decay = (R)s.constants[2], momentum = (R)s.constants[3];
    const R rise = (R)s.constants[4], memory = (R)s.constants[5];
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < s.count; i += (i64)gridDim.x * 256) {
        const R p = s.master ? s.master[i] : (R)widen(s.param[i]);
        R d = fma(decay, p, (R)widen(s.grad[i]) * scale);
        if (s.velocity) {
            const R v = fma(memory, (R)widen(s.velocity[i]), rise * d);
            s.velocity[i] = narrow<MOMENT>(v);
            d = s.nesterov ? fma(momentum, v, d) : v;
        }
        const R moved = fma(rate, -d, p);
        if (s.master) s.master[i] = moved;
        s.param[i] = narrow<PARAM>(moved);
    }
}
