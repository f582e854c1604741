//! Arrays on a device: made there, moved there and back.

use crate::alloc::{MemoryStats, memory_stats};
use crate::array::Array;
use crate::buffer::HostBuffer;
use crate::cuda;
use crate::device::Device;
use crate::element::Scalar;
use crate::error::Result;
use crate::storage::{Storage, no_bytes};
use planaria_layout::{DType, Shape};

impl Array {
    /// An array on a device whose elements have unspecified values, to be written in full.
    pub fn empty_on(shape: &[usize], dtype: DType, device: Device) -> Result<Array> {
        match device {
            Device::Cpu => Array::empty(shape, dtype),
            Device::Meta => Array::meta(shape, dtype),
            // Kernels rely on bools that are 0 or 1.
            Device::Cuda(_) if dtype == DType::Bool => Array::zeros_on(shape, dtype, device),
            Device::Cuda(_) => Array::unwritten("empty", Shape::new(shape)?, dtype, device),
        }
    }

    /// An array of zeros on a device.
    pub fn zeros_on(shape: &[usize], dtype: DType, device: Device) -> Result<Array> {
        match device {
            Device::Cpu => Array::zeros(shape, dtype),
            Device::Meta => Array::meta(shape, dtype),
            Device::Cuda(_) => {
                let array = Array::unwritten("zeros", Shape::new(shape)?, dtype, device)?;
                cuda::zero(&array)?;
                Ok(array)
            }
        }
    }

    /// An array on a device filled with one value.
    pub fn full_on(shape: &[usize], value: impl Into<Scalar>, dtype: DType, device: Device) -> Result<Array> {
        match device {
            Device::Cpu => Array::full(shape, value, dtype),
            Device::Meta => Array::meta(shape, dtype),
            Device::Cuda(_) => {
                let array = Array::unwritten("full", Shape::new(shape)?, dtype, device)?;
                array.fill(value)?;
                Ok(array)
            }
        }
    }

    /// A fresh contiguous array whose every element the caller writes.
    pub(crate) fn unwritten(op: &'static str, shape: Shape, dtype: DType, device: Device) -> Result<Array> {
        let storage = Storage::on(device, op, shape.numel() * dtype.size())?;
        Ok(Array::from_storage(storage, dtype, shape))
    }

    /// This array on another device: a view where it is there already, else a contiguous copy. A copy to the host
    /// waits for the work that makes the values, and answers bad values that kernels found before.
    pub fn to(&self, device: Device) -> Result<Array> {
        match (self.device(), device) {
            (from, to) if from == to => Ok(self.clone()),
            (_, Device::Meta) => Ok(self.to_meta()),
            (Device::Meta, _) => Err(no_bytes("to", Device::Meta)),
            (Device::Cpu, Device::Cuda(_)) => {
                let array = Array::unwritten("to", self.shape().clone(), self.dtype(), device)?;
                cuda::upload(&array, &self.contiguous()?.bytes()?)?;
                Ok(array)
            }
            (Device::Cuda(_), Device::Cpu) => {
                let here = self.contiguous()?;
                let mut buffer = HostBuffer::new(self.numel() * self.dtype().size())?;
                cuda::download(&here, buffer.slice_mut())?;
                Ok(Array::from_storage(Storage::host(buffer), self.dtype(), self.shape().clone()))
            }
            // Between two devices by way of the host: right on every machine.
            (Device::Cuda(_), Device::Cuda(_)) => self.to(Device::Cpu)?.to(device),
            (Device::Cpu, Device::Cpu) => Ok(self.clone()),
        }
    }
}

/// Waits for all work the calling thread has queued on a device; answers bad values that kernels found before.
pub fn synchronize(device: Device) -> Result<()> {
    match device {
        Device::Cpu | Device::Meta => Ok(()),
        Device::Cuda(ordinal) => cuda::synchronize(ordinal),
    }
}

/// Prepares a device for snapshots of this many bytes that are copied to the host while work goes on: takes the memory that
/// writers move to meanwhile, and the host's memory that copies go through. Later both would stop the device for a while.
pub fn prepare_snapshots(device: Device, bytes: usize) -> Result<()> {
    match device {
        Device::Cpu | Device::Meta => Ok(()),
        Device::Cuda(ordinal) => cuda::prepare_snapshots(ordinal, bytes),
    }
}

/// How many CUDA devices this process sees; an error without a driver.
pub fn cuda_devices() -> Result<u32> {
    Ok(planaria_cuda::device_count()?)
}

/// Bytes of arrays on a device, at most, and kept for reuse, of this process.
pub fn device_memory_stats(device: Device) -> Result<MemoryStats> {
    match device {
        Device::Cpu => Ok(memory_stats()),
        Device::Meta => Ok(MemoryStats { live: 0, peak: 0, cached: 0 }),
        Device::Cuda(ordinal) => cuda::memory_stats(ordinal),
    }
}
