//! Gradients of the masked operations.

use super::index_grad::sum_to;
use crate::array::Array;
use crate::error::Result;
use planaria_layout::Shape;

/// Gradient of [`Array::masked_fill`] and [`Array::masked_scatter`] with respect to the array: `dy` with zeros
/// where the mask is true, broadcasting undone.
pub fn masked_fill_grad(dy: &Array, mask: &Array, shape: &[usize]) -> Result<Array> {
    sum_to(&dy.masked_fill(mask, 0.0)?, shape)
}

/// Gradient of [`Array::masked_fill`] with respect to the value, a 0-d array: the sum of `dy` where the mask is
/// true.
pub fn masked_fill_value_grad(dy: &Array, mask: &Array) -> Result<Array> {
    sum_to(&dy.masked_select(mask)?, &[])
}

/// Gradient of [`Array::masked_select`]: `dy` put back where it was taken, broadcasting undone.
pub fn masked_select_grad(dy: &Array, mask: &Array, shape: &[usize]) -> Result<Array> {
    let common = crate::view::broadcast_shapes("masked_select", &Shape::new(shape)?, mask.shape())?;
    let spread = Array::zeros_on(&common, dy.dtype(), dy.device())?;
    spread.masked_scatter_assign(mask, dy)?;
    sum_to(&spread, shape)
}

/// Gradient of [`Array::masked_scatter`] with respect to the source: `dy` where the mask is true, then zeros for
/// source elements that were not needed.
pub fn masked_scatter_source_grad(dy: &Array, mask: &Array, shape: &[usize]) -> Result<Array> {
    let taken = dy.masked_select(mask)?;
    let shape = Shape::new(shape)?;
    let source = Array::zeros_on(&[shape.numel()], dy.dtype(), dy.device())?;
    source.narrow(0, 0, taken.numel())?.copy_from(&taken)?;
    source.reshape(&shape)
}
