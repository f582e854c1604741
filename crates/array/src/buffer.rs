//! Owned memory of one device, seen as bytes or as a slice of any element type.
#![allow(unsafe_code)]

use crate::alloc::{Block, allocate};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::foreign::Foreign;
use bytemuck::Pod;
use std::ptr::NonNull;

/// A block of memory on one device.
pub(crate) enum Buffer {
    Host(HostBuffer),
    Cuda(planaria_cuda::Block),
    /// No memory: only the size is known.
    Meta,
}

/// Host memory, always initialised: our own, 64-byte aligned, or other code's, aligned for its elements.
pub(crate) struct HostBuffer {
    memory: Memory,
    bytes: usize,
}

enum Memory {
    Own(Block),
    Foreign(Foreign),
}

impl HostBuffer {
    /// Memory with unspecified (but initialised) contents, for results that are written in full.
    pub(crate) fn new(bytes: usize) -> Result<HostBuffer> {
        let block = allocate(bytes).ok_or(Error::OutOfMemory { bytes, device: Device::Cpu })?;
        Ok(HostBuffer { memory: Memory::Own(block), bytes })
    }

    /// Memory of other code, as it is.
    pub(crate) fn foreign(memory: Foreign) -> HostBuffer {
        let bytes = memory.bytes();
        HostBuffer { memory: Memory::Foreign(memory), bytes }
    }

    /// Where the memory starts.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Own(block) => block.ptr(),
            Memory::Foreign(memory) => memory.start(),
        }
    }

    /// Memory filled with zero bytes.
    pub(crate) fn zeroed(bytes: usize) -> Result<HostBuffer> {
        let mut buffer = HostBuffer::new(bytes)?;
        if !matches!(&buffer.memory, Memory::Own(block) if block.is_zero()) {
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
        // SAFETY: the memory holds at least `bytes` initialised bytes, aligned to 64 >= align_of::<T>() or, when it is
        // foreign, for the elements it is read as; T accepts any bit pattern, and `&self` keeps our writers away. Code
        // outside that shares pinned memory may write while we read: that race it has with any reader, and what it
        // tears is a number.
        unsafe { std::slice::from_raw_parts(self.ptr().as_ptr().cast(), len) }
    }

    /// The whole memory as elements, for writing.
    pub(crate) fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        let len = self.bytes / size_of::<T>();
        // SAFETY: as in `slice`, and `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr().as_ptr().cast(), len) }
    }

    /// Puts `values` over the whole memory although others may be reading it: they see old or new elements.
    pub(crate) fn overwrite(&self, values: &HostBuffer) {
        let bytes = self.bytes.min(values.bytes);
        // SAFETY: both memories have that many bytes and are different ones; the storage's lock keeps other writers
        // of ours away, and pinned memory is shared by agreement (see `slice`).
        unsafe { std::ptr::copy_nonoverlapping(values.ptr().as_ptr(), self.ptr().as_ptr(), bytes) };
    }

    /// A copy in memory of its own.
    pub(crate) fn try_clone(&self) -> Result<HostBuffer> {
        let mut copy = HostBuffer::new(self.bytes)?;
        planaria_cpu::pool::copy_slice(copy.slice_mut::<u8>(), self.slice::<u8>());
        Ok(copy)
    }
}
