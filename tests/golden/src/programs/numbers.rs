//! Recorded tensors, and how near a computed one comes to them.

use crate::checkpoints;
use anyhow::{Context, Result, bail};
use planaria_array::{Array, DType};
use std::collections::BTreeMap;

/// A recorded tensor.
pub(super) struct Expected {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Expected {
    pub(super) fn array(&self) -> Result<Array> {
        Ok(Array::from_bytes(&self.bytes, &self.shape, self.dtype)?)
    }
}

/// All tensors of a safetensors file.
pub(super) fn read(bytes: &[u8]) -> Result<BTreeMap<String, Expected>> {
    let entries = checkpoints::parse_expected(bytes)?.into_iter();
    entries
        .map(|(name, (dtype, shape, bytes))| {
            let known = DType::ALL.into_iter().find(|d| planaria_store::container::dtype_name(*d) == dtype);
            let dtype = known.with_context(|| format!("{name} has dtype {dtype}"))?;
            Ok((name, Expected { dtype, shape, bytes }))
        })
        .collect()
}

/// Integers must be equal; floats to 1e-5 of themselves and 1e-6 of the largest.
pub(super) fn compare(found: &Array, expected: &Expected) -> Result<()> {
    let wanted = expected.array()?;
    if found.dtype() != wanted.dtype() || found.shape() != wanted.shape() {
        let (f, w) = (found, &wanted);
        bail!("it is {}{}, expected {}{}", f.dtype(), f.shape(), w.dtype(), w.shape());
    }
    let exact = !found.dtype().is_float();
    let (found, wanted) =
        (found.cast(DType::F64)?.to_vec::<f64>()?, wanted.cast(DType::F64)?.to_vec::<f64>()?);
    let largest = wanted.iter().filter(|x| x.is_finite()).fold(0f64, |m, x| m.max(x.abs()));
    for (at, (f, w)) in found.iter().zip(&wanted).enumerate() {
        let near = f == w || (f.is_nan() && w.is_nan());
        let close = !exact && (f - w).abs() <= 1e-5 * w.abs() + 1e-6 * largest;
        if !near && !close {
            bail!("element {at} is {f}, expected {w}");
        }
    }
    Ok(())
}
