//! Gradients of activation functions, fused: input (or output) and incoming gradient in, gradient out.

use super::unary::gelu_tanh_gate;
use super::{Map2, map2_kernels};
use crate::cpu::map::Bound;
use crate::cpu::real::Real;
use crate::ops::Activation;

map2_kernels! { simd, Real, T:
    // d relu: passes where the input is positive.
    relu |x, g| if x > T::ZERO { g } else { T::ZERO };
    // From the output y of sigmoid.
    sigmoid |y, g| g * y * (T::ONE - y);
    // From the output y of tanh.
    tanh |y, g| g * (T::ONE - y * y);
    silu |x, g| silu_grad(x, g);
    softplus |x, g| g * x.sigmoid();
    gelu |x, g| g * x.gelu_slope();
    gelu_tanh |x, g| gelu_tanh_grad(x, g);
}

#[inline(always)]
fn silu_grad<T: Real>(x: T, g: T) -> T {
    let s = x.sigmoid();
    g * s * (T::ONE - s).mul_add(x, T::ONE)
}

#[inline(always)]
fn gelu_tanh_grad<T: Real>(x: T, g: T) -> T {
    let s = gelu_tanh_gate(x);
    let k = T::of(2.0 * 0.797_884_560_802_865_4);
    let slope = k * (x * x).mul_add(T::of(3.0 * 0.044_715), T::ONE);
    g * (x * slope * s).mul_add(T::ONE - s, s)
}

/// What a gradient waits for.
pub(crate) fn bound(op: Activation) -> Bound {
    match op {
        Activation::Relu | Activation::Sigmoid | Activation::Tanh => Bound::Memory,
        Activation::Silu | Activation::Softplus | Activation::Gelu | Activation::GeluTanh => {
            Bound::Arithmetic
        }
    }
}

/// The gradient kernel of an activation.
pub(crate) fn kernel<T: Real>(op: Activation) -> Map2<T, T> {
    match op {
        Activation::Relu => relu,
        Activation::Sigmoid => sigmoid,
        Activation::Tanh => tanh,
        Activation::Silu => silu,
        Activation::Softplus => softplus,
        Activation::Gelu => gelu,
        Activation::GeluTanh => gelu_tanh,
    }
}
