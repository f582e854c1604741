//! Copying, filling and making contiguous.

use crate::array::Array;
use crate::cpu::copy::{self, Geometry};
use crate::cuda;
use crate::device::Device;
use crate::element::{Element, Scalar, with_dtype, with_size};
use crate::error::{Error, Result};
use crate::ops::fused::home;

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
        match self.device() {
            Device::Meta => Ok(Array::meta_of(self.shape().clone(), self.dtype())),
            Device::Cuda(_) => cuda::copy(self),
            Device::Cpu => {
                let host = self.host("copy")?;
                with_size!(self.dtype(), T => Array::build_bytes::<T>(self.shape().clone(), self.dtype(), |out| {
                    copy::to_contiguous(host.slice::<T>(), self.geometry(), out);
                }))
            }
        }
    }

    /// Overwrites this view with `src`, broadcast to its shape. Other views of the storage see the change.
    pub fn copy_from(&self, given: &Array) -> Result<()> {
        given.check_dtype("copy_from", self.dtype())?;
        let mut src = given.broadcast_to(self.shape()).map_err(|_| Error::Broadcast {
            op: "copy_from",
            from: given.shape().clone(),
            to: self.shape().clone(),
        })?;
        let home = home("copy_from", &[self, given])?;
        if home != self.device() {
            return Err(self.mixed_devices("copy_from", given));
        }
        if home == Device::Meta {
            return Ok(());
        }
        if src.shares_storage(self) {
            // Holding our own bytes for reading would make the write copy all of them.
            src = src.copy()?;
        }
        if let Device::Cuda(_) = home {
            return cuda::copy_into(self, &src);
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
        match self.device() {
            Device::Meta => return Ok(()),
            Device::Cuda(_) => return cuda::fill(self, value),
            Device::Cpu => {}
        }
        let written = with_dtype!(self.dtype(), T => self.write::<T, _>("fill", |dst| {
            copy::fill(dst, self.geometry(), T::from_scalar(value))
        })?);
        self.check_written("fill", written)
    }

    pub(crate) fn check_written(&self, op: &'static str, written: bool) -> Result<()> {
        if written { Ok(()) } else { Err(Error::OverlappingWrite { op, shape: self.shape().clone() }) }
    }

    pub(crate) fn mixed_devices(&self, op: &'static str, other: &Array) -> Error {
        Error::mixed(op, self.device(), other.device())
    }
}
