//! Floats to integers, truncating and saturating like Rust's `as`, in a form that vectorises.
//!
//! `as` compiles to a scalar sequence per value. Here the value is first brought into range, then converted with
//! the plain instruction, and values that were out of range are put right afterwards.
#![allow(unsafe_code)]

macro_rules! truncate {
    ($($(#[$meta:meta])* $name:ident: $float:ty => $int:ty, $limit:expr;)*) => {$(
        $(#[$meta])*
        #[inline(always)]
        pub(crate) fn $name(x: $float) -> $int {
            // Both bounds are powers of two, or zero, and exact; comparisons with NaN are false.
            const LOW: $float = <$int>::MIN as $float;
            let safe = if (LOW..$limit).contains(&x) { x } else { 0.0 };
            // SAFETY: `safe` is finite and its integer part lies in the range of the integer type.
            let value = unsafe { safe.to_int_unchecked::<$int>() };
            let above = if x >= $limit { <$int>::MAX } else { value };
            if x < LOW { <$int>::MIN } else { above }
        }
    )*};
}
truncate! {
    /// `x as i32`.
    f32_to_i32: f32 => i32, 2_147_483_648.0;
    /// `x as i64`.
    f32_to_i64: f32 => i64, 9_223_372_036_854_775_808.0;
    /// `x as i32`.
    f64_to_i32: f64 => i32, 2_147_483_648.0;
    /// `x as i64`.
    f64_to_i64: f64 => i64, 9_223_372_036_854_775_808.0;
    /// `x as u32`.
    f32_to_u32: f32 => u32, 4_294_967_296.0;
    /// `x as u64`.
    f32_to_u64: f32 => u64, 18_446_744_073_709_551_616.0;
    /// `x as u32`.
    f64_to_u32: f64 => u32, 4_294_967_296.0;
    /// `x as u64`.
    f64_to_u64: f64 => u64, 18_446_744_073_709_551_616.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_converts_like_as() {
        let mut values: Vec<f64> =
            vec![0.0, -0.0, 0.5, -0.99, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300];
        for power in [7, 8, 15, 16, 31, 32, 52, 53, 62, 63, 64] {
            let edge = 2f64.powi(power);
            values.extend([edge, edge.next_up(), edge.next_down(), edge - 1.0, edge + 1.0, edge - 0.5]);
        }
        for i in 0..50_000u64 {
            values.push(f64::from_bits(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        }
        for x in values.iter().flat_map(|&x| [x, -x]) {
            assert_eq!((f64_to_i32(x), f64_to_i64(x)), (x as i32, x as i64), "{x}");
            assert_eq!((f64_to_u32(x), f64_to_u64(x)), (x as u32, x as u64), "{x}");
            let x = x as f32;
            assert_eq!((f32_to_i32(x), f32_to_i64(x)), (x as i32, x as i64), "{x}");
            assert_eq!((f32_to_u32(x), f32_to_u64(x)), (x as u32, x as u64), "{x}");
        }
    }
}
