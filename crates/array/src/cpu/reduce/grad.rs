//! Gradients of reductions: each element's share, from the element and two values of its result.

use crate::cpu::real::Real;
use crate::cpu::simd::simd_v3;

/// The gradient of one element `x`; `a` and `b` belong to the result it was folded into.
pub(crate) trait Share: Copy + Send + Sync {
    fn share<R: Real>(self, x: R, a: R, b: R) -> R;
}

/// A [`Share`] applied to slices of equal length.
pub(crate) trait Shares<R>: Sync {
    fn apply(&self, x: &[R], a: &[R], b: &[R], out: &mut [R]);
}

impl<R: Real, S: Share> Shares<R> for S {
    fn apply(&self, x: &[R], a: &[R], b: &[R], out: &mut [R]) {
        apply(*self, x, a, b, out);
    }
}

simd_v3! {
    fn apply<R: Real, S: Share>(s: S, x: &[R], a: &[R], b: &[R], out: &mut [R]) {
        let len = out.len();
        let (x, a, b) = (&x[..len], &a[..len], &b[..len]);
        for i in 0..len {
            out[i] = s.share(x[i], a[i], b[i]);
        }
    }
}

/// a where x = b (or both are NaN)
#[derive(Clone, Copy)]
pub(crate) struct Tied;
impl Share for Tied {
    #[inline(always)]
    fn share<R: Real>(self, x: R, a: R, b: R) -> R {
        if x == b || (x.is_nan() && b.is_nan()) { a } else { R::ZERO }
    }
}

/// a e^(x - b)
#[derive(Clone, Copy)]
pub(crate) struct Softmax;
impl Share for Softmax {
    #[inline(always)]
    fn share<R: Real>(self, x: R, a: R, b: R) -> R {
        a * (x - b).exp()
    }
}

/// a (x - b)
#[derive(Clone, Copy)]
pub(crate) struct Offset;
impl Share for Offset {
    #[inline(always)]
    fn share<R: Real>(self, x: R, a: R, b: R) -> R {
        a * (x - b)
    }
}

/// a sign(x)
#[derive(Clone, Copy)]
pub(crate) struct Sign;
impl Share for Sign {
    #[inline(always)]
    fn share<R: Real>(self, x: R, a: R, _: R) -> R {
        a * sign(x)
    }
}

/// a x / b, 0 where b = 0
#[derive(Clone, Copy)]
pub(crate) struct Ratio;
impl Share for Ratio {
    #[inline(always)]
    fn share<R: Real>(self, x: R, a: R, b: R) -> R {
        if b == R::ZERO { R::ZERO } else { a * (x / b) }
    }
}

/// a sign(x) (|x| / b)^(p-1), 0 where x = 0 or b = 0
#[derive(Clone, Copy)]
pub(crate) struct PowerRatio(pub(crate) f64);
impl Share for PowerRatio {
    #[inline(always)]
    fn share<R: Real>(self, x: R, a: R, b: R) -> R {
        let ratio = (x.abs().f64() / b.f64()).powf(self.0 - 1.0);
        if x == R::ZERO || b == R::ZERO { R::ZERO } else { a * sign(x) * R::of(ratio) }
    }
}

#[inline(always)]
fn sign<R: Real>(x: R) -> R {
    let s = if x > R::ZERO { R::ONE } else { -R::ONE };
    // NaN stays NaN, and 0 has no direction.
    if x == R::ZERO || x.is_nan() { x } else { s }
}

/// Gradient of a product: `dy` times the product of all other elements, without dividing.
pub(crate) fn product_row<R: Real>(x: &[R], dy: R, out: &mut [R]) {
    let mut left = dy;
    for (o, &x) in out.iter_mut().zip(x) {
        *o = left;
        left *= x;
    }
    let mut right = R::ONE;
    for (o, &x) in out.iter_mut().zip(x).rev() {
        *o *= right;
        right *= x;
    }
}
