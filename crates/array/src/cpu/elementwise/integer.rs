//! Functions of one and two integers. Arithmetic wraps; the caller has excluded zero divisors.

use super::{Map1, Map2, map1_kernels, map2_kernels};
use crate::element::{Bool, Element};
use crate::ops::{Binary, Unary};

/// The eight integer element types.
pub(crate) trait Int: Element + Ord {
    const ZERO: Self;
    fn add(self, y: Self) -> Self;
    fn sub(self, y: Self) -> Self;
    fn mul(self, y: Self) -> Self;
    fn floor_div(self, y: Self) -> Self;
    fn rem_floor(self, y: Self) -> Self;
    fn fmod(self, y: Self) -> Self;
    fn pow(self, y: Self) -> Self;
    fn and(self, y: Self) -> Self;
    fn or(self, y: Self) -> Self;
    fn xor(self, y: Self) -> Self;
    fn not(self) -> Self;
    fn shl(self, y: Self) -> Self;
    fn shr(self, y: Self) -> Self;
    fn abs(self) -> Self;
    fn signum(self) -> Self;
}

macro_rules! int {
    ($signed:literal: $($t:ty),*) => {$(
        impl Int for $t {
            const ZERO: $t = 0;
            #[inline(always)]
            fn add(self, y: $t) -> $t { self.wrapping_add(y) }
            #[inline(always)]
            fn sub(self, y: $t) -> $t { self.wrapping_sub(y) }
            #[inline(always)]
            fn mul(self, y: $t) -> $t { self.wrapping_mul(y) }
            #[inline(always)]
            fn floor_div(self, y: $t) -> $t {
                let (q, r) = (self.wrapping_div(y), self.wrapping_rem(y));
                if r != 0 && (r < Self::ZERO) != (y < Self::ZERO) { q.wrapping_sub(1) } else { q }
            }
            #[inline(always)]
            fn rem_floor(self, y: $t) -> $t {
                let r = self.wrapping_rem(y);
                if r != 0 && (r < Self::ZERO) != (y < Self::ZERO) { r.wrapping_add(y) } else { r }
            }
            #[inline(always)]
            fn fmod(self, y: $t) -> $t { self.wrapping_rem(y) }
            #[inline(always)]
            fn pow(self, y: $t) -> $t {
                // A negative power of an integer is 0, except of 1 and -1.
                match u32::try_from(y) {
                    Ok(e) => self.wrapping_pow(e),
                    Err(_) if y > 0 => wrapping_pow_wide(self as i128, y as u128) as $t,
                    Err(_) if self == 1 => 1,
                    Err(_) if $signed && self == !0 => if y % 2 == 0 { 1 } else { self },
                    Err(_) => 0,
                }
            }
            #[inline(always)]
            fn and(self, y: $t) -> $t { self & y }
            #[inline(always)]
            fn or(self, y: $t) -> $t { self | y }
            #[inline(always)]
            fn xor(self, y: $t) -> $t { self ^ y }
            #[inline(always)]
            fn not(self) -> $t { !self }
            #[inline(always)]
            fn shl(self, y: $t) -> $t {
                u32::try_from(y).ok().and_then(|s| self.checked_shl(s)).unwrap_or(0)
            }
            #[inline(always)]
            fn shr(self, y: $t) -> $t {
                // Shifting out all bits leaves the sign.
                let gone = if self < Self::ZERO { !0 } else { 0 };
                u32::try_from(y).ok().and_then(|s| self.checked_shr(s)).unwrap_or(gone)
            }
            #[inline(always)]
            fn abs(self) -> $t {
                if self < Self::ZERO { (0 as $t).wrapping_sub(self) } else { self }
            }
            #[inline(always)]
            fn signum(self) -> $t {
                if self > 0 { 1 } else if self == 0 { 0 } else { (0 as $t).wrapping_sub(1) }
            }
        }
    )*};
}
int!(true: i8, i16, i32, i64);
int!(false: u8, u16, u32, u64);

/// Low bits of `base^exponent` for exponents past 32 bits.
fn wrapping_pow_wide(mut base: i128, mut exponent: u128) -> i128 {
    let mut power = 1i128;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    power
}

map1_kernels! { simd_v3, Int:
    neg |x| T::ZERO.sub(x);
    abs |x| x.abs();
    sign |x| x.signum();
    square |x| x.mul(x);
    relu |x| x.max(T::ZERO);
    same |x| x;
    not |x| x.not();
}

map2_kernels! { simd_v3, Int, T:
    add |x, y| x.add(y);
    sub |x, y| x.sub(y);
    mul |x, y| x.mul(y);
    maximum |x, y| x.max(y);
    minimum |x, y| x.min(y);
    and |x, y| x.and(y);
    or |x, y| x.or(y);
    xor |x, y| x.xor(y);
    shl |x, y| x.shl(y);
    shr |x, y| x.shr(y);
}

map2_kernels! { scalar, Int, T:
    floor_div |x, y| x.floor_div(y);
    rem |x, y| x.rem_floor(y);
    fmod |x, y| x.fmod(y);
    pow |x, y| x.pow(y);
}

/// The kernel of a one-input operation on integers, where it has a meaning there.
pub(crate) fn unary<T: Int>(op: Unary) -> Option<Map1<T, T>> {
    Some(match op {
        Unary::Neg => neg,
        Unary::Abs => abs,
        Unary::Sign => sign,
        Unary::Square => square,
        Unary::Relu => relu,
        Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Round => same,
        _ => return None,
    })
}

/// Bitwise complement.
pub(crate) fn complement<T: Int>() -> Map1<T, T> {
    not
}

/// The kernel of a two-input operation on integers, where it has a meaning there.
pub(crate) fn binary<T: Int>(op: Binary) -> Option<Map2<T, T>> {
    Some(match op {
        Binary::Add => add,
        Binary::Sub => sub,
        Binary::Mul => mul,
        Binary::FloorDiv => floor_div,
        Binary::Rem => rem,
        Binary::Fmod => fmod,
        Binary::Pow => pow,
        Binary::Maximum | Binary::Fmax => maximum,
        Binary::Minimum | Binary::Fmin => minimum,
        Binary::BitAnd => and,
        Binary::BitOr => or,
        Binary::BitXor => xor,
        Binary::Shl => shl,
        Binary::Shr => shr,
        Binary::Div | Binary::Atan2 => return None,
    })
}

/// The kernel of an operation on truth values, where it has a meaning there.
pub(crate) fn logical(op: Binary) -> Option<Map2<Bool, Bool>> {
    let bits: Map2<Bool, Bool> = match op {
        Binary::BitAnd | Binary::Minimum => |x, y, out| on_bytes(and, x, y, out),
        Binary::BitOr | Binary::Maximum => |x, y, out| on_bytes(or, x, y, out),
        Binary::BitXor => |x, y, out| on_bytes(xor, x, y, out),
        _ => return None,
    };
    Some(bits)
}

/// Truth values are bytes 0 and 1, on which and, or and xor act as on numbers.
fn on_bytes(kernel: Map2<u8, u8>, x: &[Bool], y: &[Bool], out: &mut [Bool]) {
    kernel(bytemuck::cast_slice(x), bytemuck::cast_slice(y), bytemuck::cast_slice_mut(out));
}
