//! How close two results are.

use crate::array::Array;
use crate::element::{Element, Scalar, with_dtype};
use planaria_layout::DType;

/// How close results must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// The same bits, those of NaN included.
    Bits,
    /// The same bits; any NaN for a NaN.
    Values,
    /// That many steps of the dtype's own spacing; any NaN for a NaN.
    Steps(u64),
    /// The norm of the difference, relative to the norm.
    Norm(f64),
    /// The same, but relative to the norm of as many ones where that is larger: of results that may all be rounding.
    Scaled(f64),
}

/// Where two results differ in any bit, as a text.
pub fn same_bits(a: &Array, b: &Array) -> Option<String> {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return Some(format!("{}{} and {}{}", a.dtype(), a.shape(), b.dtype(), b.shape()));
    }
    let (Ok(x), Ok(y)) = (bytes(a), bytes(b)) else { return Some("bytes cannot be read".into()) };
    let at = x.iter().zip(&y).position(|(x, y)| x != y)? / a.dtype().size();
    Some(format!("element {at} is {} and {}", value(a, at), value(b, at)))
}

fn bytes(x: &Array) -> crate::Result<Vec<u8>> {
    Ok(x.contiguous()?.bytes()?.to_vec())
}

fn value(x: &Array, at: usize) -> String {
    let size = x.dtype().size();
    let bits = bytes(x)
        .map(|bytes| bytes[at * size..(at + 1) * size].iter().rev().map(|b| format!("{b:02x}")).collect());
    let text = with_dtype!(x.dtype(), T => x.to_vec::<T>().map(|v| v[at].to_scalar().to_string()));
    format!("{} (0x{})", text.unwrap_or_default(), bits.unwrap_or_else(|_| String::new()))
}

/// The error found, or why it is too large.
pub fn compare(want: &Array, got: &Array, tolerance: Tolerance) -> Result<f64, String> {
    if want.dtype() != got.dtype() || want.shape() != got.shape() {
        return Err(format!("{}{} instead of {}{}", got.dtype(), got.shape(), want.dtype(), want.shape()));
    }
    let exact = same_bits(got, want);
    match (exact, tolerance) {
        (None, _) => Ok(0.0),
        (Some(text), Tolerance::Bits) => Err(text),
        (Some(text), _) if !want.dtype().is_float() => Err(text),
        (Some(_), Tolerance::Values) => steps(want, got, 0),
        (Some(_), Tolerance::Steps(most)) => steps(want, got, most),
        (Some(_), Tolerance::Norm(most)) => norm(want, got, most, 0.0),
        (Some(_), Tolerance::Scaled(most)) => norm(want, got, most, want.numel() as f64),
    }
}

/// A float's place in the order of all floats of its dtype; `None` for NaN.
fn place(x: &Array) -> Result<Vec<Option<i64>>, String> {
    let size = x.dtype().size();
    let raw = bytes(x).map_err(|error| error.to_string())?;
    let values = numbers(x)?;
    let of = |(word, value): (&[u8], f64)| {
        let mut wide = [0u8; 8];
        wide[..size].copy_from_slice(word);
        let bits = i64::from_le_bytes(wide);
        let sign = 1i64 << (8 * size - 1);
        let magnitude = bits & (sign.wrapping_sub(1));
        (!value.is_nan()).then(|| if bits & sign != 0 { -magnitude } else { magnitude })
    };
    Ok(raw.chunks_exact(size).zip(values).map(of).collect())
}

fn numbers(x: &Array) -> Result<Vec<f64>, String> {
    with_dtype!(x.dtype(), T => {
        let number = |v: &T| match v.to_scalar() {
            Scalar::Float(x) => x,
            other => other.as_f64(),
        };
        x.to_vec::<T>().map(|v| v.iter().map(number).collect()).map_err(|error| error.to_string())
    })
}

fn steps(want: &Array, got: &Array, most: u64) -> Result<f64, String> {
    let mut worst = 0u64;
    for (at, (w, g)) in place(want)?.into_iter().zip(place(got)?).enumerate() {
        let apart = match (w, g) {
            (None, None) => 0,
            (Some(w), Some(g)) => w.abs_diff(g),
            _ => u64::MAX,
        };
        if apart > most {
            return Err(format!(
                "element {at} is {}, not {}: {apart} steps",
                value(got, at),
                value(want, at)
            ));
        }
        worst = worst.max(apart);
    }
    Ok(worst as f64)
}

/// `least` bounds the square of what the difference is relative to.
fn norm(want: &Array, got: &Array, most: f64, least: f64) -> Result<f64, String> {
    let (want, got) = (numbers(want)?, numbers(got)?);
    let (mut apart, mut size) = (0.0f64, 0.0f64);
    for (at, (&w, &g)) in want.iter().zip(&got).enumerate() {
        if w.is_nan() && g.is_nan() || w == g {
            size += if w.is_finite() { w * w } else { 0.0 };
        } else if !w.is_finite() || !g.is_finite() {
            return Err(format!("element {at} is {g}, not {w}"));
        } else {
            apart += (w - g) * (w - g);
            size += w * w;
        }
    }
    let error = (apart / size.max(least).max(f64::MIN_POSITIVE)).sqrt();
    if error <= most { Ok(error) } else { Err(format!("relative error {error:.3e} is above {most:.1e}")) }
}

/// The tolerance of sums, norms and products in a dtype.
pub(super) fn summed(dtype: DType) -> Tolerance {
    match dtype {
        DType::F64 => Tolerance::Norm(1e-14),
        DType::F32 => Tolerance::Norm(1e-6),
        DType::F16 => Tolerance::Norm(1e-3),
        _ => Tolerance::Norm(4e-3),
    }
}
