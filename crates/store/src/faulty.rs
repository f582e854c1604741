//! A store that breaks on purpose at a chosen operation.

use crate::error::{Error, Result};
use crate::store::{Entry, PutMode, Reader, Sharing, Store, Writer};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails once; trying again succeeds.
    Fail,
    /// It fails, and so does everything after it, as if the process had been killed before it.
    Kill,
    /// A write stops half way and everything after it fails, as if the process had been killed in it.
    Tear,
    /// The process is killed with SIGKILL.
    Die,
    /// From it on, this many operations find no room to write in; reading goes on.
    Full(u64),
    /// From it on, this many operations take this much longer.
    Slow(u64, Duration),
}

/// Operations that need room.
const WRITING: [&str; 4] = ["create", "write", "put", "finish"];

#[derive(Debug)]
struct FaultState {
    fault: Option<Fault>,
    at: u64,
    count: AtomicU64,
    dead: AtomicBool,
}

/// What an operation does, decided when it starts.
enum Go {
    Whole,
    Half(Error),
}

impl FaultState {
    fn step(&self, what: &'static str) -> Result<Go> {
        let operation = self.count.fetch_add(1, SeqCst);
        let error = |transient| Error::Injected { operation, what, transient };
        if self.dead.load(SeqCst) {
            return Err(error(false));
        }
        let within = |times: u64| (self.at..self.at.saturating_add(times)).contains(&operation);
        match self.fault {
            Some(Fault::Full(times)) if within(times) && WRITING.contains(&what) => {
                let (name, message) =
                    (format!("operation {operation}"), "there is no room (injected)".to_string());
                Err(Error::Io { name, op: what, kind: io::ErrorKind::StorageFull, message })
            }
            Some(Fault::Slow(times, pause)) if within(times) => {
                std::thread::sleep(pause);
                Ok(Go::Whole)
            }
            Some(fault) if operation == self.at => match fault {
                Fault::Full(_) | Fault::Slow(..) => Ok(Go::Whole),
                Fault::Fail => Err(error(true)),
                Fault::Kill => {
                    self.dead.store(true, SeqCst);
                    Err(error(false))
                }
                Fault::Tear => {
                    self.dead.store(true, SeqCst);
                    Ok(Go::Half(error(false)))
                }
                Fault::Die => crate::local::kill_this_process(),
            },
            _ => Ok(Go::Whole),
        }
    }

    /// For operations that cannot be done by half.
    fn whole(&self, what: &'static str) -> Result<()> {
        match self.step(what)? {
            Go::Whole => Ok(()),
            Go::Half(error) => Err(error),
        }
    }
}

/// What breaks in a place and when; all stores over the same place count together.
#[derive(Clone, Debug)]
pub struct Trap(Arc<FaultState>);

impl Trap {
    /// Breaks operation number `at`, counted from 0, or nothing.
    pub fn new(fault: Option<Fault>, at: u64) -> Trap {
        let state = FaultState { fault, at, count: AtomicU64::new(0), dead: AtomicBool::new(false) };
        Trap(Arc::new(state))
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.0.count.load(SeqCst)
    }
}

/// Counts operations and breaks one of them. Every call of [`Store`], [`Reader`] and [`Writer`] that touches
/// the storage is one operation.
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    inner: S,
    state: Arc<FaultState>,
}

impl<S: Store> Faulty<S> {
    /// Breaks operation number `at`, counted from 0.
    pub fn new(inner: S, fault: Fault, at: u64) -> Faulty<S> {
        Faulty::over(inner, &Trap::new(Some(fault), at))
    }

    /// Breaks nothing and counts.
    pub fn counting(inner: S) -> Faulty<S> {
        Faulty::over(inner, &Trap::new(None, 0))
    }

    /// Breaks what the trap says.
    pub fn over(inner: S, trap: &Trap) -> Faulty<S> {
        Faulty { inner, state: trap.0.clone() }
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.state.count.load(SeqCst)
    }

    /// The store underneath, which works.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Store> Store for Faulty<S> {
    fn address(&self) -> String {
        self.inner.address()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        self.state.whole("list")?;
        self.inner.list(folder)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        self.state.whole("open")?;
        let inner = self.inner.reader(name)?;
        Ok(Box::new(FaultyReader { inner, state: self.state.clone() }))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        self.state.whole("create")?;
        let inner = self.inner.writer(name, len, sharing)?;
        Ok(Box::new(FaultyWriter { inner, state: self.state.clone() }))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        // A put is atomic: torn, it either happened or it did not, and the caller does not learn which.
        match self.state.step("put")? {
            Go::Whole => self.inner.put(name, bytes, mode),
            Go::Half(error) => self.inner.put(name, bytes, mode).and(Err(error)),
        }
    }

    fn delete(&self, name: &str) -> Result<()> {
        match self.state.step("delete")? {
            Go::Whole => self.inner.delete(name),
            Go::Half(error) => self.inner.delete(name).and(Err(error)),
        }
    }
}

#[derive(Debug)]
struct FaultyReader {
    inner: Box<dyn Reader>,
    state: Arc<FaultState>,
}

impl Reader for FaultyReader {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.state.whole("read")?;
        self.inner.read_at(offset, into)
    }
}

#[derive(Debug)]
struct FaultyWriter {
    inner: Box<dyn Writer>,
    state: Arc<FaultState>,
}

impl Writer for FaultyWriter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.state.step("write")? {
            Go::Whole => self.inner.write_at(offset, bytes),
            Go::Half(error) => self.inner.write_at(offset, &bytes[..bytes.len() / 2]).and(Err(error)),
        }
    }

    fn takes_parts(&self) -> bool {
        self.inner.takes_parts()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        match self.state.step("finish")? {
            Go::Whole => self.inner.finish(),
            Go::Half(error) => self.inner.finish().and(Err(error)),
        }
    }
}
