//! Owned memory of one device, seen as bytes or as a slice of any element type.
#![allow(unsafe_code)]

use crate::alloc::{Block, allocate};
use crate::device::Device;
use crate::error::{Error, Result};
use bytemuck::Pod;

/// A block of memory on one device.
pub(crate) enum Buffer {
    Host(HostBuffer),
    Cuda(planaria_cuda::Block),
    /// No memory: only the size is known.
    Meta,
}

/// Host memory, 64-byte aligned, always initialised.
pub(crate) struct HostBuffer {
    block: Block,
    bytes: usize,
}

impl HostBuffer {
    /// Memory with unspecified (but initialised) contents, for results that are written in full.
    pub(crate) fn new(bytes: usize) -> Result<HostBuffer> {
        let block = allocate(bytes).ok_or(Error::OutOfMemory { bytes, device: Device::Cpu })?;
        Ok(HostBuffer { block, bytes })
    }

    /// Memory filled with zero bytes.
    pub(crate) fn zeroed(bytes: usize) -> Result<HostBuffer> {
        let mut buffer = HostBuffer::new(bytes)?;
        if !buffer.block.is_zero() {
            buffer.slice_mut::<u8>().fill(0);
        }
        Ok(buffer)
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The whole memory as elements.
    pub(crate) fn slice<T: Pod>(&self) -> &[T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: the block holds at least `bytes` initialised bytes, aligned to 64 >= align_of::<T>(),
        // T accepts any bit pattern, and `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.block.ptr().as_ptr().cast(), len) }
    }

    /// The whole memory as elements, for writing.
    pub(crate) fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: as in `slice`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.block.ptr().as_ptr().cast(), len) }
    }

    /// A copy in memory of its own.
    pub(crate) fn try_clone(&self) -> Result<HostBuffer> {
        let mut copy = HostBuffer::new(self.bytes)?;
        crate::pool::copy_slice(copy.slice_mut::<u8>(), self.slice::<u8>());
        Ok(copy)
    }
}
