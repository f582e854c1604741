//! Host memory that the device copies to and from without the driver's help.
#![allow(unsafe_code)]

use crate::context::Context;
use crate::driver::{self, Raw, RawStream};
use crate::error::Result;
use crate::stream::Event;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Pinned host memory, never write-combined, so that the host reads it at full speed.
pub struct Pinned {
    pointer: NonNull<u8>,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: a Pinned owns its memory; nothing in it is tied to a thread.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.bytes)
    }
}

impl Pinned {
    /// Zeroed memory. Taking it is slow; keep it.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned> {
        context.bind("pinned")?;
        let raw =
            driver::allocate_pinned(bytes.max(1)).map_err(|failure| context.failed("pinned", &failure))?;
        // The driver never answers success with null.
        let pointer = NonNull::new(raw).unwrap_or(NonNull::dangling());
        // SAFETY: fresh memory of this size.
        unsafe { pointer.as_ptr().write_bytes(0, bytes) };
        Ok(Pinned { pointer, bytes, context: context.clone() })
    }

    /// Queues a copy to or from its first bytes. The caller wraps it in an [`InFlight`], which nobody can look into.
    pub(crate) fn copy(&self, stream: RawStream, device: u64, bytes: usize, out: bool) -> Raw<()> {
        // SAFETY: `InFlight` keeps the memory and hides it until the copy has passed, which stays inside it.
        unsafe { driver::copy_pinned(stream, self.pointer.as_ptr(), device, bytes.min(self.bytes), out) }
    }
}

/// Pinned memory that a queued copy reads or fills.
#[derive(Debug)]
pub struct InFlight {
    memory: Option<Pinned>,
    event: Event,
}

impl InFlight {
    pub(crate) fn new(memory: Pinned, event: Event) -> InFlight {
        InFlight { memory: Some(memory), event }
    }

    /// True once the copy is done.
    pub fn passed(&self) -> Result<bool> {
        self.event.passed()
    }

    /// The memory, when the copy is done.
    pub fn wait(mut self) -> Result<Pinned> {
        self.event.synchronize()?;
        // It is taken only here and in `drop`.
        Ok(self.memory.take().unwrap_or_else(|| unreachable!()))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.memory.is_some() && self.event.synchronize().is_err() {
            // The copy may still run on a device that no longer answers: better lost than written after free.
            std::mem::forget(self.memory.take());
        }
    }
}

impl Deref for Pinned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes, alive as long as self.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes this the host's only access.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind("drop").is_ok() {
            // SAFETY: no copy is under way outside `InFlight`, and nobody else has the pointer.
            unsafe { driver::free_pinned(self.pointer.as_ptr()) };
        }
    }
}
