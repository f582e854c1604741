//! Gradients of gather, scatter and their relatives.

use super::gather::aligned;
use super::index_grad::sum_to;
use crate::array::Array;
use crate::error::Result;
use planaria_layout::{Dims, Shape};

/// Gradient of [`Array::gather`]: `dy` added into zeros of the array's shape at the gathered positions.
pub fn gather_grad(dy: &Array, dim: i64, index: &Array, shape: &[usize]) -> Result<Array> {
    let dx = Array::zeros(shape, dy.dtype())?;
    dx.scatter_add_assign(dim, index, dy)?;
    Ok(dx)
}

/// Gradient of [`Array::scatter`] with respect to the array: `dy` with zeros at the written positions.
pub fn scatter_grad(dy: &Array, dim: i64, index: &Array) -> Result<Array> {
    dy.scatter_scalar(dim, index, 0.0)
}

/// Gradient of [`Array::scatter`] and [`Array::scatter_add`] with respect to the source: `dy` gathered at the
/// positions, zero for source elements that no position names. Of several writes to one element each gets the
/// whole gradient.
pub fn scatter_source_grad(dy: &Array, dim: i64, index: &Array, shape: &[usize]) -> Result<Array> {
    let taken = dy.gather(dim, index)?;
    let shape = Shape::new(shape)?;
    if taken.shape() == &shape {
        return Ok(taken);
    }
    let source = Array::zeros(&shape, dy.dtype())?;
    if taken.numel() > 0 {
        let mut part = source.clone();
        for (d, &n) in taken.shape().iter().enumerate() {
            part = part.narrow(d as i64, 0, n)?;
        }
        part.copy_from(&taken)?;
    }
    Ok(source)
}

/// Gradient of [`Array::take_along_dim`], broadcasting undone.
pub fn take_along_dim_grad(dy: &Array, index: &Array, dim: i64, shape: &[usize]) -> Result<Array> {
    let (_, index, d) = aligned("take_along_dim", &Array::meta(shape, dy.dtype())?, index, dim)?;
    let mut wide = Dims::from_slice(index.shape());
    wide[d] = shape[d];
    sum_to(&gather_grad(dy, d as i64, &index, &wide)?, shape)
}
