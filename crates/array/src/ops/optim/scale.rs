//! Norms of gradients over many arrays, clipping, and loss scaling.

use super::{Staged, skip, state};
use crate::array::Array;
use crate::cpu::optim::scale as kernel;
use crate::cpu::real::with_float;
use crate::cpu::squares;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::Keep;
use crate::ops::fused::real_dtype;
use planaria_layout::DType;

/// Sum of the squares of all elements of all arrays, in f64 and the same for any number of threads.
pub fn squared_norm(list: &[Array]) -> Result<f64> {
    let op = "squared_norm";
    let mut total = 0.0;
    for x in list {
        if let Device::Cuda(_) = x.device() {
            real_dtype(op, x.dtype())?;
            total += x.cast(DType::F64)?.sum_squares(&[], Keep::No)?.item()?.as_f64();
            continue;
        }
        total += with_float!(op, x.dtype(), T => Ok(kernel::squares::<T>(&x.values::<T>(op)?)))?;
    }
    Ok(total)
}

/// Words of [`exact_squares`]: 68 limbs and two counts.
pub const EXACT_WORDS: usize = 70;

/// The sum of the squares of all elements of arrays of one CUDA device, without rounding: 68 limbs of 32 bits in 64, in units of
/// the smallest positive f64 and not carried, then how many elements are NaN and how many infinite. Nothing for no arrays.
/// Below 2^31 elements no word overflows.
pub fn exact_squares(list: &[Array]) -> Result<Option<Array>> {
    let op = "exact_squares";
    for x in list {
        match (x.device(), x.dtype()) {
            (Device::Cuda(_), DType::F32 | DType::BF16 | DType::F16) if x.device() == list[0].device() => {}
            (Device::Cuda(_), _) if x.device() != list[0].device() => {
                return Err(list[0].mixed_devices(op, x));
            }
            (Device::Cuda(_), found) => {
                return Err(Error::DType { op, found, expected: "f32, bf16 or f16" });
            }
            (device, _) => {
                return Err(Error::Device {
                    op,
                    device,
                    hint: "sums of squares on the host are `ExactNorm`'s",
                });
            }
        }
    }
    let list = list.iter().map(Array::contiguous).collect::<Result<Vec<_>>>()?;
    crate::cuda::exact_squares(op, &list, EXACT_WORDS)
}

/// Values that [`exact_piece`] takes at once.
pub const EXACT_PIECE: usize = squares::PIECE;

/// The sum of the squares of at most [`EXACT_PIECE`] values, without rounding: integers times powers of two. Nothing where a value
/// is not finite, or where they are too far apart for this quick way.
pub fn exact_piece(values: &[f32]) -> Option<[(u64, i32); squares::PARTS]> {
    squares::sum(values)
}

/// The factor that brings gradients of the given norm to at most `max_norm`: `min(1, max_norm / (norm + 1e-6))`.
pub fn clip_coefficient(norm: f64, max_norm: f64) -> f64 {
    // A NaN norm gives NaN, so that a broken step stays visible.
    let ratio = max_norm / (norm + 1e-6);
    if ratio > 1.0 { 1.0 } else { ratio }
}

/// Multiplies every array by `factor` in place.
pub fn scale_in_place(list: &[Array], factor: f64) -> Result<()> {
    scale("scale_in_place", list, factor).map(|_| ())
}

/// Multiplies every gradient by `inverse_scale` in place and says whether all were finite before: if not, the step
/// must be skipped and the loss scale lowered.
pub fn check_finite_and_unscale(list: &[Array], inverse_scale: f64) -> Result<bool> {
    let op = "check_finite_and_unscale";
    if !inverse_scale.is_finite() {
        return Err(Error::argument(op, format!("the inverse scale must be finite, got {inverse_scale}")));
    }
    scale(op, list, inverse_scale)
}

/// In the computing type, rounded once; answers whether all elements were finite, which it waits for.
fn scale_on_cuda(x: &Array, factor: f64) -> Result<bool> {
    let wide = real_dtype("scale", x.dtype())?;
    let product = x.cast(wide)?.mul(&Array::scalar(factor, wide)?)?.cast(x.dtype())?;
    let largest = x.cast(wide)?.abs()?.amax(&[], Keep::No)?;
    x.copy_from(&product)?;
    Ok(largest.item()?.as_f64().is_finite())
}

fn scale(op: &'static str, list: &[Array], factor: f64) -> Result<bool> {
    for x in list {
        real_dtype(op, x.dtype())?;
    }
    let mut finite = true;
    for x in list {
        if skip(op, x, &[])? {
            continue;
        }
        if let Device::Cuda(_) = x.device() {
            finite &= scale_on_cuda(x, factor)?;
            continue;
        }
        let staged = Staged::new(x, &[])?;
        let mut writing = staged.begin(op)?;
        finite &= with_float!(op, x.dtype(), T => Ok(kernel::scale::<T>(state(&mut writing), factor)))?;
        writing.commit();
        staged.finish()?;
    }
    Ok(finite)
}
