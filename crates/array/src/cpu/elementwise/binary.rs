//! Functions of two floats, and comparisons of any ordered elements.

use super::{Map2, map2_kernels};
use crate::convert::Number;
use crate::cpu::real::Real;
use crate::element::Bool;
use crate::ops::{Binary, Compare};

/// An element with an order (partial for floats): everything that can be compared.
pub(crate) trait Ordered: Number + PartialOrd {}
impl<T: Number + PartialOrd> Ordered for T {}

map2_kernels! { simd, Real, T:
    add |x, y| x + y;
    sub |x, y| x - y;
    mul |x, y| x * y;
    div |x, y| x / y;
    maximum |x, y| x.larger(y);
    minimum |x, y| x.smaller(y);
    // NaN loses against a number.
    fmax |x, y| if x > y || y.is_nan() { x } else { y };
    fmin |x, y| if x < y || y.is_nan() { x } else { y };
}

map2_kernels! { scalar, Real, T:
    floor_div |x, y| floor_div_of(x, y);
    rem |x, y| rem_of(x, y);
    fmod |x, y| x.fmod(y);
    pow |x, y| T::of(x.f64().powf(y.f64()));
    atan2 |x, y| T::of(x.f64().atan2(y.f64()));
}

map2_kernels! { simd_v3, Ordered, Bool:
    eq |x, y| Bool::new(x == y);
    ne |x, y| Bool::new(x != y);
    lt |x, y| Bool::new(x < y);
    le |x, y| Bool::new(x <= y);
    gt |x, y| Bool::new(x > y);
    ge |x, y| Bool::new(x >= y);
}

/// Remainder with the sign of the divisor, zeros included, as in Python.
#[inline(always)]
fn rem_of<T: Real>(x: T, y: T) -> T {
    let r = x.fmod(y);
    if r == T::ZERO {
        return r.signed_as(y);
    }
    if (r < T::ZERO) != (y < T::ZERO) { r + y } else { r }
}

/// Quotient rounded down, exact where the plain quotient rounds up to the next integer. Zeros have the sign of the
/// quotient, and an infinite dividend gives the infinite quotient, as the array API standard says.
#[inline(always)]
fn floor_div_of<T: Real>(x: T, y: T) -> T {
    let plain = x / y;
    let r = x.fmod(y);
    // A divisor of zero, an infinite dividend, or NaN.
    if r.is_nan() {
        return plain;
    }
    let q = (x - r) / y;
    let q = if r != T::ZERO && (r < T::ZERO) != (y < T::ZERO) { q - T::ONE } else { q };
    // The division above can be off by a rounding; its floor is within one of the nearest integer.
    let f = q.floor();
    let f = if q - f > T::of(0.5) { f + T::ONE } else { f };
    if f == T::ZERO { f.signed_as(plain) } else { f }
}

/// The kernel of an arithmetic operation on f32 or f64; `None` for operations on bits.
pub(crate) fn kernel<T: Real>(op: Binary) -> Option<Map2<T, T>> {
    Some(match op {
        Binary::Add => add,
        Binary::Sub => sub,
        Binary::Mul => mul,
        Binary::Div => div,
        Binary::FloorDiv => floor_div,
        Binary::Rem => rem,
        Binary::Fmod => fmod,
        Binary::Pow => pow,
        Binary::Atan2 => atan2,
        Binary::Maximum => maximum,
        Binary::Minimum => minimum,
        Binary::Fmax => fmax,
        Binary::Fmin => fmin,
        Binary::BitAnd | Binary::BitOr | Binary::BitXor | Binary::Shl | Binary::Shr => return None,
    })
}

/// The kernel of a comparison.
pub(crate) fn compare<T: Ordered>(op: Compare) -> Map2<T, Bool> {
    match op {
        Compare::Eq => eq,
        Compare::Ne => ne,
        Compare::Lt => lt,
        Compare::Le => le,
        Compare::Gt => gt,
        Compare::Ge => ge,
    }
}
