//! Copying, filling and making contiguous.

use crate::array::Array;
use crate::cpu::copy::{self, Geometry};
use crate::element::{Element, Scalar, with_dtype, with_size};
use crate::error::{Error, Result};

impl Array {
    pub(crate) fn geometry(&self) -> Geometry<'_> {
        Geometry { offset: self.offset(), shape: self.shape(), strides: self.strides() }
    }

    /// This array if its elements already lie in row-major order, else a copy in which they do.
    pub fn contiguous(&self) -> Result<Array> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// A contiguous copy in storage of its own.
    pub fn copy(&self) -> Result<Array> {
        if self.is_meta() {
            return Ok(Array::meta_of(self.shape().clone(), self.dtype()));
        }
        let host = self.host("copy")?;
        with_size!(self.dtype(), T => Array::build_bytes::<T>(self.shape().clone(), self.dtype(), |out| {
            copy::to_contiguous(host.slice::<T>(), self.geometry(), out);
        }))
    }

    /// Overwrites this view with `src`, broadcast to its shape. Other views of the storage see the change.
    pub fn copy_from(&self, src: &Array) -> Result<()> {
        src.check_dtype("copy_from", self.dtype())?;
        let mut src = src.broadcast_to(self.shape()).map_err(|_| Error::Broadcast {
            op: "copy_from",
            from: src.shape().clone(),
            to: self.shape().clone(),
        })?;
        if self.is_meta() || src.is_meta() {
            return if self.device() == src.device() { Ok(()) } else { Err(self.mixed_devices("copy_from")) };
        }
        if src.shares_storage(self) {
            // Holding our own bytes for reading would make the write copy all of them.
            src = src.copy()?;
        }
        let host = src.host("copy_from")?;
        let written = with_size!(self.dtype(), T => self.write::<T, _>("copy_from", |dst| {
            copy::strided(dst, self.geometry(), host.slice::<T>(), src.geometry())
        })?);
        self.check_written("copy_from", written)
    }

    /// Overwrites every element of this view.
    pub fn fill(&self, value: impl Into<Scalar>) -> Result<()> {
        let value = value.into();
        if self.is_meta() {
            return Ok(());
        }
        let written = with_dtype!(self.dtype(), T => self.write::<T, _>("fill", |dst| {
            copy::fill(dst, self.geometry(), T::from_scalar(value))
        })?);
        self.check_written("fill", written)
    }

    pub(crate) fn check_written(&self, op: &'static str, written: bool) -> Result<()> {
        if written { Ok(()) } else { Err(Error::OverlappingWrite { op, shape: self.shape().clone() }) }
    }

    pub(crate) fn mixed_devices(&self, op: &'static str) -> Error {
        Error::Device { op, device: self.device(), hint: "all operands must live on one device" }
    }
}
