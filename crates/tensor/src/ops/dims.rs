//! Dims as users give them, negative ones counted from the end, made plain.

use crate::error::Result;
use planaria_array::{Error, Shape};
use planaria_layout::Dims;

/// One dim as a place.
pub(crate) fn normal_dim(op: &'static str, ndim: usize, dim: i64) -> Result<usize> {
    let count = ndim.max(1) as i64;
    if !(-count..count).contains(&dim) {
        return Err(Error::DimOutOfRange { op, dim, ndim }.into());
    }
    Ok(if dim < 0 { (dim + count) as usize } else { dim as usize })
}

/// Several dims in ascending order; all of them when none are given.
pub(crate) fn normal_dims(op: &'static str, ndim: usize, dims: &[i64]) -> Result<Dims> {
    if dims.is_empty() {
        return Ok((0..ndim).collect());
    }
    let mut plain = dims.iter().map(|&dim| normal_dim(op, ndim, dim)).collect::<Result<Dims>>()?;
    plain.sort_unstable();
    if ndim == 0 {
        return Ok(Dims::new());
    }
    if let Some(pair) = plain.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Argument { op, what: format!("dim {} is given twice", pair[0]) }.into());
    }
    Ok(plain)
}

/// The shape with some dims reduced to 1.
pub(crate) fn keep_shape(shape: &Shape, dims: &[usize]) -> Dims {
    shape.iter().enumerate().map(|(d, &n)| if dims.contains(&d) { 1 } else { n }).collect()
}
