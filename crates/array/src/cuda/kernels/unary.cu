// Functions of one element that keep its type: -DT=f32 and so on.
//
//   <name>(Walk<2>, T* out, const T* x, u64 xv); grid-stride over positions, 256 threads; any grid.
// Narrow floats are computed in f32 and rounded once. Integers have few of these; a bool has only `bit_not`.
#include "walk.cuh"
#include "math.cuh"

typedef Wide<T>::type R;

#define UNARY(NAME, VALUE)                                                                     \
    struct Op_##NAME {                                                                         \
        DEVICE T operator()(T in) const {                                                      \
            R x = widen(in);                                                                   \
            return To<T>::of((R)(VALUE));                                                      \
        }                                                                                      \
    };                                                                                         \
    KERNEL void NAME(Walk<2> w, T* out, const T* in, u64 xv) { map1(w, out, in, xv, Op_##NAME()); }

#if FLOAT
// Through the library in f64, as on the CPU.
#define LIBRARY(NAME, CALL)                                                                    \
    __device__ __noinline__ f64 library_##NAME(f64 x) { return CALL(x); }                      \
    UNARY(NAME, To<R>::of(library_##NAME((f64)x)))
UNARY(neg, -x)
UNARY(abs_, abs_of(x))
UNARY(sign, x > (R)0 ? (R)1 : x < (R)0 ? (R)-1 : x)
UNARY(square, x* x)
UNARY(sqrt_, sqrt_of(x))
UNARY(rsqrt_, (R)1 / sqrt_of(x))
UNARY(reciprocal, (R)1 / x)
UNARY(exp_, exp_of(x))
UNARY(exp_m1, exp_m1_of(x))
UNARY(ln, ln_of(x))
UNARY(ln_1p, ln_1p_of(x))
UNARY(tanh_, tanh_of(x))
UNARY(erf_, erf_of(x))
UNARY(sigmoid, sigmoid_of(x))
UNARY(log_sigmoid, -softplus_of(-x))
UNARY(relu, x > (R)0 || is_nan(x) ? x : (R)0)
UNARY(gelu, gelu_of(x))
UNARY(gelu_tanh, x* gelu_tanh_gate(x))
UNARY(silu, x* sigmoid_of(x))
UNARY(softplus, softplus_of(x))
UNARY(floor_, floor_of(x))
UNARY(ceil_, ceil_of(x))
UNARY(trunc_, trunc_of(x))
UNARY(round_, round_of(x))
LIBRARY(exp2_, exp2)
LIBRARY(log2_, log2)
LIBRARY(log10_, log10)
LIBRARY(sin_, sin)
LIBRARY(cos_, cos)
LIBRARY(tan_, tan)
LIBRARY(asin_, asin)
LIBRARY(acos_, acos)
LIBRARY(atan_, atan)
LIBRARY(sinh_, sinh)
LIBRARY(cosh_, cosh)
LIBRARY(asinh_, asinh)
LIBRARY(acosh_, acosh)
LIBRARY(atanh_, atanh)
LIBRARY(erfc_, erfc)
#elif TRUTH
UNARY(bit_not, x == 0)
#else
// Unsigned wrap is what signed integers do too; the narrowing drops what is above.
UNARY(neg, 0 - (u64)x)
UNARY(abs_, x < 0 ? 0 - (u64)x : (u64)x)
UNARY(sign, x > 0 ? 1 : x == 0 ? 0 : -1)
UNARY(square, (u64)x * (u64)x)
UNARY(relu, x > 0 ? x : 0)
UNARY(floor_, x)
UNARY(ceil_, x)
UNARY(trunc_, x)
UNARY(round_, x)
UNARY(bit_not, ~(u64)x)
#endif
