//! What one rank has on a device: a stream to compute on, streams beside it, and memory of its own.

use crate::arena::{ALIGN, Arena};
use crate::block::Block;
use crate::context::{Account, Context, MemoryStats};
use crate::driver::{self, Raw};
use crate::error::{Error, Result};
use crate::graph::Recording;
use crate::late::{Late, LateNote, SLOT_WORDS, SLOTS, Slot};
use crate::launch::{Arg, Launch, TensorMap};
use crate::pinned::{InFlight, Pinned};
use crate::settings::checked;
use crate::stream::{Event, Stream};
use crate::times;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Blocks up to this size share segments of their own, so that they do not split large ones.
const SMALL: usize = 1 << 20;
/// Segments of small blocks.
const SMALL_SEGMENT: usize = 16 << 20;
/// Segments of large blocks, unless one block needs more.
const LARGE_SEGMENT: usize = 64 << 20;
/// What large segments are multiples of.
const PAGE: usize = 2 << 20;
/// Bytes before and after each block in checked mode, and what they hold.
const GUARD: usize = ALIGN;
const GUARD_BYTE: u8 = 0xa5;

/// The streams beside the one a lane computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Copies to the host.
    CopyOut,
    /// Copies from the host.
    CopyIn,
    /// Communication.
    Communication,
}

/// One rank's streams and memory on a device. Operations queue on the lane of the calling thread.
pub struct Lane {
    context: Arc<Context>,
    compute: Arc<Stream>,
    sides: [OnceLock<Arc<Stream>>; 3],
    memory: Mutex<Memory>,
    late: Mutex<Late>,
    account: Account,
    pub(crate) recording: Recording,
}

#[derive(Default)]
struct Memory {
    small: Arena,
    large: Arena,
    /// Freed blocks that other streams may still use, with the marks to wait for.
    pending: Vec<(u64, Vec<Event>)>,
}

impl Memory {
    fn arena(&mut self, bytes: usize) -> &mut Arena {
        if bytes <= SMALL { &mut self.small } else { &mut self.large }
    }

    fn give(&mut self, address: u64) -> usize {
        let taken = self.small.give(address).or_else(|| self.large.give(address));
        taken.map_or(0, |taken| taken.bytes)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({:?})", self.compute)
    }
}

thread_local! {
    static LANES: RefCell<BTreeMap<u32, Arc<Lane>>> = const { RefCell::new(BTreeMap::new()) };
}

impl Lane {
    /// The calling thread's lane on a device, made at first use.
    pub fn current(ordinal: u32) -> Result<Arc<Lane>> {
        let known = LANES.try_with(|lanes| lanes.borrow().get(&ordinal).cloned()).ok().flatten();
        if let Some(lane) = known {
            return Ok(lane);
        }
        let lane = Lane::new(&Context::of(ordinal)?)?;
        let _ = LANES.try_with(|lanes| lanes.borrow_mut().insert(ordinal, lane.clone()));
        Ok(lane)
    }

    /// A lane of its own, for work beside the calling thread's.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Lane>> {
        Ok(Lane::on(context, Stream::new(context)?))
    }

    /// A lane with memory of its own on a stream that another may use too.
    pub(crate) fn on(context: &Arc<Context>, compute: Arc<Stream>) -> Arc<Lane> {
        let lane = Arc::new(Lane {
            context: context.clone(),
            compute,
            sides: Default::default(),
            memory: Mutex::default(),
            late: Mutex::default(),
            account: Account::default(),
            recording: Recording::default(),
        });
        context.add_lane(&lane);
        lane
    }

    /// Runs `work` with this as the calling thread's lane.
    pub fn within<T>(self: &Arc<Lane>, work: impl FnOnce() -> T) -> T {
        struct Back(u32, Option<Arc<Lane>>);
        impl Drop for Back {
            fn drop(&mut self) {
                let _ = LANES.try_with(|lanes| match self.1.take() {
                    Some(lane) => lanes.borrow_mut().insert(self.0, lane),
                    None => lanes.borrow_mut().remove(&self.0),
                });
            }
        }
        let ordinal = self.context.ordinal();
        let before = LANES.try_with(|lanes| lanes.borrow_mut().insert(ordinal, self.clone())).ok().flatten();
        let _back = Back(ordinal, before);
        work()
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The stream operations queue on.
    pub fn compute(&self) -> &Arc<Stream> {
        &self.compute
    }

    /// A stream beside it, made at first use.
    pub fn side(&self, side: Side) -> Result<&Arc<Stream>> {
        let slot = &self.sides[side as usize];
        if let Some(stream) = slot.get() {
            return Ok(stream);
        }
        let stream = Stream::new(&self.context)?;
        Ok(slot.get_or_init(|| stream))
    }

    /// Bytes this lane has in use.
    pub fn memory_stats(&self) -> MemoryStats {
        self.account.stats()
    }

    /// Makes the peak start again from what is live now.
    pub fn reset_peak(&self) {
        self.account.reset_peak();
    }

    /// Queues a kernel. The caller has noted the use of every block it touches.
    pub fn launch(&self, launch: &Launch<'_>, args: &[Arg<'_>]) -> Result<()> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let Launch { op, kernel, grid, block, shared } = launch;
        self.queue_as(op, &|| format!("{op}: {}", kernel.name()), || {
            kernel.allow_shared(*shared)?;
            driver::launch(self.compute.raw, kernel.raw(), *grid, *block, *shared, args)
        })
    }

    /// A map of `[d3, d2, d1, d0]` bf16 (or f16) elements, `dims` from the innermost, `strides` in bytes of all but it.
    pub fn tensor_map(
        &self,
        op: &'static str,
        address: u64,
        half: bool,
        dims: [u64; 4],
        strides: [u64; 3],
        boxes: [u32; 4],
    ) -> Result<TensorMap> {
        self.context.bind(op)?;
        self.compute.call(op, driver::tensor_map(address, half, dims, strides, boxes)).map(TensorMap)
    }

    /// Sets bytes of the device.
    pub fn fill_bytes(&self, op: &'static str, address: u64, value: u8, bytes: usize) -> Result<()> {
        self.queue(op, || {
            if bytes == 0 { Ok(()) } else { driver::fill_bytes(self.compute.raw, address, value, bytes) }
        })
    }

    /// Copies bytes of the device.
    pub fn copy_within(&self, op: &'static str, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.queue(op, || {
            if bytes == 0 { Ok(()) } else { driver::copy_within(self.compute.raw, to, from, bytes) }
        })
    }

    /// Copies bytes of the host to the device; they may change as soon as this returns.
    pub fn copy_in(&self, op: &'static str, to: u64, from: &[u8]) -> Result<()> {
        self.recording.refuse(op)?;
        if from.is_empty() || self.copy_in_staged(op, to, from)? {
            return Ok(());
        }
        self.queue(op, || driver::copy_in(self.compute.raw, to, from))
    }

    /// Copies bytes of the device to the host and waits for them. Answers bad values found before.
    pub fn copy_out(&self, op: &'static str, to: &mut [u8], from: u64) -> Result<()> {
        self.recording.refuse(op)?;
        if !to.is_empty() {
            if !self.copy_out_staged(op, to, from)? {
                self.queue(op, || driver::copy_out(self.compute.raw, to, from))?;
            }
            self.context.ring().finished(self.compute.id());
            times::write();
        }
        self.check(op)
    }

    /// Queues a copy between the first bytes of pinned memory and the device: `out` of the device, or to it.
    pub(crate) fn copy_pinned(
        &self,
        op: &'static str,
        host: Pinned,
        device: u64,
        bytes: usize,
        out: bool,
    ) -> Result<InFlight> {
        self.recording.refuse(op)?;
        self.queue(op, || host.copy(self.compute.raw, device, bytes, out))?;
        match Event::record(op, &self.compute) {
            Ok(event) => Ok(InFlight::new(host, event)),
            Err(error) => {
                // Nothing tells when the copy ends.
                std::mem::forget(host);
                Err(error)
            }
        }
    }

    /// Queues what a library does on the computing stream.
    pub(crate) fn library<T>(
        &self,
        op: &'static str,
        name: &dyn Fn() -> String,
        work: impl FnOnce() -> T,
    ) -> Result<T> {
        let mut found = None;
        self.queue_as(op, name, || {
            found = Some(work());
            Ok(())
        })?;
        // The work above always runs.
        Ok(found.unwrap_or_else(|| unreachable!()))
    }

    pub(crate) fn queue(&self, op: &'static str, work: impl FnOnce() -> Raw<()>) -> Result<()> {
        self.queue_as(op, &|| op.to_string(), work)
    }

    /// Queues work; `name` is what its time is filed under.
    fn queue_as(
        &self,
        op: &'static str,
        name: &dyn Fn() -> String,
        work: impl FnOnce() -> Raw<()>,
    ) -> Result<()> {
        self.context.bind(op)?;
        self.context.ring().note(self.compute.id(), op);
        let work = || self.compute.call(op, work());
        match times::file() {
            Some(_) => times::measure(op, name(), &self.compute, work)?,
            None => work()?,
        }
        self.compute.queue();
        if checked() {
            self.compute.synchronize(op)?;
        }
        Ok(())
    }

    /// Waits for all work of this lane's computing stream; answers bad values that kernels found.
    pub fn synchronize(&self, op: &'static str) -> Result<()> {
        self.recording.refuse(op)?;
        self.compute.synchronize(op)?;
        self.check(op)
    }

    /// A place for one launch to report a bad value to.
    pub fn slot(&self, note: LateNote) -> Result<Slot> {
        self.slots(&[note])
    }

    /// Places for one launch that checks several things, one after the other; answers the first.
    pub fn slots(&self, notes: &[LateNote]) -> Result<Slot> {
        let Some(first) = notes.first() else { return Ok(Slot(0)) };
        // Who would read what later runs report?
        self.recording.refuse(first.op)?;
        let full = self.late().notes.len() + notes.len() > SLOTS;
        if full {
            self.check(first.op)?;
        }
        let known = self.late().table;
        let table = match known {
            Some(table) => table,
            None => {
                let bytes = SLOTS * SLOT_WORDS * 8;
                let table = self.allocate("late errors", bytes)?;
                self.fill_bytes("late errors", table, 0xff, bytes)?;
                *self.late().table.insert(table)
            }
        };
        let mut late = self.late();
        let at = late.notes.len();
        late.notes.extend_from_slice(notes);
        Ok(Slot(table + (at * SLOT_WORDS * 8) as u64))
    }

    /// Answers the first bad value that kernels found since the last check; waits if there may be one.
    pub fn check(&self, op: &'static str) -> Result<()> {
        self.context.check_damage()?;
        let (table, used) = {
            let late = self.late();
            (late.table, late.notes.len())
        };
        let Some(table) = table.filter(|_| used > 0) else { return Ok(()) };
        let mut bytes = vec![0u8; used * SLOT_WORDS * 8];
        self.queue(op, || driver::copy_out(self.compute.raw, &mut bytes, table))?;
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let bad = self.late().first(&words);
        self.late().notes.clear();
        let Some(bad) = bad else { return Ok(()) };
        self.fill_bytes(op, table, 0xff, bytes.len())?;
        Err(Error::BadValue(bad))
    }

    fn late(&self) -> MutexGuard<'_, Late> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block with unspecified contents.
    pub fn block(self: &Arc<Lane>, op: &'static str, bytes: usize) -> Result<Block> {
        Ok(Block::new(self.clone(), self.allocate(op, bytes)?, bytes, op))
    }

    /// Takes a segment of this size from the driver and keeps it for blocks to come: taking memory later would stop the device.
    pub fn reserve(&self, op: &'static str, bytes: usize) -> Result<()> {
        self.context.bind(op)?;
        let bytes = bytes.max(LARGE_SEGMENT).next_multiple_of(PAGE);
        let address = driver::allocate(bytes).map_err(|failure| match failure.is_out_of_memory() {
            true => self.out_of_memory(op, bytes),
            false => self.context.failed(op, &failure),
        })?;
        self.account.reserve(bytes);
        self.context.account.reserve(bytes);
        self.memory().large.add(address, bytes);
        Ok(())
    }

    /// Memory of at least `bytes` bytes, aligned to 512.
    fn allocate(&self, op: &'static str, bytes: usize) -> Result<u64> {
        self.context.bind(op)?;
        let guards = if checked() { 2 * GUARD } else { 0 };
        let size = bytes.max(1).checked_add(guards).and_then(|bytes| bytes.checked_next_multiple_of(ALIGN));
        let size = size.filter(|&size| size <= self.context.info().bytes);
        let Some(size) = size else { return Err(self.out_of_memory(op, bytes)) };
        let address = match self.take(op, size)? {
            Some(address) => address,
            None => self.take_anyhow(op, size)?.ok_or_else(|| self.out_of_memory(op, bytes))?,
        };
        self.account.take(size);
        self.context.account.take(size);
        if !checked() {
            return Ok(address);
        }
        // Not a number in every float type.
        self.fill_bytes(op, address, GUARD_BYTE, size)?;
        self.fill_bytes(op, address + GUARD as u64, 0xff, bytes)?;
        Ok(address + GUARD as u64)
    }

    /// From what is free, or from a new segment.
    fn take(&self, op: &'static str, size: usize) -> Result<Option<u64>> {
        let mut memory = self.memory();
        self.sweep(&mut memory)?;
        if let Some(address) = memory.arena(size).take(size, op) {
            return Ok(Some(address));
        }
        let wanted =
            if size <= SMALL { SMALL_SEGMENT } else { size.next_multiple_of(PAGE).max(LARGE_SEGMENT) };
        for bytes in [wanted, size.next_multiple_of(PAGE)] {
            match driver::allocate(bytes) {
                Ok(address) => {
                    self.account.reserve(bytes);
                    self.context.account.reserve(bytes);
                    memory.arena(size).add(address, bytes);
                    return Ok(memory.arena(size).take(size, op));
                }
                Err(failure) if failure.is_out_of_memory() => {}
                Err(failure) => return Err(self.context.failed(op, &failure)),
            }
        }
        Ok(None)
    }

    /// The same after everything that can be given up was.
    fn take_anyhow(&self, op: &'static str, size: usize) -> Result<Option<u64>> {
        let waiting: Vec<(u64, Vec<Event>)> = std::mem::take(&mut self.memory().pending);
        for (address, events) in waiting {
            events.iter().try_for_each(Event::synchronize)?;
            self.give_now(address);
        }
        if let Some(address) = self.take(op, size)? {
            return Ok(Some(address));
        }
        self.context.release_cached()?;
        self.take(op, size)
    }

    fn out_of_memory(&self, op: &'static str, bytes: usize) -> Error {
        let mut by_op: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut largest = 0;
        for lane in self.context.lanes() {
            let memory = lane.memory();
            largest = largest.max(memory.large.largest());
            for (name, held) in memory.small.held().into_iter().chain(memory.large.held()) {
                *by_op.entry(name).or_insert(0) += held;
            }
        }
        let mut held: Vec<(usize, &'static str)> = by_op.into_iter().map(|(op, bytes)| (bytes, op)).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        let most: Vec<String> =
            held.iter().take(6).map(|(bytes, op)| format!("{op} {:.2} GiB", *bytes as f64 / GIB)).collect();
        let stats = self.context.memory_stats();
        let (free, total) = driver::memory_info().unwrap_or((0, self.context.info().bytes));
        let held = format!(
            "{:.2} GiB of arrays are alive ({}), {:.2} GiB are kept for reuse (the largest \
             piece {:.2}), {:.2} of {:.2} GiB are free; use a smaller batch",
            stats.live as f64 / GIB,
            most.join(", "),
            stats.cached as f64 / GIB,
            largest as f64 / GIB,
            free as f64 / GIB,
            total as f64 / GIB
        );
        Error::OutOfMemory { op, bytes, ordinal: self.context.ordinal(), held }
    }

    /// Frees what no other stream uses any more.
    fn sweep(&self, memory: &mut Memory) -> Result<()> {
        let mut at = 0;
        while at < memory.pending.len() {
            let mut passed = true;
            for event in &memory.pending[at].1 {
                passed = passed && event.passed()?;
            }
            if passed {
                let (address, _) = memory.pending.swap_remove(at);
                let bytes = memory.give(address);
                self.account.give(bytes);
                self.context.account.give(bytes);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    fn give_now(&self, address: u64) {
        let bytes = self.memory().give(address);
        self.account.give(bytes);
        self.context.account.give(bytes);
    }

    /// Takes a block back: at once for this lane's stream, after `events` where other streams used it.
    pub(crate) fn give(&self, address: u64, bytes: usize, op: &'static str, events: Vec<Event>) {
        let start = if checked() { address - GUARD as u64 } else { address };
        if checked() && self.context.bind(op).is_ok() {
            self.check_guards(start, bytes, op);
        }
        if events.is_empty() {
            self.give_now(start);
        } else {
            self.memory().pending.push((start, events));
        }
    }

    fn check_guards(&self, start: u64, bytes: usize, op: &'static str) {
        for (side, at) in [("before", start), ("after", start + (GUARD + bytes) as u64)] {
            let mut guard = [GUARD_BYTE; GUARD];
            let read = driver::copy_out(self.compute.raw, &mut guard, at);
            if read.is_ok() && guard.iter().any(|&byte| byte != GUARD_BYTE) {
                self.context.damage(Error::Guard { op, bytes, side });
            }
        }
    }

    /// Hands segments of which nothing is in use back to the driver.
    pub(crate) fn release_cached(&self) -> Result<()> {
        // Freed blocks may still be used by queued work of this lane.
        self.compute.synchronize("release")?;
        let mut memory = self.memory();
        let segments: Vec<(u64, usize)> = [memory.small.release(), memory.large.release()].concat();
        for (address, bytes) in segments {
            driver::free(address).map_err(|failure| self.context.failed("release", &failure))?;
            self.account.unreserve(bytes);
            self.context.account.unreserve(bytes);
        }
        Ok(())
    }
}

const GIB: f64 = (1u64 << 30) as f64;

impl Drop for Lane {
    fn drop(&mut self) {
        if self.context.bind("drop").is_err() || self.compute.synchronize("drop").is_err() {
            return;
        }
        let memory = std::mem::take(self.memory.get_mut().unwrap_or_else(PoisonError::into_inner));
        for event in memory.pending.iter().flat_map(|(_, events)| events) {
            let _ = event.synchronize();
        }
        self.context.account.unreserve(memory.small.reserved() + memory.large.reserved());
        for address in memory.small.segments().chain(memory.large.segments()) {
            let _ = driver::free(address);
        }
        self.context.account.give(self.account.stats().live);
    }
}
