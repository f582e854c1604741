//! New tensors from numbers alone: constants, ranges and unit matrices, whole on this rank or under a layout.

use crate::error::{Error, Result};
use crate::tensor::Tensor;
use crate::world::World;
use planaria_array::ops::{self, Compare};
use planaria_array::{Array, DType, Scalar};
use planaria_layout::{Layout, Region};

impl Tensor {
    /// Zeros that this rank has whole.
    pub fn zeros(shape: &[usize], dtype: DType) -> Result<Tensor> {
        Ok(Tensor::new(Array::zeros(shape, dtype)?))
    }

    /// Ones that this rank has whole.
    pub fn ones(shape: &[usize], dtype: DType) -> Result<Tensor> {
        Ok(Tensor::new(Array::ones(shape, dtype)?))
    }

    /// One value everywhere, that this rank has whole.
    pub fn filled(shape: &[usize], value: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
        Ok(Tensor::new(Array::full(shape, value, dtype)?))
    }

    /// One number without dims.
    pub fn scalar(value: impl Into<Scalar>, dtype: DType) -> Result<Tensor> {
        Ok(Tensor::new(Array::scalar(value, dtype)?))
    }

    /// `start, start + step, ...` up to but without `end`, that this rank has whole.
    pub fn arange(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> Result<Tensor> {
        Ok(Tensor::new(Array::arange(start, end, step, dtype)?))
    }

    /// `count` values evenly spaced from `start` to `end`, both included, that this rank has whole.
    pub fn linspace(start: f64, end: f64, count: usize, dtype: DType) -> Result<Tensor> {
        Ok(Tensor::new(Array::linspace(start, end, count, dtype)?))
    }

    /// Ones on the main diagonal, zeros elsewhere, that this rank has whole.
    pub fn eye(rows: usize, columns: usize, dtype: DType) -> Result<Tensor> {
        Ok(Tensor::new(Array::eye(rows, columns, dtype)?))
    }

    /// `start, start + step, ...` under a layout of one dim, whose size says how many.
    pub fn arange_on(layout: &Layout, start: i64, step: i64, dtype: DType, world: &World) -> Result<Tensor> {
        let &[_] = layout.shape().dims() else { return Err(dims_wanted("arange_on", layout, 1)) };
        Tensor::by_box("arange_on", layout, dtype, world, |region| count_from(region, 0, start, step, dtype))
    }

    /// Ones on the main diagonal, zeros elsewhere, under a layout of two dims.
    pub fn eye_on(layout: &Layout, dtype: DType, world: &World) -> Result<Tensor> {
        let &[_, _] = layout.shape().dims() else { return Err(dims_wanted("eye_on", layout, 2)) };
        Tensor::by_box("eye_on", layout, dtype, world, |region| {
            let rows = count_from(region, 0, 0, 1, DType::I64)?.reshape(&[region.len(0), 1])?;
            let columns = count_from(region, 1, 0, 1, DType::I64)?;
            Ok(ops::compare(Compare::Eq, &rows, &columns)?.cast(dtype)?)
        })
    }

    /// A tensor whose every box is made by `make`.
    fn by_box(
        what: &'static str,
        layout: &Layout,
        dtype: DType,
        world: &World,
        make: impl Fn(&Region) -> Result<Array>,
    ) -> Result<Tensor> {
        if !layout.partial_axes().is_empty() {
            return Err(Error::Pending { what, layout: Box::new(layout.clone()) });
        }
        let piece = layout.piece(world.rank())?;
        if world.is_supposed() {
            return Tensor::from_piece(Array::meta(&piece.extents(), dtype)?, layout, world);
        }
        let out = Array::zeros(&piece.extents(), dtype)?;
        for region in piece.boxes() {
            let at = piece.locate(&region).ok_or(Error::Bug("a piece does not have its own box"))?;
            out.region(&at)?.copy_from(&make(&region)?)?;
        }
        Tensor::from_piece(out, layout, world)
    }
}

/// The numbers that a dim's positions inside a box count.
fn count_from(region: &Region, dim: usize, start: i64, step: i64, dtype: DType) -> Result<Array> {
    let (start, step) = (i128::from(start), i128::from(step));
    let (low, len) = (region.lo()[dim] as i128, region.len(dim));
    if step == 0 {
        return Ok(Array::full(&[len], Scalar::Int(start), dtype)?);
    }
    let first = start + low * step;
    Ok(Array::arange(Scalar::Int(first), Scalar::Int(first + len as i128 * step), Scalar::Int(step), dtype)?)
}

fn dims_wanted(op: &'static str, layout: &Layout, ndim: usize) -> Error {
    Error::Argument { op, message: format!("`{layout}` has {} dims, not {ndim}", layout.shape().ndim()) }
}
