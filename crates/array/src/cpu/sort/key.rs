//! Unsigned integers that order as elements do: -0 equals 0, NaN comes last.

use crate::element::{Bool, Element};
use crate::float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// An element with a sort key.
pub(crate) trait SortKey: Element {
    /// Width of the key.
    const BITS: usize = 8 * size_of::<Self>();
    /// The bits a key may use.
    const MASK: u64 = u64::MAX >> (64 - Self::BITS);

    /// Orders as the elements do.
    fn key(self) -> u64;

    /// True for NaN.
    #[inline(always)]
    fn is_nan_key(self) -> bool {
        false
    }
}

macro_rules! unsigned_keys {
    ($($t:ty),*) => {$(
        impl SortKey for $t {
            #[inline(always)]
            fn key(self) -> u64 {
                u64::from(self)
            }
        }
    )*};
}
unsigned_keys!(u8, u16, u32, u64);

macro_rules! signed_keys {
    ($($t:ty as $u:ty),*) => {$(
        impl SortKey for $t {
            #[inline(always)]
            fn key(self) -> u64 {
                u64::from(self.wrapping_sub(<$t>::MIN) as $u)
            }
        }
    )*};
}
signed_keys!(i8 as u8, i16 as u16, i32 as u32, i64 as u64);

impl SortKey for Bool {
    #[inline(always)]
    fn key(self) -> u64 {
        u64::from(self.get())
    }
}

macro_rules! float_keys {
    ($($t:ty as $u:ty, $bits:expr, $infinity:expr;)*) => {$(
        impl SortKey for $t {
            #[inline(always)]
            fn key(self) -> u64 {
                const SIGN: $u = 1 << (<$u>::BITS - 1);
                let bits: $u = $bits(self);
                let key = if bits & SIGN == 0 { bits | SIGN } else { !bits };
                let key = if bits & !SIGN == 0 { SIGN } else { key };
                u64::from(if self.is_nan_key() { <$u>::MAX } else { key })
            }
            #[inline(always)]
            fn is_nan_key(self) -> bool {
                let bits: $u = $bits(self);
                bits & (<$u>::MAX >> 1) > $infinity
            }
        }
    )*};
}
// The bits of infinity, above which only NaN lies; the 4-bit-exponent format has a single NaN and no infinity.
float_keys! {
    f64 as u64, f64::to_bits, 0x7ff0_0000_0000_0000;
    f32 as u32, f32::to_bits, 0x7f80_0000;
    f16 as u16, f16::to_bits, 0x7c00;
    bf16 as u16, bf16::to_bits, 0x7f80;
    F8E4M3 as u8, F8E4M3::to_bits, 0x7e;
    F8E5M2 as u8, F8E5M2::to_bits, 0x7c;
}
