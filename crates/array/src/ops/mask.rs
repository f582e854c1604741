//! Masks: select, fill, scatter, and the positions of what is not zero.

use super::index::{bits, cells, dense};
use crate::array::Array;
use crate::cpu::mask;
use crate::cpu::strided::OperandMut;
use crate::cuda::Kept;
use crate::device::Device;
use crate::element::{Bool, Scalar, with_size};
use crate::error::{Error, Result};
use crate::ops::fused::home;
use crate::ops::where_;
use crate::view::broadcast_shapes;
use planaria_layout::{DType, Shape};

pub(crate) fn check_mask(op: &'static str, mask: &Array) -> Result<()> {
    match mask.dtype() {
        DType::Bool => Ok(()),
        found => Err(Error::DType { op, found, expected: "bool for a mask" }),
    }
}

impl Array {
    /// This array and a mask, both broadcast to their common shape.
    fn with_mask(&self, op: &'static str, mask: &Array) -> Result<(Array, Array)> {
        check_mask(op, mask)?;
        let shape = broadcast_shapes(op, self.shape(), mask.shape())?;
        Ok((self.broadcast_to(&shape)?, mask.broadcast_to(&shape)?))
    }

    /// The elements where `mask` is true, in row-major order, as a one-dim array. Both are broadcast together.
    pub fn masked_select(&self, mask: &Array) -> Result<Array> {
        let (x, mask) = self.with_mask("masked_select", mask)?;
        select(&x, &mask)
    }

    /// A copy with `value` where `mask` is true. Both are broadcast together.
    pub fn masked_fill(&self, mask: &Array, value: impl Into<Scalar>) -> Result<Array> {
        let (x, mask) = self.with_mask("masked_fill", mask)?;
        let value = value.into();
        match home("masked_fill", &[&x, &mask])? {
            Device::Meta => return Ok(Array::meta_of(x.shape().clone(), x.dtype())),
            Device::Cuda(_) => return where_(&mask, &Array::scalar(value, x.dtype())?, &x),
            Device::Cpu => {}
        }
        let (data, flags) = (x.host("masked_fill")?, mask.host("masked_fill")?);
        with_size!(x.dtype(), T => Array::build_bytes::<T>(x.shape().clone(), x.dtype(), |out| {
            let value = bits(value, x.dtype());
            mask::fill(&x.operand::<T>(&data), &mask.operand::<Bool>(&flags), value, out);
        }))
    }

    /// [`Array::masked_fill`] with the value in a 0-d array.
    pub fn masked_fill_with(&self, mask: &Array, value: &Array) -> Result<Array> {
        value.check_dtype("masked_fill", self.dtype())?;
        if value.ndim() != 0 {
            return Err(Error::ShapeMismatch {
                op: "masked_fill",
                lhs: value.shape().clone(),
                rhs: Shape::default(),
                reason: "the value must be 0-d",
            });
        }
        if self.is_meta() || value.is_meta() {
            let (x, _) = self.with_mask("masked_fill", mask)?;
            return Ok(Array::meta_of(x.shape().clone(), x.dtype()));
        }
        self.masked_fill(mask, value.item()?)
    }

    /// Writes `value` where `mask`, broadcast to this array's shape, is true.
    pub fn masked_fill_assign(&self, mask: &Array, value: impl Into<Scalar>) -> Result<()> {
        check_mask("masked_fill", mask)?;
        let mask = mask.broadcast_to(self.shape()).map_err(|_| Error::Broadcast {
            op: "masked_fill",
            from: mask.shape().clone(),
            to: self.shape().clone(),
        })?;
        if self.is_meta() {
            return Ok(());
        }
        fill_view(self, &mask, value.into())
    }

    /// A copy in which the elements where `mask` is true are replaced by those of `source` in row-major order.
    /// This array and the mask are broadcast together; `source` may be longer than needed.
    pub fn masked_scatter(&self, mask: &Array, source: &Array) -> Result<Array> {
        let (x, mask) = self.with_mask("masked_scatter", mask)?;
        let out = x.copy()?;
        scatter_into(&out, &mask, source)?;
        Ok(out)
    }

    /// [`Array::masked_scatter`] in place; the mask is broadcast to this array's shape.
    pub fn masked_scatter_assign(&self, mask: &Array, source: &Array) -> Result<()> {
        check_mask("masked_scatter", mask)?;
        let mask = mask.broadcast_to(self.shape())?;
        if self.is_contiguous() {
            return scatter_into(self, &mask, source);
        }
        let out = self.copy()?;
        scatter_into(&out, &mask, source)?;
        self.copy_from(&out)
    }

    /// Coordinates of the elements that are not zero, one row each, in row-major order: shape `[count, ndim]`.
    pub fn nonzero(&self) -> Result<Array> {
        let flags = if self.dtype() == DType::Bool { self.clone() } else { self.cast(DType::Bool)? };
        let ndim = self.ndim();
        let shape = self.shape().clone();
        let flat: Vec<isize> = crate::array::contiguous_strides(&shape).to_vec();
        if let Device::Cuda(_) = self.device() {
            return coordinates(&Kept::count("nonzero", &flags)?.positions()?, &shape);
        }
        let at = kept_positions(&flags, &flat)?;
        let at = at.values::<i64>("nonzero")?;
        Array::build(Shape::new(&[at.len(), ndim])?, |out: &mut [i64]| {
            for (row, &position) in out.chunks_exact_mut(ndim.max(1)).zip(at.iter()) {
                let mut rest = position as usize;
                for d in (0..ndim).rev() {
                    row[d] = (rest % shape[d]) as i64;
                    rest /= shape[d];
                }
            }
        })
    }
}

/// Coordinates of row-major positions, one row each.
fn coordinates(at: &Array, shape: &Shape) -> Result<Array> {
    if shape.ndim() == 0 {
        return Array::zeros_on(&[at.numel(), 0], DType::I64, at.device());
    }
    let mut step = shape.numel();
    let mut columns = Vec::new();
    for &size in shape.iter() {
        step /= size.max(1);
        let number = |n: usize| Array::scalar(n.max(1) as i64, DType::I64);
        columns.push(at.floor_div(&number(step)?)?.rem(&number(size)?)?);
    }
    crate::ops::stack(&columns.iter().collect::<Vec<_>>(), 1)
}

/// Where the true elements of a mask lie in a view of its shape with the given strides, in row-major order.
pub(crate) fn kept_positions(mask: &Array, strides: &[isize]) -> Result<Array> {
    let host = mask.host("mask")?;
    let flat = mask.operand::<Bool>(&host);
    let counts = mask::count(&flat);
    Array::build(Shape::new(&[counts.iter().sum()])?, |out: &mut [i64]| {
        mask::positions(&flat, &counts, out, mask.shape(), strides);
    })
}

/// Elements of `x` where a mask of the same shape is true.
pub(crate) fn select(x: &Array, mask: &Array) -> Result<Array> {
    if let Device::Cuda(_) = home("masked_select", &[x, mask])? {
        let mask = mask.to(x.device())?;
        return Kept::count("masked_select", &mask)?.select(x);
    }
    let (data, flags) = (x.host("masked_select")?, mask.host("masked_select")?);
    let flags = mask.operand::<Bool>(&flags);
    let counts = mask::count(&flags);
    let shape = Shape::new(&[counts.iter().sum()])?;
    with_size!(x.dtype(), T => Array::build_bytes::<T>(shape, x.dtype(), |out| {
        mask::select(&x.operand::<T>(&data), &flags, &counts, out);
    }))
}

/// Writes one value through a mask of the view's shape.
pub(crate) fn fill_view(view: &Array, mask: &Array, value: Scalar) -> Result<()> {
    if let Device::Cuda(_) = home("masked_fill", &[view, mask])? {
        return view.copy_from(&where_(mask, &Array::scalar(value, view.dtype())?, view)?);
    }
    let flags = if mask.shares_storage(view) { mask.copy()? } else { mask.clone() };
    let host = flags.host("masked_fill")?;
    let written = with_size!(view.dtype(), T => view.write::<T, _>("masked_fill", |data| {
        let Some(dst) = OperandMut::new(data, view.offset(), view.shape(), view.strides()) else { return false };
        mask::fill_in_place(&dst, &flags.operand::<Bool>(&host), bits(value, view.dtype()));
        true
    })?);
    view.check_written("masked_fill", written)
}

/// Writes values through a mask of the contiguous view's shape; `None` when they need broadcasting.
pub(crate) fn write_values(view: &Array, mask: &Array, value: &Array) -> Option<Result<()>> {
    if value.ndim() != 1 || value.is_meta() {
        return None;
    }
    let write = || -> Result<bool> {
        let flags = if mask.shares_storage(view) { mask.copy()? } else { mask.clone() };
        if let Device::Cuda(_) = home("index_put", &[view, &flags, value])? {
            let kept = Kept::count("index_put", &flags)?;
            return Ok(kept.total == value.numel() && scatter_kept(view, &kept, value)?);
        }
        let host = flags.host("index_put")?;
        let flags = flags.operand::<Bool>(&host);
        let counts = mask::count(&flags);
        if counts.iter().sum::<usize>() != value.numel() {
            return Ok(false);
        }
        spread(view, &flags, &counts, value)?;
        Ok(true)
    };
    match write() {
        Ok(false) => None,
        Ok(true) => Some(Ok(())),
        Err(error) => Some(Err(error)),
    }
}

fn scatter_kept(view: &Array, kept: &Kept, value: &Array) -> Result<bool> {
    let value = if value.shares_storage(view) { value.copy()? } else { value.clone() };
    kept.scatter(view, &value)?;
    Ok(true)
}

fn spread(
    view: &Array,
    flags: &crate::cpu::strided::Operand<'_, Bool>,
    counts: &[usize],
    value: &Array,
) -> Result<()> {
    let value = if value.shares_storage(view) { value.copy()? } else { value.contiguous()? };
    let source = value.host("masked_scatter")?;
    with_size!(view.dtype(), T => view.write::<T, _>("masked_scatter", |data| {
        let src = cells::<T>(&value, &source);
        let start = if view.numel() > 0 { view.offset() } else { 0 };
        mask::scatter(&mut data[start..start + view.numel()], flags, counts, src);
    }))
}

fn scatter_into(out: &Array, mask: &Array, source: &Array) -> Result<()> {
    source.check_dtype("masked_scatter", out.dtype())?;
    if out.is_meta() {
        return Ok(());
    }
    let mask = if mask.shares_storage(out) { mask.copy()? } else { mask.clone() };
    let enough = |wanted: usize| match wanted <= source.numel() {
        true => Ok(()),
        false => Err(Error::ShapeMismatch {
            op: "masked_scatter",
            lhs: Shape::new(&[wanted])?,
            rhs: source.shape().clone(),
            reason: "the source has fewer elements than the mask keeps",
        }),
    };
    if let Device::Cuda(_) = home("masked_scatter", &[out, &mask, source])? {
        let kept = Kept::count("masked_scatter", &mask)?;
        enough(kept.total)?;
        return scatter_kept(out, &kept, source).map(drop);
    }
    let host = mask.host("masked_scatter")?;
    let flags = mask.operand::<Bool>(&host);
    let counts = mask::count(&flags);
    enough(counts.iter().sum())?;
    spread(out, &flags, &counts, &dense(source, source.shape())?)
}
