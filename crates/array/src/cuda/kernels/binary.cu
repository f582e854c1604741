// Functions of two elements of one type, which the result has too: -DT=f32 and so on. Gradients of activations
// take what the activation saved and the incoming gradient.
//
//   <name>(Walk<3>, T* out, const T* x, const T* y, u64 xv, u64 yv); grid-stride, 256 threads; any grid.
#include "walk.cuh"
#include "math.cuh"

typedef Wide<T>::type R;

#define BINARY(NAME, VALUE)                                                                    \
    struct Op_##NAME {                                                                         \
        DEVICE T operator()(T a, T b) const {                                                  \
            R x = widen(a), y = widen(b);                                                      \
            return To<T>::of((R)(VALUE));                                                      \
        }                                                                                      \
    };                                                                                         \
    KERNEL void NAME(Walk<3> w, T* out, const T* x, const T* y, u64 xv, u64 yv) {              \
        map2(w, out, x, y, xv, yv, Op_##NAME());                                               \
    }

#if FLOAT
// Long functions are called, not copied into every loop.
#define CALLED __device__ __noinline__
CALLED R rem_floor(R x, R y) {
    R r = fmod_of(x, y);
    if (r == (R)0) return signed_as(r, y);
    return (r < (R)0) != (y < (R)0) ? r + y : r;
}
CALLED R div_floor(R x, R y) {
    R plain = x / y;
    R r = fmod_of(x, y);
    if (is_nan(r)) return plain;
    R q = (x - r) / y;
    q = r != (R)0 && (r < (R)0) != (y < (R)0) ? q - (R)1 : q;
    R f = floor_of(q);
    f = q - f > (R)0.5 ? f + (R)1 : f;
    return f == (R)0 ? signed_as(f, plain) : f;
}
CALLED R remainder_of(R x, R y) { return fmod_of(x, y); }
CALLED f64 power_of(f64 x, f64 y) { return pow(x, y); }
CALLED f64 angle_of(f64 x, f64 y) { return atan2(x, y); }
DEVICE R silu_slope(R x, R g) {
    R s = sigmoid_of(x);
    return g * s * fma_of((R)1 - s, x, (R)1);
}
DEVICE R gelu_tanh_slope(R x, R g) {
    R s = gelu_tanh_gate(x);
    R k = (R)(2.0 * 0.7978845608028654);
    R slope = k * fma_of(x * x, (R)(3.0 * 0.044715), (R)1);
    return g * fma_of(x * slope * s, (R)1 - s, s);
}
BINARY(add, x + y)
BINARY(sub, x - y)
BINARY(mul, x* y)
BINARY(div_, x / y)
BINARY(floor_div, div_floor(x, y))
BINARY(rem, rem_floor(x, y))
BINARY(fmod_, remainder_of(x, y))
BINARY(pow_, To<R>::of(power_of((f64)x, (f64)y)))
BINARY(atan2_, To<R>::of(angle_of((f64)x, (f64)y)))
BINARY(maximum, x > y || is_nan(x) ? x : y)
BINARY(minimum, x < y || is_nan(x) ? x : y)
BINARY(fmax_, x > y || is_nan(y) ? x : y)
BINARY(fmin_, x < y || is_nan(y) ? x : y)
BINARY(relu_grad, x > (R)0 ? y : (R)0)
BINARY(sigmoid_grad, y* x*((R)1 - x))
BINARY(tanh_grad, y*((R)1 - x * x))
BINARY(silu_grad, silu_slope(x, y))
BINARY(softplus_grad, y* sigmoid_of(x))
BINARY(gelu_grad, y* fma_of(x, normal_pdf(x), normal_cdf(x)))
BINARY(gelu_tanh_grad, gelu_tanh_slope(x, y))
#elif TRUTH
BINARY(bit_and, x& y)
BINARY(bit_or, x | y)
BINARY(bit_xor, x ^ y)
BINARY(minimum, x& y)
BINARY(maximum, x | y)
#else
// Wrapping arithmetic in 64 bits; the narrowing to T drops what is above. The caller has excluded zero divisors.
DEVICE R quotient(R x, R y) { return y == (R)-1 && SIGNED ? (R)(0 - (u64)x) : x / y; }
__device__ __noinline__ R remainder_(R x, R y) { return y == (R)-1 && SIGNED ? 0 : x % y; }
__device__ __noinline__ R div_floor(R x, R y) {
    R q = quotient(x, y), r = remainder_(x, y);
    return r != 0 && (r < 0) != (y < 0) ? (R)(q - 1) : q;
}
__device__ __noinline__ R rem_floor(R x, R y) {
    R r = remainder_(x, y);
    return r != 0 && (r < 0) != (y < 0) ? (R)(r + y) : r;
}
// Low bits of x^y; a negative power of an integer is 0, except of 1 and -1.
__device__ __noinline__ R power(R x, R y) {
    if (y < 0) return x == 1 ? (R)1 : x == (R)-1 ? (y % 2 == 0 ? (R)1 : x) : (R)0;
    u64 result = 1, factor = (u64)x;
    for (u64 e = (u64)y; e; e >>= 1) {
        if (e & 1) result *= factor;
        factor *= factor;
    }
    return (R)result;
}
DEVICE R shift_left(R x, R y) { return y < 0 || (u64)y >= 8 * sizeof(T) ? (R)0 : (R)((u64)x << (u64)y); }
DEVICE R shift_right(R x, R y) {
    return y < 0 || (u64)y >= 8 * sizeof(T) ? (x < 0 ? (R)-1 : (R)0) : (R)(x >> (u64)y);
}
BINARY(add, (u64)x + (u64)y)
BINARY(sub, (u64)x - (u64)y)
BINARY(mul, (u64)x * (u64)y)
BINARY(floor_div, y == 0 ? 0 : div_floor(x, y))
BINARY(rem, y == 0 ? 0 : rem_floor(x, y))
BINARY(fmod_, y == 0 ? 0 : remainder_(x, y))
BINARY(pow_, power(x, y))
BINARY(maximum, x > y ? x : y)
BINARY(minimum, x < y ? x : y)
BINARY(fmax_, x > y ? x : y)
BINARY(fmin_, x < y ? x : y)
BINARY(bit_and, x& y)
BINARY(bit_or, x | y)
BINARY(bit_xor, x ^ y)
BINARY(shl, shift_left(x, y))
BINARY(shr, shift_right(x, y))
#endif
