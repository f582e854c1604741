//! Embedding lookup and its gradient.

use super::fused::{all_meta, check_ids, check_shape, ids as checked_ids, real_dtype};
use crate::array::Array;
use crate::cpu::embedding as kernel;
use crate::cpu::real::with_float;
use crate::device::Device;
use crate::element::with_size;
use crate::error::{Error, Result};
use planaria_layout::{Dims, Shape};

/// Rows of `table` (`[vocabulary, width]`, any dtype) by id: the result has shape `[ids.., width]`.
pub fn embedding(table: &Array, ids: &Array) -> Result<Array> {
    let op = "embedding";
    if table.ndim() != 2 {
        let what = format!("the table must be [vocabulary, width], got shape {}", table.shape());
        return Err(Error::argument(op, what));
    }
    check_ids(op, ids)?;
    let (size, width) = (table.shape()[0], table.shape()[1]);
    let shape = looked_up(ids.shape(), width)?;
    if all_meta(op, table, &[Some(ids)])? {
        return Ok(Array::meta_of(shape, table.dtype()));
    }
    if let Device::Cuda(_) = table.device() {
        return on_cuda::look_up(op, table, ids, &shape);
    }
    let ids = checked_ids(op, ids, size, |_| false)?;
    let table = table.contiguous()?;
    let host = table.host(op)?;
    with_size!(table.dtype(), T => Array::build_bytes::<T>(shape, table.dtype(), |out| {
        let start = table.offset().min(host.slice::<T>().len());
        kernel::gather(&host.slice::<T>()[start..], &ids, width, out);
    }))
}

/// Gradient of the table of [`embedding`]: row `id` is the sum of `dy` over the positions that hold `id`, added
/// in row-major order whatever the number of threads. The row `padding` gets no gradient.
pub fn embedding_grad(dy: &Array, ids: &Array, vocabulary: usize, padding: Option<usize>) -> Result<Array> {
    let op = "embedding_grad";
    check_ids(op, ids)?;
    real_dtype(op, dy.dtype())?;
    let Some(&width) = dy.shape().last() else {
        return Err(Error::argument(op, "the gradient must be [ids.., width], got a 0-d array"));
    };
    check_shape(
        op,
        dy,
        &looked_up(ids.shape(), width)?,
        "the gradient has the shape of the ids and a width",
    )?;
    let shape = Shape::new(&[vocabulary, width])?;
    if let Some(row) = padding.filter(|&row| row >= vocabulary) {
        let what = format!("padding row {row} is outside a vocabulary of {vocabulary}");
        return Err(Error::argument(op, what));
    }
    if all_meta(op, dy, &[Some(ids)])? {
        return Ok(Array::meta_of(shape, dy.dtype()));
    }
    if let Device::Cuda(_) = dy.device() {
        return on_cuda::add_up(op, dy, ids, shape, padding);
    }
    let ids = checked_ids(op, ids, vocabulary, |_| false)?;
    with_float!(op, dy.dtype(), T => {
        let dy = dy.values::<T>(op)?;
        Array::build(shape, |grad: &mut [T]| kernel::scatter(&dy, &ids, padding, width, grad))
    })
}

mod on_cuda {
    use super::*;
    use crate::cuda::{Column, Rule, put_rows, take_rows};
    use crate::ops::fused::check_ids_late;
    use planaria_layout::DType;

    fn column(ids: &Array, extent: usize) -> Result<[Column; 1]> {
        let values = ids.cast(DType::I64)?.contiguous()?;
        Ok([Column { values, extent, stride: 1, entry: 0, dim: 0 }])
    }

    pub(super) fn look_up(op: &'static str, table: &Array, ids: &Array, shape: &Shape) -> Result<Array> {
        let (size, width) = (table.shape()[0], table.shape()[1]);
        check_ids_late(op, ids, size, None)?;
        take_rows(op, &table.contiguous()?, width, &column(ids, size)?, ids.numel(), shape)
    }

    pub(super) fn add_up(
        op: &'static str,
        dy: &Array,
        ids: &Array,
        shape: Shape,
        padding: Option<usize>,
    ) -> Result<Array> {
        check_ids_late(op, ids, shape[0], None)?;
        let grad = Array::zeros_on(&shape, dy.dtype(), dy.device())?;
        if dy.numel() > 0 {
            let columns = column(ids, shape[0])?;
            put_rows(op, &grad, shape[1], (&columns, ids.numel()), &dy.contiguous()?, Rule::ADD)?;
        }
        if let Some(row) = padding {
            grad.narrow(0, row, 1)?.fill(0)?;
        }
        Ok(grad)
    }
}

fn looked_up(ids: &Shape, width: usize) -> Result<Shape> {
    let mut dims = Dims::from_slice(ids);
    dims.push(width);
    Ok(Shape::from_dims(dims)?)
}
