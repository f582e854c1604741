//! Checks and result buffers shared by the fused training operations.

use crate::array::{Array, Values};
use crate::buffer::HostBuffer;
use crate::cpu::real::Real;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::storage::Storage;
use planaria_layout::{DType, Dims, Shape};
use std::marker::PhantomData;

/// A result under construction, for kernels that write several at once. Every element must be written.
pub(crate) struct Fresh<T> {
    buffer: HostBuffer,
    shape: Shape,
    element: PhantomData<T>,
}

impl<T: Element> Fresh<T> {
    pub(crate) fn new(shape: &Shape) -> Result<Fresh<T>> {
        let buffer = HostBuffer::new(shape.numel() * size_of::<T>())?;
        Ok(Fresh { buffer, shape: shape.clone(), element: PhantomData })
    }

    pub(crate) fn slice(&mut self) -> &mut [T] {
        self.buffer.slice_mut()
    }

    pub(crate) fn finish(self) -> Array {
        Array::from_storage(Storage::host(self.buffer), T::DTYPE, self.shape)
    }
}

/// The device all operands live on. A 0-d array of the host may stand beside arrays of another device.
pub(crate) fn home(op: &'static str, operands: &[&Array]) -> Result<Device> {
    let mut home = None;
    for x in operands.iter().filter(|x| x.device() != Device::Cpu || x.ndim() > 0) {
        match home {
            Some(device) if device != x.device() => return Err(Error::mixed(op, device, x.device())),
            _ => home = Some(x.device()),
        }
    }
    Ok(home.unwrap_or_default())
}

/// True when all operands are on the meta device; an error when only some are.
pub(crate) fn all_meta(op: &'static str, first: &Array, others: &[Option<&Array>]) -> Result<bool> {
    match others.iter().flatten().find(|x| x.device() != first.device()) {
        Some(other) => Err(first.mixed_devices(op, other)),
        None => Ok(first.is_meta()),
    }
}

/// The dtype kernels compute in and statistics are kept in: f64 for f64, else f32.
pub(crate) fn real_dtype(op: &'static str, dtype: DType) -> Result<DType> {
    match dtype {
        DType::F64 => Ok(DType::F64),
        DType::F32 | DType::BF16 | DType::F16 => Ok(DType::F32),
        found => Err(Error::DType { op, found, expected: "f32, f64, bf16 or f16" }),
    }
}

pub(crate) fn check_shape(op: &'static str, x: &Array, want: &Shape, reason: &'static str) -> Result<()> {
    if x.shape() == want {
        return Ok(());
    }
    Err(Error::ShapeMismatch { op, lhs: x.shape().clone(), rhs: want.clone(), reason })
}

/// `y` must have the shape and dtype of `x`.
pub(crate) fn check_like(op: &'static str, y: &Array, x: &Array) -> Result<()> {
    y.check_dtype(op, x.dtype())?;
    check_shape(op, y, x.shape(), "they must be equal")
}

/// A learned parameter: its shape, and the dtype of `x` or f32.
pub(crate) fn check_param(op: &'static str, x: &Array, param: Option<&Array>, shape: &Shape) -> Result<()> {
    let Some(param) = param else { return Ok(()) };
    if param.dtype() != DType::F32 {
        param.check_dtype(op, x.dtype())?;
    }
    check_shape(op, param, shape, "parameter and normalised dims must be equal")
}

/// A saved statistic: its shape and the computing dtype of `x`.
pub(crate) fn check_stat(op: &'static str, x: &Array, stat: &Array, shape: &Shape) -> Result<()> {
    stat.check_dtype(op, real_dtype(op, x.dtype())?)?;
    check_shape(op, stat, shape, "statistics have one value per normalised row")
}

pub(crate) fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    if eps >= 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::argument(op, format!("eps must be finite and not negative, got {eps}")))
}

/// A parameter in the computing type.
pub(crate) fn param<R: Real>(op: &'static str, param: Option<&Array>) -> Result<Option<Values<R>>> {
    param.map(|p| p.cast(R::DTYPE)?.values::<R>(op)).transpose()
}

/// `shape` without its last `trailing` dims.
pub(crate) fn leading(shape: &Shape, trailing: usize) -> Result<Shape> {
    Ok(Shape::from_dims(Dims::from_slice(&shape[..shape.ndim() - trailing]))?)
}

/// Integer ids of any shape as i64, all below `size` except those that `skip` accepts.
pub(crate) fn ids(
    op: &'static str,
    ids: &Array,
    size: usize,
    skip: impl Fn(i64) -> bool,
) -> Result<Values<i64>> {
    let values = ids.cast(DType::I64)?.values::<i64>(op)?;
    let wrong = |&(_, &id): &(usize, &i64)| (id < 0 || id as u64 >= size as u64) && !skip(id);
    match values.iter().enumerate().find(wrong) {
        Some((position, &id)) => Err(Error::IdOutOfRange { op, id, position, size }),
        None => Ok(values),
    }
}

/// [`ids`] of a device: what is out of range is reported when the host next waits.
pub(crate) fn check_ids_late(op: &'static str, ids: &Array, size: usize, skip: Option<i64>) -> Result<()> {
    if size == 0 && ids.numel() > 0 {
        let id = ids.flatten(0, -1)?.narrow(0, 0, 1)?.item()?.as_int() as i64;
        return Err(Error::IdOutOfRange { op, id, position: 0, size });
    }
    crate::cuda::check_within(
        ids,
        skip,
        crate::cuda::late::note_of(&Error::IdOutOfRange { op, id: 0, position: 0, size }),
    )
}

/// Ids must be integers that fit an i64.
pub(crate) fn check_ids(op: &'static str, ids: &Array) -> Result<()> {
    match ids.dtype() {
        DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U32 | DType::U16 | DType::U8 => Ok(()),
        found => Err(Error::DType { op, found, expected: "i64, i32 or a smaller integer" }),
    }
}
