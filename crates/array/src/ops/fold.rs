//! Folding contributions: what several holders have of one value becomes that value.

use crate::array::Array;
use crate::cpu;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::{Binary, binary};
use planaria_layout::{Combine, DType, Reduce};

/// Folds contributions given as bytes of whole elements, in this order, into `out`.
///
/// The result does not depend on how the bytes are cut. Floats narrower than f32 are folded in f32 and rounded once.
/// Integers are folded in 64 bits, wrap to their own width at the end, and an average drops its fraction (it rounds
/// toward zero). A sum of truth values is "or", a product "and"; they have no average.
pub fn fold_bytes(how: Combine, dtype: DType, inputs: &[&[u8]], out: &mut [u8]) -> Result<()> {
    fold_part(how, dtype, None, inputs, out, false)
}

/// The dtype that contributions are folded in: that of values between the parts of a fold.
pub fn fold_dtype(how: Combine, dtype: DType) -> DType {
    cpu::fold::wide(how, dtype)
}

/// A part of a fold: `inputs` are folded on top of `before`, which another part gave. While `more` parts follow, `out` is of
/// [`fold_dtype`] and nothing is rounded or divided, so parts one after the other have the bits of [`fold_bytes`] on all inputs.
pub fn fold_part(
    how: Combine,
    dtype: DType,
    before: Option<&[u8]>,
    inputs: &[&[u8]],
    out: &mut [u8],
    more: bool,
) -> Result<()> {
    if dtype == DType::Bool && how.divisor > 1 {
        return Err(Error::argument("fold", "avg is not defined for bool; cast first"));
    }
    let wide = fold_dtype(how, dtype);
    let count = out.len() / if more { wide } else { dtype }.size();
    let fits = |bytes: &[u8], dtype: DType| bytes.len() == count * dtype.size();
    let here = before.is_some() || !inputs.is_empty();
    if !here || !inputs.iter().all(|x| fits(x, dtype)) || !before.is_none_or(|x| fits(x, wide)) {
        let lengths: Vec<usize> = before.iter().chain(inputs).map(|input| input.len()).collect();
        let what = format!("contributions of {lengths:?} bytes cannot make {}", out.len());
        return Err(Error::argument("fold", what));
    }
    cpu::fold::fold(how, dtype, inputs, out, cpu::fold::Part { before, more });
    Ok(())
}

impl Array {
    /// Overwrites this view with `inputs`, arrays of its shape and dtype, folded in this order as [`fold_bytes`] does.
    pub fn fold_from(&self, how: Combine, inputs: &[Array]) -> Result<()> {
        for input in inputs {
            input.check_dtype("fold", self.dtype())?;
            if input.shape() != self.shape() {
                let what = format!("a contribution of {} cannot make {}", input.shape(), self.shape());
                return Err(Error::argument("fold", what));
            }
        }
        if let Device::Cuda(_) = self.device() {
            return self.copy_from(&on_cuda(how, self.dtype(), inputs)?);
        }
        if !self.is_contiguous() {
            let folded = Array::empty(self.shape(), self.dtype())?;
            folded.fold_from(how, inputs)?;
            return self.copy_from(&folded);
        }
        let flat = inputs.iter().map(|input| input.contiguous()?.bytes()).collect::<Result<Vec<_>>>()?;
        let flat: Vec<&[u8]> = flat.iter().map(|bytes| &**bytes).collect();
        let length = self.numel() * self.dtype().size();
        self.write_bytes(0..length, |out| fold_bytes(how, self.dtype(), &flat, out))?
    }
}

/// The fold on a device: the same steps in the same types, so the same bits.
fn on_cuda(how: Combine, dtype: DType, inputs: &[Array]) -> Result<Array> {
    let truth = dtype == DType::Bool || matches!(how.reduce, Reduce::Any | Reduce::All);
    if dtype == DType::Bool && how.divisor > 1 {
        return Err(Error::argument("fold", "avg is not defined for bool; cast first"));
    }
    let wide = match dtype {
        _ if truth => DType::Bool,
        DType::F64 | DType::U64 => dtype,
        dtype if dtype.is_float() => DType::F32,
        _ => DType::I64,
    };
    let join = match how.reduce {
        Reduce::Sum | Reduce::Avg | Reduce::Any | Reduce::Max if truth => Binary::BitOr,
        Reduce::Prod | Reduce::All | Reduce::Min if truth => Binary::BitAnd,
        Reduce::Sum | Reduce::Avg | Reduce::Any => Binary::Add,
        Reduce::Prod | Reduce::All => Binary::Mul,
        Reduce::Max => Binary::Maximum,
        Reduce::Min => Binary::Minimum,
    };
    let Some((first, rest)) = inputs.split_first() else {
        return Err(Error::argument("fold", "there is no contribution"));
    };
    let mut sum = first.cast(wide)?;
    for input in rest {
        sum = binary(join, &sum, &input.cast(wide)?)?;
    }
    if how.divisor > 1 {
        let divisor = Array::scalar(how.divisor, wide)?;
        sum = match wide.is_float() {
            true => sum.div(&divisor)?,
            // Without its fraction, whatever the sign.
            false => {
                let rest = binary(Binary::Fmod, &sum, &divisor)?;
                binary(Binary::FloorDiv, &sum.sub(&rest)?, &divisor)?
            }
        };
    }
    sum.cast(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(how: Combine, dtype: DType, values: &[&[f64]]) -> Result<Vec<f64>> {
        let array = |v: &&[f64]| Array::from_slice(v, &[v.len()])?.cast(dtype);
        let inputs = values.iter().map(array).collect::<Result<Vec<_>>>()?;
        let out = Array::empty(&[values[0].len()], dtype)?;
        out.fold_from(how, &inputs)?;
        out.cast(DType::F64)?.to_vec()
    }

    #[test]
    fn integer_averages_round_toward_zero_in_every_dtype() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_int()) {
            let average = Combine::of(Reduce::Avg, 3);
            let values: [&[f64]; 3] = [&[100.0, 3.0, 0.0], &[100.0, 4.0, 1.0], &[103.0, 4.0, 1.0]];
            // Narrow sums do not wrap before they are divided.
            assert_eq!(folded(average, dtype, &values).unwrap(), [101.0, 3.0, 0.0], "{dtype}");
            if !matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64) {
                let values: [&[f64]; 3] = [&[-100.0, -3.0], &[-100.0, -4.0], &[-103.0, -1.0]];
                assert_eq!(folded(average, dtype, &values).unwrap(), [-101.0, -2.0], "{dtype}");
            }
        }
    }

    #[test]
    fn truth_values_fold_as_or_and_and() {
        let values: [&[f64]; 3] = [&[0.0, 1.0, 1.0], &[0.0, 0.0, 1.0], &[0.0, 1.0, 1.0]];
        for reduce in Reduce::EVERY.into_iter().filter(|&r| r != Reduce::Avg) {
            let any = matches!(reduce, Reduce::Sum | Reduce::Max | Reduce::Any);
            let want = if any { [0.0, 1.0, 1.0] } else { [0.0, 0.0, 1.0] };
            assert_eq!(folded(Combine::of(reduce, 3), DType::Bool, &values).unwrap(), want, "{reduce:?}");
        }
        assert!(folded(Combine::of(Reduce::Avg, 3), DType::Bool, &values).is_err());
        let values: [&[f64]; 2] = [&[0.0, -0.0, f64::NAN], &[0.0, 0.5, 0.0]];
        assert_eq!(folded(Combine::of(Reduce::Any, 2), DType::F16, &values).unwrap(), [0.0, 1.0, 1.0]);
        assert_eq!(folded(Combine::of(Reduce::All, 2), DType::F32, &values).unwrap(), [0.0; 3]);
    }

    #[test]
    fn narrow_floats_round_once_and_nan_wins() {
        let values: [&[f64]; 3] = [&[256.0, f64::NAN], &[1.0, 1.0], &[1.0, 2.0]];
        // In bf16 each 1 alone would be lost.
        assert_eq!(folded(Combine::of(Reduce::Sum, 3), DType::BF16, &values).unwrap()[0], 258.0);
        assert!(folded(Combine::of(Reduce::Max, 3), DType::BF16, &values).unwrap()[1].is_nan());
        assert!(folded(Combine::of(Reduce::Min, 3), DType::F64, &values).unwrap()[1].is_nan());
    }

    #[test]
    fn a_fold_in_parts_has_the_bits_of_one() {
        for dtype in DType::ALL {
            let values = |seed: u64| {
                let value = |i: u64| ((i * 7 + seed * 13) % 23) as f64 / 3.0 - 2.0;
                let values: Vec<f64> = (0..2500).map(value).collect();
                Array::from_slice(&values, &[2500])?.cast(dtype)?.bytes()
            };
            let inputs = (0..5).map(values).collect::<Result<Vec<_>>>().unwrap();
            let inputs: Vec<&[u8]> = inputs.iter().map(|bytes| &**bytes).collect();
            for op in Reduce::EVERY.into_iter().filter(|&op| op != Reduce::Avg || dtype != DType::Bool) {
                let how = Combine::of(op, 5);
                let row = |dtype: DType| vec![0u64; (2500 * dtype.size()).div_ceil(8)];
                let (mut whole, mut parts, mut between) =
                    (row(dtype), row(dtype), row(fold_dtype(how, dtype)));
                let cut = |words: &mut Vec<u64>, dtype: DType, fold: &mut dyn FnMut(&mut [u8])| {
                    fold(&mut bytemuck::cast_slice_mut::<u64, u8>(words)[..2500 * dtype.size()]);
                };
                cut(&mut whole, dtype, &mut |out| fold_bytes(how, dtype, &inputs, out).unwrap());
                let wide = fold_dtype(how, dtype);
                cut(&mut between, wide, &mut |out| {
                    fold_part(how, dtype, None, &inputs[..2], out, true).unwrap()
                });
                let before = between.clone();
                let before = &bytemuck::cast_slice::<u64, u8>(&before)[..2500 * wide.size()];
                cut(&mut between, wide, &mut |out| {
                    fold_part(how, dtype, Some(before), &inputs[2..4], out, true).unwrap();
                });
                let before = &bytemuck::cast_slice::<u64, u8>(&between)[..2500 * wide.size()];
                cut(&mut parts, dtype, &mut |out| {
                    fold_part(how, dtype, Some(before), &inputs[4..], out, false).unwrap();
                });
                assert_eq!(whole, parts, "{op:?} of {dtype}");
                assert!(fold_part(how, dtype, Some(&before[1..]), &inputs, &mut [0; 8], false).is_err());
            }
        }
    }

    #[test]
    fn a_fold_writes_only_its_view_and_refuses_what_does_not_fit() {
        let whole = Array::full(&[3, 3000], 9, DType::I16).unwrap();
        let column = whole.narrow(1, 5, 1100).unwrap();
        let inputs = [Array::full(&[3, 1100], 2, DType::I16).unwrap(), column.copy().unwrap()];
        column.fold_from(Combine::of(Reduce::Sum, 2), &inputs).unwrap();
        let sum = whole.cast(DType::I64).unwrap().to_vec::<i64>().unwrap().iter().sum::<i64>();
        assert_eq!(sum, 3 * (1100 * 11 + 1900 * 9));
        assert!(column.fold_from(Combine::of(Reduce::Sum, 0), &[]).is_err());
        assert!(column.fold_from(Combine::of(Reduce::Sum, 1), std::slice::from_ref(&whole)).is_err());
    }
}
