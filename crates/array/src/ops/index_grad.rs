//! Gradients of indexing. Every operation here is linear in the array and in the value, so these functions,
//! composed with the operations themselves, also give second and higher derivatives.

use super::index::Put;
use crate::array::Array;
use crate::convert::Number;
use crate::cpu::index_sum::sum_rows;
use crate::cpu::real::with_float;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::ops::Keep;
use planaria_layout::{DType, Shape};

/// Undoes broadcasting: `dy` summed over the dims that `shape` was repeated along. Sums in f64.
pub fn sum_to(dy: &Array, shape: &[usize]) -> Result<Array> {
    let to = Shape::new(shape)?;
    if dy.shape() == &to {
        return Ok(dy.clone());
    }
    let ones = Array::meta_of(to.clone(), dy.dtype());
    let wide = ones.broadcast_to(dy.shape()).map_err(|_| Error::Broadcast {
        op: "sum_to",
        from: to.clone(),
        to: dy.shape().clone(),
    })?;
    if dy.is_meta() {
        return Ok(ones);
    }
    if to.numel() == dy.numel() {
        return dy.reshape(&to);
    }
    if let Device::Cuda(_) = dy.device() {
        super::fused::real_dtype("sum_to", dy.dtype())?;
        let lead = dy.ndim() - to.ndim();
        let repeated = |d: &usize| *d < lead || (to[d - lead] == 1 && dy.shape()[*d] != 1);
        let dims: Vec<i64> = (0..dy.ndim()).filter(repeated).map(|d| d as i64).collect();
        return dy.sum(&dims, Keep::Yes)?.reshape(&to);
    }
    with_float!("sum_to", dy.dtype(), T => {
        let values = dy.values::<T>("sum_to")?;
        let mut sums = vec![0f64; to.numel()];
        sum_rows(&values, dy.shape(), wide.strides(), &mut sums);
        Array::build(to, |out: &mut [T]| {
            for (o, &s) in out.iter_mut().zip(&sums) {
                *o = T::from_f64(s);
            }
        })
    })
}

/// Gradient of `x.get(index)` with respect to x: `dy` added into zeros where it was read.
pub fn get_grad(dy: &Array, index: &[Index], shape: &[usize]) -> Result<Array> {
    let dx = Array::zeros_on(shape, dy.dtype(), dy.device())?;
    let resolved = crate::index::resolve(&dx, index)?;
    if resolved.placed.is_empty() {
        resolved.view.copy_from(dy)?;
    } else {
        super::index::write(&resolved, super::index::Written::Array(dy), Put::Accumulate)?;
    }
    Ok(dx)
}

/// Gradient of `x.set(index, value)` with respect to x: `dy` with zeros where x was overwritten.
pub fn set_grad(dy: &Array, index: &[Index]) -> Result<Array> {
    let dx = dy.copy()?;
    dx.set_scalar(index, 0.0)?;
    Ok(dx)
}

/// Gradient of `x.set(index, value)` with respect to the value: `dy` read where it was written, broadcasting
/// undone. Of several writes to one element each gets the whole gradient.
pub fn set_value_grad(dy: &Array, index: &[Index], shape: &[usize]) -> Result<Array> {
    let read = dy.get(index)?;
    let ones = shape.iter().take_while(|&&d| d == 1).count();
    sum_to(&read, &shape[ones..])?.copy()?.reshape(shape)
}

/// Gradient of [`Array::index_put`] with respect to the array.
pub fn index_put_grad(dy: &Array, indices: &[Option<Array>], put: Put) -> Result<Array> {
    match put {
        Put::Accumulate => Ok(dy.clone()),
        Put::Replace => dy.index_put(indices, &Array::zeros_on(&[], dy.dtype(), dy.device())?, put),
    }
}

/// Gradient of [`Array::index_put`] with respect to the value: `dy` read at the positions, broadcasting undone.
pub fn index_put_value_grad(dy: &Array, indices: &[Option<Array>], shape: &[usize]) -> Result<Array> {
    let size: usize = Shape::new(shape)?.numel();
    let flags = indices.iter().flatten().filter(|a| a.dtype() == DType::Bool && a.ndim() == 0);
    let mut keep = true;
    for flag in flags {
        keep &= flag.item()?.as_bool();
    }
    if !keep {
        return Array::zeros_on(shape, dy.dtype(), dy.device());
    }
    // A 0-d mask that is true leaves the array as it is.
    let rest: Vec<_> = indices
        .iter()
        .filter(|i| !i.as_ref().is_some_and(|a| a.dtype() == DType::Bool && a.ndim() == 0))
        .cloned()
        .collect();
    let placed = crate::index::place_optional(dy, &rest)?;
    let read = if placed.placed.is_empty() { dy.clone() } else { super::index::read(&placed)? };
    if size == 1 {
        return sum_to(&read, &[])?.copy()?.reshape(shape);
    }
    sum_to(&read, shape)?.copy()
}

/// Gradient of [`Array::index_select`]: `dy` added into zeros of the given shape, slice by slice.
pub fn index_select_grad(dy: &Array, dim: i64, index: &Array, shape: &[usize]) -> Result<Array> {
    let dx = Array::zeros_on(shape, dy.dtype(), dy.device())?;
    dx.index_add_assign(dim, index, dy)?;
    Ok(dx)
}

/// Gradient of [`Array::index_add`] with respect to the source; the gradient of the array is `dy` itself.
pub fn index_add_source_grad(dy: &Array, dim: i64, index: &Array, shape: &[usize]) -> Result<Array> {
    if dy.numel() == 0 {
        // Nothing was added, whatever the positions say.
        return Array::zeros_on(shape, dy.dtype(), dy.device());
    }
    dy.index_select(dim, index)?.reshape(shape)
}

/// Gradient of [`Array::index_fill`] and [`Array::index_copy`] with respect to the array.
pub fn index_fill_grad(dy: &Array, dim: i64, index: &Array) -> Result<Array> {
    dy.index_fill(dim, index, 0.0)
}

/// Gradient of [`Array::index_fill`] with respect to the value, a 0-d array.
pub fn index_fill_value_grad(dy: &Array, dim: i64, index: &Array) -> Result<Array> {
    if dy.numel() == 0 {
        return Array::zeros_on(&[], dy.dtype(), dy.device());
    }
    let lifted = if dy.ndim() == 0 { dy.unsqueeze(0)? } else { dy.clone() };
    let at = crate::view::resolve_dim("index_fill", dim, dy.ndim())?;
    let mut expression = vec![Index::all(); at];
    expression.push(Index::Take(index.reshape(&[index.numel()])?));
    sum_to(&lifted.get(&expression)?, &[])
}

/// Gradient of [`Array::index_copy`] with respect to the source.
pub fn index_copy_source_grad(dy: &Array, dim: i64, index: &Array, shape: &[usize]) -> Result<Array> {
    index_add_source_grad(dy, dim, index, shape)
}
