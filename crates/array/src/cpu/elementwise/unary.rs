//! Functions of one float.

use super::{Map1, map1_kernels};
use crate::cpu::map::Bound;
use crate::cpu::real::Real;
use crate::ops::Unary;

map1_kernels! { simd, Real:
    neg |x| -x;
    abs |x| x.abs();
    sign |x| if x > T::ZERO { T::ONE } else if x < T::ZERO { -T::ONE } else { x };
    square |x| x * x;
    sqrt |x| x.sqrt();
    rsqrt |x| T::ONE / x.sqrt();
    reciprocal |x| T::ONE / x;
    exp |x| x.exp();
    exp_m1 |x| x.exp_m1();
    ln |x| x.ln();
    ln_1p |x| x.ln_1p();
    tanh |x| x.tanh();
    erf |x| x.erf();
    sigmoid |x| x.sigmoid();
    log_sigmoid |x| -softplus_of(-x);
    relu |x| if x > T::ZERO || x.is_nan() { x } else { T::ZERO };
    gelu |x| x.gelu();
    gelu_tanh |x| gelu_tanh_of(x);
    silu |x| x * x.sigmoid();
    softplus |x| softplus_of(x);
    floor |x| x.floor();
    ceil |x| x.ceil();
    trunc |x| x.trunc();
    round |x| x.round_ties_even();
}

// Through the library, a call per element: wider instructions would not help.
map1_kernels! { scalar, Real:
    exp2 |x| T::of(x.f64().exp2());
    log2 |x| T::of(x.f64().log2());
    log10 |x| T::of(x.f64().log10());
    sin |x| T::of(x.f64().sin());
    cos |x| T::of(x.f64().cos());
    tan |x| T::of(x.f64().tan());
    asin |x| T::of(x.f64().asin());
    acos |x| T::of(x.f64().acos());
    atan |x| T::of(x.f64().atan());
    sinh |x| T::of(x.f64().sinh());
    cosh |x| T::of(x.f64().cosh());
    asinh |x| T::of(x.f64().asinh());
    acosh |x| T::of(x.f64().acosh());
    atanh |x| T::of(x.f64().atanh());
    erfc |x| T::of(libm::erfc(x.f64()));
}

/// ln(1 + e^x) without overflow.
#[inline(always)]
pub(super) fn softplus_of<T: Real>(x: T) -> T {
    let low = (-x.abs()).exp().ln_1p();
    if x > T::ZERO { x + low } else { low }
}

/// The tanh approximation of gelu: x * sigmoid(2u) with u the usual cubic, as tanh(u) = 2 sigmoid(2u) - 1.
#[inline(always)]
pub(super) fn gelu_tanh_of<T: Real>(x: T) -> T {
    x * gelu_tanh_gate(x)
}

/// sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
#[inline(always)]
pub(super) fn gelu_tanh_gate<T: Real>(x: T) -> T {
    let k = T::of(2.0 * 0.797_884_560_802_865_4);
    let cubic = (x * x * x).mul_add(T::of(0.044_715), x);
    (k * cubic).sigmoid()
}

/// What an operation on floats waits for.
pub(crate) fn bound(op: Unary) -> Bound {
    match op {
        Unary::Neg
        | Unary::Abs
        | Unary::Sign
        | Unary::Square
        | Unary::Sqrt
        | Unary::Rsqrt
        | Unary::Reciprocal
        | Unary::Relu
        | Unary::Floor
        | Unary::Ceil
        | Unary::Trunc
        | Unary::Round => Bound::Memory,
        _ => Bound::Arithmetic,
    }
}

/// The kernel of an operation on f32 or f64.
pub(crate) fn kernel<T: Real>(op: Unary) -> Map1<T, T> {
    match op {
        Unary::Neg => neg,
        Unary::Abs => abs,
        Unary::Sign => sign,
        Unary::Square => square,
        Unary::Sqrt => sqrt,
        Unary::Rsqrt => rsqrt,
        Unary::Reciprocal => reciprocal,
        Unary::Exp => exp,
        Unary::Exp2 => exp2,
        Unary::ExpM1 => exp_m1,
        Unary::Ln => ln,
        Unary::Ln1p => ln_1p,
        Unary::Log2 => log2,
        Unary::Log10 => log10,
        Unary::Sin => sin,
        Unary::Cos => cos,
        Unary::Tan => tan,
        Unary::Asin => asin,
        Unary::Acos => acos,
        Unary::Atan => atan,
        Unary::Sinh => sinh,
        Unary::Cosh => cosh,
        Unary::Tanh => tanh,
        Unary::Asinh => asinh,
        Unary::Acosh => acosh,
        Unary::Atanh => atanh,
        Unary::Erf => erf,
        Unary::Erfc => erfc,
        Unary::Sigmoid => sigmoid,
        Unary::LogSigmoid => log_sigmoid,
        Unary::Relu => relu,
        Unary::Gelu => gelu,
        Unary::GeluTanh => gelu_tanh,
        Unary::Silu => silu,
        Unary::Softplus => softplus,
        Unary::Floor => floor,
        Unary::Ceil => ceil,
        Unary::Trunc => trunc,
        Unary::Round => round,
    }
}
