// Element types of arrays, and conversion between all of them with the bits of the CPU's `convert.rs`.
//
// Compiled with --fmad=false: an operation rounds once, as on the CPU. Also compiles as C++ for the emulated driver.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct truth { u8 bits; };
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct f8e4m3 { u8 bits; };
struct f8e5m2 { u8 bits; };

#ifndef DEVICE
#define DEVICE __device__ __forceinline__
#endif
#ifndef KERNEL
#define KERNEL extern "C" __global__
#endif

DEVICE u32 bits_of(f32 x) { return __float_as_uint(x); }
DEVICE f32 float_of(u32 x) { return __uint_as_float(x); }
DEVICE u64 bits_of(f64 x) { return (u64)__double_as_longlong(x); }
DEVICE f64 double_of(u64 x) { return __longlong_as_double((i64)x); }

// The type an element is computed and converted in: f32, f64, i64 or u64.
template <class E> struct Wide { typedef i64 type; };
template <> struct Wide<u64> { typedef u64 type; };
template <> struct Wide<f64> { typedef f64 type; };
template <> struct Wide<f32> { typedef f32 type; };
template <> struct Wide<f16> { typedef f32 type; };
template <> struct Wide<bf16> { typedef f32 type; };
template <> struct Wide<f8e4m3> { typedef f32 type; };
template <> struct Wide<f8e5m2> { typedef f32 type; };

template <class E> struct IsFloat { static const bool value = false; };
template <> struct IsFloat<f64> { static const bool value = true; };
template <> struct IsFloat<f32> { static const bool value = true; };
template <> struct IsFloat<f16> { static const bool value = true; };
template <> struct IsFloat<bf16> { static const bool value = true; };
template <> struct IsFloat<f8e4m3> { static const bool value = true; };
template <> struct IsFloat<f8e5m2> { static const bool value = true; };

// The f32 bits of a finite magnitude code of a float with BIAS and MAN bits of mantissa.
template <u32 BIAS, u32 MAN> DEVICE u32 decode(u32 code) {
    u32 normal = (code << (23 - MAN)) + ((127 - BIAS) << 23);
    f32 step = float_of((128 - BIAS - MAN) << 23);
    u32 subnormal = bits_of((f32)(i32)code * step);
    return code < (1u << MAN) ? subnormal : normal;
}

// The magnitude code nearest to the f32 with bits `abs`, ties to even; the caller clamps.
template <u32 BIAS, u32 MAN> DEVICE u32 encode(u32 abs) {
    const u32 shift = 23 - MAN;
    const u32 magic = (128 - BIAS + shift) << 23;
    u32 subnormal = bits_of(float_of(abs) + float_of(magic)) - magic;
    u32 round = (1u << (shift - 1)) - 1 + ((abs >> shift) & 1);
    u32 normal = (abs - ((127 - BIAS) << 23) + round) >> shift;
    return abs < ((128 - BIAS) << 23) ? subnormal : normal;
}

DEVICE i64 widen(truth x) { return x.bits != 0; }
DEVICE i64 widen(u8 x) { return x; }
DEVICE i64 widen(i8 x) { return x; }
DEVICE i64 widen(u16 x) { return x; }
DEVICE i64 widen(i16 x) { return x; }
DEVICE i64 widen(u32 x) { return x; }
DEVICE i64 widen(i32 x) { return x; }
DEVICE i64 widen(i64 x) { return x; }
DEVICE u64 widen(u64 x) { return x; }
DEVICE f32 widen(f32 x) { return x; }
DEVICE f64 widen(f64 x) { return x; }
DEVICE f32 widen(bf16 x) { return float_of((u32)x.bits << 16); }
#if defined(FAST_HALF) && !defined(EMULATED)
// One instruction, which gives every NaN the same bits.
DEVICE f32 widen(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
#else
DEVICE f32 widen(f16 x) {
    u32 code = x.bits & 0x7fff;
    u32 special = 0x7f800000u | (code << 13) | (code > 0x7c00 ? 0x400000u : 0u);
    u32 abs = code >= 0x7c00 ? special : decode<15, 10>(code);
    return float_of(abs | ((u32)(x.bits & 0x8000) << 16));
}
#endif
DEVICE f32 widen(f8e4m3 x) {
    u32 code = x.bits & 0x7f;
    u32 abs = code == 0x7f ? 0x7ff00000u : decode<7, 3>(code);
    return float_of(abs | ((u32)(x.bits & 0x80) << 24));
}
DEVICE f32 widen(f8e5m2 x) {
    u32 code = x.bits & 0x7f;
    u32 special = 0x7f800000u | (code << 21) | (code > 0x7c ? 0x400000u : 0u);
    u32 abs = code >= 0x7c ? special : decode<15, 2>(code);
    return float_of(abs | ((u32)(x.bits & 0x80) << 24));
}

// NaN keeps its sign and the upper part of its payload, as on the CPU.
DEVICE f32 single(f64 x) {
    u64 bits = bits_of(x);
    if ((bits & 0x7fffffffffffffffull) > 0x7ff0000000000000ull)
        return float_of((u32)(bits >> 32 & 0x80000000u) | 0x7fc00000u | (u32)(bits >> 29 & 0x3fffffu));
    return (f32)x;
}
DEVICE f64 twice(f32 x) {
    u32 bits = bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return double_of((u64)(bits & 0x80000000u) << 32 | 0x7ff8000000000000ull | (u64)(bits & 0x3fffffu) << 29);
    return (f64)x;
}

// Truncation that saturates; NaN becomes 0. HIGH is the first value too large, LOW the least.
template <class D, class F> DEVICE D whole(F x, F high, F low, D most, D least) {
    if (x != x) return 0;
    return x >= high ? most : x <= low ? least : (D)x;
}

template <class D> struct To;
#define TO_INTEGER(D, HIGH, LOW, MOST, LEAST)                                                     \
    template <> struct To<D> {                                                                    \
        static DEVICE D of(i64 x) { return (D)x; }                                                \
        static DEVICE D of(u64 x) { return (D)x; }                                                \
        static DEVICE D of(f32 x) { return whole<D, f32>(x, HIGH, LOW, (D)(MOST), (D)(LEAST)); }  \
        static DEVICE D of(f64 x) { return whole<D, f64>(x, HIGH, LOW, (D)(MOST), (D)(LEAST)); }  \
    };
TO_INTEGER(u8, 256, 0, 255, 0)
TO_INTEGER(i8, 128, -128, 127, -128)
TO_INTEGER(u16, 65536, 0, 65535, 0)
TO_INTEGER(i16, 32768, -32768, 32767, -32768)
TO_INTEGER(u32, 4294967296.0f, 0, 4294967295u, 0)
TO_INTEGER(i32, 2147483648.0f, -2147483648.0f, 2147483647, (-2147483647 - 1))
TO_INTEGER(u64, 18446744073709551616.0f, 0, 18446744073709551615ull, 0)
TO_INTEGER(i64, 9223372036854775808.0f, -9223372036854775808.0f, 9223372036854775807ll, (-9223372036854775807ll - 1))

template <> struct To<truth> {
    template <class W> static DEVICE truth of(W x) {
        truth t;
        t.bits = x != 0;
        return t;
    }
};
template <> struct To<f32> {
    static DEVICE f32 of(f32 x) { return x; }
    static DEVICE f32 of(f64 x) { return single(x); }
    static DEVICE f32 of(i64 x) { return (f32)x; }
    static DEVICE f32 of(u64 x) { return (f32)x; }
};
template <> struct To<f64> {
    static DEVICE f64 of(f32 x) { return twice(x); }
    static DEVICE f64 of(f64 x) { return x; }
    static DEVICE f64 of(i64 x) { return (f64)x; }
    static DEVICE f64 of(u64 x) { return (f64)x; }
};
// Everything else goes to narrow floats by way of f32.
template <> struct To<bf16> {
    template <class W> static DEVICE bf16 of(W wide) {
        u32 bits = bits_of(To<f32>::of(wide));
        u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        bf16 y;
        y.bits = (u16)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40 : rounded);
        return y;
    }
};
template <> struct To<f16> {
    template <class W> static DEVICE f16 of(W wide) {
        u32 bits = bits_of(To<f32>::of(wide));
        u32 abs = bits & 0x7fffffffu;
        u32 clamped = abs > 0x47800000u ? 0x47800000u : abs;
        u32 code = abs > 0x7f800000u ? 0x7e00 | (abs >> 13 & 0x3ff) : encode<15, 10>(clamped);
        f16 y;
        y.bits = (u16)(code | (bits >> 16 & 0x8000));
        return y;
    }
};
template <> struct To<f8e4m3> {
    template <class W> static DEVICE f8e4m3 of(W wide) {
        u32 bits = bits_of(To<f32>::of(wide));
        u32 abs = bits & 0x7fffffffu;
        u32 clamped = abs > 0x43e00000u ? 0x43e00000u : abs;
        u32 code = abs > 0x7f800000u ? 0x7f : encode<7, 3>(clamped);
        f8e4m3 y;
        y.bits = (u8)(code | (bits >> 24 & 0x80));
        return y;
    }
};
template <> struct To<f8e5m2> {
    template <class W> static DEVICE f8e5m2 of(W wide) {
        u32 bits = bits_of(To<f32>::of(wide));
        u32 abs = bits & 0x7fffffffu;
        u32 clamped = abs > 0x47800000u ? 0x47800000u : abs;
        u32 code = abs > 0x7f800000u ? 0x7f : encode<15, 2>(clamped);
        f8e5m2 y;
        y.bits = (u8)(code | (bits >> 24 & 0x80));
        return y;
    }
};

// An element from the low bytes of a word.
template <class E> DEVICE E from_word(u64 word) {
    union { u64 word; E value; } u;
    u.word = word;
    return u.value;
}
