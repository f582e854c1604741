//! Reference-counted storage: views share it and see each other's writes; snapshots share only its bytes
//! and are separated by the next write. Bytes that code outside holds too are pinned: they never move.

use crate::buffer::{Buffer, HostBuffer};
use crate::cuda;
use crate::device::Device;
use crate::error::{Error, Result};
use bytemuck::Pod;
use planaria_cuda::{Access, Block, Lane};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What all views of one array have in common.
pub(crate) struct Storage {
    /// Readers clone the inner `Arc` and need no lock while they read; a writer that finds the bytes shared
    /// (a snapshot, or a reader at work) moves to fresh bytes first.
    buffer: Mutex<Arc<Buffer>>,
    /// True while parts of the bytes are written without the lock, which nobody else gets meanwhile; changed under it.
    open: AtomicBool,
    closed: Condvar,
    /// Counts writes, so that saved values can tell that they are stale.
    version: AtomicU64,
    /// How many outside this crate know the address of the bytes. While there are any, the bytes stay where they are:
    /// a write changes them in place, and a snapshot copies.
    pins: AtomicUsize,
    /// Addresses of memory that was never ours, which arrays of other storages may lie in too.
    outside: Option<Range<usize>>,
    writable: bool,
    device: Device,
    bytes: usize,
}

impl Storage {
    fn of(buffer: Arc<Buffer>, device: Device, bytes: usize) -> Storage {
        Storage {
            buffer: Mutex::new(buffer),
            open: AtomicBool::new(false),
            closed: Condvar::new(),
            version: AtomicU64::new(0),
            pins: AtomicUsize::new(0),
            outside: None,
            writable: true,
            device,
            bytes,
        }
    }

    pub(crate) fn host(buffer: HostBuffer) -> Arc<Storage> {
        let bytes = buffer.bytes();
        Arc::new(Storage::of(Arc::new(Buffer::Host(buffer)), Device::Cpu, bytes))
    }

    /// Memory of other code, pinned for as long as it is used.
    pub(crate) fn foreign(buffer: HostBuffer, writable: bool) -> Arc<Storage> {
        let (start, bytes) = (buffer.ptr().addr().get(), buffer.bytes());
        let mut storage = Storage::of(Arc::new(Buffer::Host(buffer)), Device::Cpu, bytes);
        storage.pins = AtomicUsize::new(1);
        storage.outside = Some(start..start + bytes);
        storage.writable = writable;
        Arc::new(storage)
    }

    pub(crate) fn meta(bytes: usize) -> Arc<Storage> {
        Arc::new(Storage::of(Arc::new(Buffer::Meta), Device::Meta, bytes))
    }

    /// Memory of a device with unspecified contents; of the meta device, none.
    pub(crate) fn on(device: Device, op: &'static str, bytes: usize) -> Result<Arc<Storage>> {
        let buffer = match device {
            Device::Cpu => Buffer::Host(HostBuffer::new(bytes)?),
            Device::Meta => Buffer::Meta,
            Device::Cuda(ordinal) => Buffer::Cuda(cuda::lane(ordinal)?.block(op, bytes)?),
        };
        Ok(Arc::new(Storage::of(Arc::new(buffer), device, bytes)))
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Buffer>> {
        // A kernel that panicked half-way leaves bytes that are initialised, which is all we rely on.
        let mut guard = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        while self.open.load(Ordering::Relaxed) {
            guard = self.closed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        guard
    }

    /// Where the bytes are, for parts of them to be written without the lock until [`Storage::close`], while all other access waits;
    /// `None` where a snapshot, a reader, other parts or code outside have them too, or where the host does not have them.
    pub(crate) fn open(&self, op: &'static str) -> Result<Option<NonNull<u8>>> {
        if !self.writable {
            return Err(Error::ReadOnly { op });
        }
        // Whoever opens several waits for none of them, so that two who want the same ones do not wait for each other.
        let mut guard = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.is_pinned() || self.open.load(Ordering::Relaxed);
        match Arc::get_mut(&mut guard) {
            Some(Buffer::Host(host)) if !taken => {
                self.open.store(true, Ordering::Relaxed);
                Ok(Some(host.ptr()))
            }
            _ => Ok(None),
        }
    }

    /// Ends what [`Storage::open`] began.
    pub(crate) fn close(&self) {
        let guard = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        self.open.store(false, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::AcqRel);
        drop(guard);
        self.closed.notify_all();
    }

    /// The bytes as they are now; later writes do not change what the caller holds.
    pub(crate) fn read(&self) -> Arc<Buffer> {
        self.lock().clone()
    }

    /// A storage with the same bytes that no longer follows this one's writes. Costs no copy unless the bytes are
    /// pinned: writes from outside are not seen here, so they cannot be waited for.
    pub(crate) fn snapshot(&self) -> Result<Arc<Storage>> {
        let guard = self.lock();
        let bytes = match guard.as_ref() {
            Buffer::Host(host) if self.is_pinned() => Arc::new(Buffer::Host(host.try_clone()?)),
            _ => guard.clone(),
        };
        Ok(Arc::new(Storage::of(bytes, self.device, self.bytes)))
    }

    /// True when a write would have to move to fresh bytes first.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.lock()) > 1
    }

    /// True while code outside knows the address of the bytes.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0
    }

    /// False for memory that was handed to us for reading only.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// True when both lie in one piece of memory that was never ours.
    pub(crate) fn overlaps(&self, other: &Storage) -> bool {
        match (&self.outside, &other.outside) {
            (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
            _ => false,
        }
    }

    /// Keeps the bytes where they are until [`Storage::unpin`], and answers where. Bytes that a snapshot holds are
    /// copied first, so that what is written from outside does not reach it.
    pub(crate) fn pin(&self, op: &'static str) -> Result<*mut u8> {
        let mut guard = self.lock();
        let Buffer::Host(host) = guard.as_ref() else { return Err(no_bytes(op, self.device)) };
        if !self.is_pinned() && Arc::strong_count(&guard) > 1 {
            *guard = Arc::new(Buffer::Host(host.try_clone()?));
        }
        self.pins.fetch_add(1, Ordering::AcqRel);
        Ok(of_host(&guard).ptr().as_ptr())
    }

    /// Takes back one [`Storage::pin`].
    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    /// Runs `write` on the bytes as elements, copying them first when a snapshot or reader holds them.
    pub(crate) fn write<T: Pod, R>(&self, op: &'static str, write: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        let mut update = self.begin_update(op, Coverage::Part)?;
        let result = write(update.slices().1);
        update.commit();
        Ok(result)
    }

    /// Puts other bytes in place of these; who holds the old ones keeps them, unless they are pinned.
    pub(crate) fn replace(&self, buffer: HostBuffer) {
        debug_assert_eq!(buffer.bytes(), self.bytes);
        let mut guard = self.lock();
        match guard.as_ref() {
            Buffer::Host(pinned) if self.is_pinned() => pinned.overwrite(&buffer),
            _ => *guard = Arc::new(Buffer::Host(buffer)),
        }
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Begins a change of host bytes; other access waits until it is committed or dropped.
    pub(crate) fn begin_update(&self, op: &'static str, coverage: Coverage) -> Result<Update<'_>> {
        if self.device != Device::Cpu {
            return Err(no_bytes(op, self.device));
        }
        if !self.writable {
            return Err(Error::ReadOnly { op });
        }
        let mut guard = self.lock();
        let (mut fresh, mut back) = (Fresh::None, None);
        if Arc::get_mut(&mut guard).is_none() {
            let Buffer::Host(old) = guard.as_ref() else { return Err(no_bytes(op, self.device)) };
            fresh = match coverage {
                Coverage::All => Fresh::Unfilled(HostBuffer::new(old.bytes())?),
                Coverage::Part => Fresh::Copied(old.try_clone()?),
            };
            back = self.is_pinned().then(|| guard.clone());
        }
        Ok(Update { version: &self.version, guard, fresh, back })
    }

    /// Begins a change of a CUDA device's bytes that the lane's stream makes; other access waits until it is committed
    /// or dropped.
    pub(crate) fn begin_cuda_update(
        &self,
        op: &'static str,
        lane: &Arc<Lane>,
        coverage: Coverage,
    ) -> Result<CudaUpdate<'_>> {
        let mut guard = self.lock();
        let shared = Arc::get_mut(&mut guard).is_none();
        let Buffer::Cuda(old) = guard.as_ref() else { return Err(no_bytes(op, self.device)) };
        if !shared {
            old.used_by(op, lane.compute(), Access::Write)?;
            let address = old.address();
            return Ok(CudaUpdate { version: &self.version, guard, fresh: None, address, old: address });
        }
        let block = lane.block(op, old.bytes())?;
        let (address, old_address) = (block.address(), old.address());
        block.used_by(op, lane.compute(), Access::Write)?;
        old.used_by(op, lane.compute(), Access::Read)?;
        if coverage == Coverage::All {
            return Ok(CudaUpdate {
                version: &self.version,
                guard,
                fresh: Some(block),
                address,
                old: old_address,
            });
        }
        lane.copy_within(op, address, old_address, old.bytes())?;
        *guard = Arc::new(Buffer::Cuda(block));
        Ok(CudaUpdate { version: &self.version, guard, fresh: None, address, old: address })
    }
}

/// How much of a storage an update will write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// Every byte: when a snapshot holds the old bytes, they are not copied first.
    All,
    /// Some: the others stay as they are.
    Part,
}

/// A change of a storage's bytes under way.
pub(crate) struct Update<'a> {
    version: &'a AtomicU64,
    guard: MutexGuard<'a, Arc<Buffer>>,
    fresh: Fresh,
    /// Pinned bytes, which the new ones are copied over in the end.
    back: Option<Arc<Buffer>>,
}

/// Where the new bytes go when the old ones are held by a snapshot or reader.
enum Fresh {
    /// Nobody holds the old ones.
    None,
    /// To be written in full.
    Unfilled(HostBuffer),
    /// The old ones are in it already.
    Copied(HostBuffer),
}

impl Update<'_> {
    /// The bytes as elements. With old ones, the new ones must be written in full; else change them in place.
    pub(crate) fn slices<T: Pod>(&mut self) -> (Option<&[T]>, &mut [T]) {
        match &mut self.fresh {
            Fresh::Unfilled(fresh) => (Some(of_host(&self.guard).slice()), fresh.slice_mut()),
            Fresh::Copied(fresh) => (None, fresh.slice_mut()),
            Fresh::None => (None, alone(&mut self.guard).slice_mut()),
        }
    }

    /// Makes the change visible.
    pub(crate) fn commit(mut self) {
        match (self.fresh, self.back) {
            (Fresh::Unfilled(new) | Fresh::Copied(new), Some(pinned)) => of_host(&pinned).overwrite(&new),
            (Fresh::Unfilled(new) | Fresh::Copied(new), None) => *self.guard = Arc::new(Buffer::Host(new)),
            (Fresh::None, _) => {}
        }
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// An update begins only on host bytes that nobody else holds, and keeps them locked.
fn of_host(buffer: &Buffer) -> &HostBuffer {
    match buffer {
        Buffer::Host(host) => host,
        Buffer::Cuda(_) | Buffer::Meta => unreachable!("an update of host bytes begins on host bytes"),
    }
}

fn alone(buffer: &mut Arc<Buffer>) -> &mut HostBuffer {
    match Arc::get_mut(buffer) {
        Some(Buffer::Host(host)) => host,
        _ => unreachable!("an update of host bytes begins on bytes of its own"),
    }
}

/// A change of a device's bytes under way.
pub(crate) struct CudaUpdate<'a> {
    version: &'a AtomicU64,
    guard: MutexGuard<'a, Arc<Buffer>>,
    /// Where the new bytes go when the old ones are held by a snapshot or reader.
    fresh: Option<Block>,
    address: u64,
    old: u64,
}

impl CudaUpdate<'_> {
    /// Where the storage starts.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Where the old values are: elsewhere when a snapshot holds them and all new ones are to be written.
    pub(crate) fn old_address(&self) -> u64 {
        self.old
    }

    /// Makes the change visible; the work must be queued.
    pub(crate) fn commit(mut self) {
        if let Some(fresh) = self.fresh.take() {
            *self.guard = Arc::new(Buffer::Cuda(fresh));
        }
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// Why a storage's bytes cannot be had as host memory.
pub(crate) fn no_bytes(op: &'static str, device: Device) -> Error {
    match device {
        Device::Cuda(_) => Error::NotOnDevice { op, device },
        _ => Error::Device { op, device, hint: "a meta array has no bytes; create it on the cpu" },
    }
}
