// Elementary functions: for f32 the formulas of the CPU's `cpu/math.rs`, operation by operation, so that the bits are
// the same; for f64 the library.
#pragma once
#include "number.cuh"

#define MAGIC 12582912.0f
#define INFINITE float_of(0x7f800000u)

DEVICE bool is_nan(f32 x) { return x != x; }
DEVICE bool is_nan(f64 x) { return x != x; }
DEVICE f32 fma_of(f32 x, f32 y, f32 z) { return fmaf(x, y, z); }
DEVICE f64 fma_of(f64 x, f64 y, f64 z) { return fma(x, y, z); }
DEVICE f32 abs_of(f32 x) { return fabsf(x); }
DEVICE f64 abs_of(f64 x) { return fabs(x); }
DEVICE f32 sqrt_of(f32 x) { return sqrtf(x); }
DEVICE f64 sqrt_of(f64 x) { return sqrt(x); }
DEVICE f32 floor_of(f32 x) { return floorf(x); }
DEVICE f64 floor_of(f64 x) { return floor(x); }
DEVICE f32 ceil_of(f32 x) { return ceilf(x); }
DEVICE f64 ceil_of(f64 x) { return ceil(x); }
DEVICE f32 trunc_of(f32 x) { return truncf(x); }
DEVICE f64 trunc_of(f64 x) { return trunc(x); }
DEVICE f32 round_of(f32 x) { return rintf(x); }
DEVICE f64 round_of(f64 x) { return rint(x); }
DEVICE f32 fmod_of(f32 x, f32 y) { return fmodf(x, y); }
DEVICE f64 fmod_of(f64 x, f64 y) { return fmod(x, y); }
DEVICE f32 signed_as(f32 x, f32 sign) { return copysignf(x, sign); }
DEVICE f64 signed_as(f64 x, f64 sign) { return copysign(x, sign); }

DEVICE f32 exp_reduced(f32 r) {
    f32 p = 1.3814213e-3f;
    p = fmaf(p, r, 8.368899e-3f);
    p = fmaf(p, r, 4.1668408e-2f);
    p = fmaf(p, r, 1.666652e-1f);
    p = fmaf(p, r, 4.9999994e-1f);
    return fmaf(r * r, p, r) + 1.0f;
}
DEVICE f32 exp_rest(f32 x, f32 n) { return fmaf(n, 2.1219444e-4f, fmaf(n, -0.6933594f, x)); }

// e^x for x up to 88, with results below the normal range flushed to 0.
DEVICE f32 exp_down(f32 x) {
    f32 t = fmaf(x, 1.4426950408889634f, MAGIC);
    f32 power = float_of((bits_of(t) << 23) + 0x3f800000u);
    f32 y = exp_reduced(exp_rest(x, t - MAGIC)) * power;
    return x < -87.0f ? 0.0f : y;
}
DEVICE f64 exp_down(f64 x) { return exp(x); }

DEVICE f32 exp_of(f32 x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -105.0f ? -105.0f : x;
    f32 t = fmaf(x, 1.4426950408889634f, MAGIC);
    f32 p = exp_reduced(exp_rest(x, t - MAGIC));
    i32 n = (i32)(bits_of(t) - 0x4b400000u);
    i32 half = n >> 1;
    return p * float_of((u32)(half + 127) << 23) * float_of((u32)(n - half + 127) << 23);
}
DEVICE f64 exp_of(f64 x) { return exp(x); }

DEVICE f32 ln_of(f32 x) {
    bool tiny = x < 1.17549435e-38f;
    f32 scaled = tiny ? x * 8388608.0f : x;
    f32 shift = tiny ? -23.0f : 0.0f;
    i32 bits = (i32)bits_of(scaled);
    i32 whole = (i32)((u32)bits - 0x3f3504f3u) >> 23;
    f32 m = float_of((u32)bits - ((u32)whole << 23));
    f32 e = (f32)whole + shift;
    f32 f = m - 1.0f;
    f32 p = 6.74649e-2f;
    p = fmaf(p, f, -1.1675616e-1f);
    p = fmaf(p, f, 1.1888212e-1f);
    p = fmaf(p, f, -1.2405598e-1f);
    p = fmaf(p, f, 1.4219546e-1f);
    p = fmaf(p, f, -1.6667995e-1f);
    p = fmaf(p, f, 2.0002119e-1f);
    p = fmaf(p, f, -2.500001e-1f);
    p = fmaf(p, f, 3.3333313e-1f);
    f32 z = f * f;
    f32 y = fmaf(f * z, p, e * -2.1219444e-4f);
    y = fmaf(z, -0.5f, y);
    y = fmaf(e, 0.6933594f, f + y);
    y = x == INFINITE || is_nan(x) ? x : y;
    y = x == 0.0f ? -INFINITE : y;
    return x < 0.0f ? float_of(0x7fc00000u) : y;
}
DEVICE f64 ln_of(f64 x) { return log(x); }

DEVICE f32 ln_1p_of(f32 x) {
    f32 u = 1.0f + x;
    f32 y = ln_of(u) * (x / (u - 1.0f));
    return u == 1.0f || x == INFINITE ? x : y;
}
DEVICE f64 ln_1p_of(f64 x) { return log1p(x); }

DEVICE f32 exp_m1_of(f32 x) {
    f32 p = 1.984127e-4f;
    p = fmaf(p, x, 1.3888889e-3f);
    p = fmaf(p, x, 8.333333e-3f);
    p = fmaf(p, x, 4.1666668e-2f);
    p = fmaf(p, x, 1.6666667e-1f);
    p = fmaf(p, x, 0.5f);
    f32 near = fmaf(x * x, p, x);
    return fabsf(x) < 0.4f ? copysignf(near, x) : exp_of(x) - 1.0f;
}
DEVICE f64 exp_m1_of(f64 x) { return expm1(x); }

DEVICE f32 tanh_of(f32 x) {
    f32 z = x * x;
    f32 p = -5.717011e-3f;
    p = fmaf(p, z, 2.0650554e-2f);
    p = fmaf(p, z, -5.3743485e-2f);
    p = fmaf(p, z, 1.3331491e-1f);
    p = fmaf(p, z, -3.3333284e-1f);
    f32 near = fmaf(x * z, p, x);
    f32 far = 1.0f - 2.0f / (exp_of(2.0f * fabsf(x)) + 1.0f);
    return copysignf(fabsf(x) < 0.625f ? near : far, x);
}
DEVICE f64 tanh_of(f64 x) { return tanh(x); }

DEVICE f32 erf_near(f32 x) {
    f32 s = x * x;
    f32 p = 8.345216e-5f;
    p = fmaf(p, s, -8.1374357e-4f);
    p = fmaf(p, s, 5.2006342e-3f);
    p = fmaf(p, s, -2.685927e-2f);
    p = fmaf(p, s, 1.1283694e-1f);
    p = fmaf(p, s, -3.7612635e-1f);
    p = fmaf(p, s, 1.2837917e-1f);
    return fmaf(p, x, x);
}
DEVICE f32 erfc_far(f32 t) {
    t = t > 4.05f ? 4.05f : t;
    f32 q = -2.1095317e-5f;
    q = fmaf(q, t, 4.3446553e-4f);
    q = fmaf(q, t, -4.171076e-3f);
    q = fmaf(q, t, 2.511946e-2f);
    q = fmaf(q, t, -1.0828014e-1f);
    q = fmaf(q, t, -6.3334686e-1f);
    q = fmaf(q, t, -1.1295149f);
    return exp_of(fmaf(q, t, 1.7468825e-4f));
}
DEVICE f32 erf_of(f32 x) {
    f32 far = copysignf(1.0f - erfc_far(fabsf(x)), x);
    return fabsf(x) < 0.9277344f || is_nan(x) ? erf_near(x) : far;
}
DEVICE f64 erf_of(f64 x) { return erf(x); }

DEVICE f32 exp_negative(f32 x) {
    f32 t = fmaf(x, 1.4426950408889634f, MAGIC);
    f32 p = exp_reduced(fmaf(t - MAGIC, -0.6931471805599453f, x));
    return float_of(bits_of(p) + (bits_of(t) << 23));
}
DEVICE f32 normal_tail(f32 t) {
    f32 q = 2.532047e-7f;
    q = fmaf(q, t, -5.180189e-6f);
    q = fmaf(q, t, 4.367231e-5f);
    q = fmaf(q, t, -1.7215611e-4f);
    q = fmaf(q, t, -3.202728e-5f);
    q = fmaf(q, t, 4.845383e-3f);
    q = fmaf(q, t, -3.6366686e-2f);
    q = fmaf(q, t, -3.1830248e-1f);
    q = fmaf(q, t, -7.9788524e-1f);
    return exp_negative(fmaf(q, t, -0.6931471805599453f));
}
#define TAIL_END 5.7f
DEVICE f32 normal_cdf(f32 x) {
    f32 t = fabsf(x) > TAIL_END ? TAIL_END : fabsf(x);
    f32 tail = fabsf(x) > TAIL_END ? 0.0f : normal_tail(t);
    f32 below = x < 0.0f ? tail : 1.0f - tail;
    return is_nan(x) ? x : below;
}
DEVICE f64 normal_cdf(f64 x) { return erfc(x * -0.70710678118654752440) * 0.5; }
DEVICE f32 gelu_of(f32 x) {
    f32 t = fabsf(x) > TAIL_END ? TAIL_END : fabsf(x);
    f32 tail = fabsf(x) > TAIL_END ? 0.0f : normal_tail(t);
    f32 above = x < 0.0f ? x * 0.0f : x;
    return fmaf(t, -tail, above);
}
DEVICE f64 gelu_of(f64 x) { return x * normal_cdf(x); }
DEVICE f32 normal_pdf(f32 x) {
    f32 half = x * x * -0.5f;
    f32 density = exp_negative(half < -87.0f ? -87.0f : half) * 0.3989423f;
    return half < -87.0f ? 0.0f : density;
}
DEVICE f64 normal_pdf(f64 x) { return exp(x * x * -0.5) * 0.3989422804014327; }

template <class R> DEVICE R sigmoid_of(R x) { return (R)1 / ((R)1 + exp_of(-x)); }
template <class R> DEVICE R softplus_of(R x) {
    R low = ln_1p_of(exp_of(-abs_of(x)));
    return x > (R)0 ? x + low : low;
}
template <class R> DEVICE R gelu_tanh_gate(R x) {
    R k = (R)(2.0 * 0.7978845608028654);
    R cubic = fma_of(x * x * x, (R)0.044715, x);
    return sigmoid_of(k * cubic);
}
