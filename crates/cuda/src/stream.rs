//! Queues of work on a device, and the order between them.
//!
//! Each stream counts what was queued on it. A stream that must come after work of another waits for an event recorded
//! at that moment, and remembers how far it has seen, so that most crossings cost nothing.

use crate::context::Context;
use crate::driver::{self, Raw, RawEvent, RawStream};
use crate::error::Result;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A queue of work.
pub struct Stream {
    id: u64,
    pub(crate) raw: RawStream,
    context: Arc<Context>,
    /// Pieces of work queued so far.
    queued: AtomicU64,
    /// By stream: all its work up to this count comes before what is queued here next.
    seen: Mutex<HashMap<u64, u64>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({} of cuda:{})", self.id, self.context.ordinal())
    }
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Stream>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        context.bind("stream")?;
        let raw = driver::new_stream().map_err(|failure| context.failed("stream", &failure))?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (queued, seen) = (AtomicU64::new(0), Mutex::default());
        Ok(Arc::new(Stream { id, raw, context: context.clone(), queued, seen }))
    }

    /// A number no other stream of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The count that work queued next will have.
    pub(crate) fn next_tick(&self) -> u64 {
        self.queued.load(Ordering::Acquire) + 1
    }

    /// Notes that a piece of work was queued.
    pub(crate) fn queue(&self) {
        self.queued.fetch_add(1, Ordering::AcqRel);
    }

    /// True when everything `other` had queued up to `tick` comes before what is queued here next.
    pub(crate) fn has_seen(&self, other: &Stream, tick: u64) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&other.id).is_some_and(|&at| at >= tick)
    }

    /// Puts what is queued here next after everything `other` has queued, unless it is already.
    pub(crate) fn follow(&self, op: &'static str, other: &Arc<Stream>, tick: u64) -> Result<()> {
        if other.id == self.id || self.has_seen(other, tick) {
            return Ok(());
        }
        // Read before recording: the event covers at least this much.
        let covered = other.queued.load(Ordering::Acquire);
        let event = Event::record(op, other)?;
        self.wait(op, &event)?;
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).insert(other.id, covered);
        Ok(())
    }

    /// Puts what is queued here next after an event.
    pub fn wait(&self, op: &'static str, event: &Event) -> Result<()> {
        self.context.bind(op)?;
        self.call(op, driver::wait(self.raw, event.raw))
    }

    /// Blocks the calling thread until all work queued here has finished.
    pub fn synchronize(&self, op: &'static str) -> Result<()> {
        self.context.bind(op)?;
        self.call(op, driver::synchronize(self.raw))?;
        self.context.ring().finished(self.id);
        Ok(())
    }

    pub(crate) fn call<T>(&self, op: &'static str, result: Raw<T>) -> Result<T> {
        result.map_err(|failure| self.context.failed(op, &failure))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind("drop").is_ok() {
            driver::destroy_stream(self.raw);
        }
    }
}

/// A mark in a stream: passed once all work queued before it has finished.
pub struct Event {
    raw: RawEvent,
    context: Arc<Context>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event(cuda:{})", self.context.ordinal())
    }
}

impl Event {
    /// Marks the end of what is queued on a stream now.
    pub fn record(op: &'static str, stream: &Stream) -> Result<Event> {
        Event::make(op, stream, false)
    }

    /// Like [`Event::record`], with the time it passes.
    pub fn record_timed(op: &'static str, stream: &Stream) -> Result<Event> {
        Event::make(op, stream, true)
    }

    fn make(op: &'static str, stream: &Stream, timed: bool) -> Result<Event> {
        let context = &stream.context;
        context.bind(op)?;
        let raw = stream.call(op, driver::new_event(timed))?;
        let event = Event { raw, context: context.clone() };
        stream.call(op, driver::record(raw, stream.raw))?;
        Ok(event)
    }

    /// True once it has passed.
    pub fn passed(&self) -> Result<bool> {
        self.context.bind("event")?;
        driver::passed(self.raw).map_err(|failure| self.context.failed("event", &failure))
    }

    /// Blocks the calling thread until it has passed.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind("event")?;
        driver::wait_host(self.raw).map_err(|failure| self.context.failed("event", &failure))
    }

    /// Seconds from `earlier` to this; both timed and passed.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64> {
        self.context.bind("event")?;
        let milliseconds = driver::elapsed(earlier.raw, self.raw);
        Ok(f64::from(milliseconds.map_err(|failure| self.context.failed("event", &failure))?) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind("drop").is_ok() {
            driver::destroy_event(self.raw);
        }
    }
}
