//! Work recorded once and queued again and again by one call, which spares the host a launch for every kernel.
//!
//! Kernels are recorded with the addresses they were given. So what a recording allocates comes from memory that nothing
//! else uses and that lives as long as the graph; it is all free between two runs. Whatever else the work touches must
//! outlive the graph.

use crate::driver::{self, RawGraph};
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::settings::checked;
use crate::times;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether a lane's work is being recorded, and whether some of it could not be.
#[derive(Default)]
pub(crate) struct Recording {
    on: AtomicBool,
    refused: AtomicBool,
}

impl Recording {
    /// An error while work is recorded, for operations that need the host.
    pub(crate) fn refuse(&self, op: &'static str) -> Result<()> {
        if !self.on.load(Relaxed) {
            return Ok(());
        }
        self.refused.store(true, Relaxed);
        Err(Error::Recorded { op })
    }
}

/// Recorded work of one lane.
pub struct Graph {
    raw: RawGraph,
    /// Holds the memory that the work uses.
    lane: Arc<Lane>,
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({:?})", self.lane)
    }
}

impl Graph {
    /// Records what `work` queues on the calling thread's lane of a device, without doing it. `None` where that cannot be:
    /// some of it needs the host, operations are checked or timed one by one, or the driver has no graphs. All kernels
    /// should have run before, so that none is loaded now.
    pub fn record<E: From<Error>>(
        ordinal: u32,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Option<Graph>, E> {
        if checked() || times::file().is_some() {
            return Ok(None);
        }
        let home = Lane::current(ordinal)?;
        let lane = Lane::on(home.context(), home.compute().clone());
        let stream = home.compute().raw;
        if driver::begin_capture(stream).is_err() {
            return Ok(None);
        }
        lane.recording.on.store(true, Relaxed);
        let done = lane.within(work);
        lane.recording.on.store(false, Relaxed);
        let ended = driver::end_capture(stream, done.is_ok());
        match (done, ended) {
            (Err(_), _) if lane.recording.refused.load(Relaxed) => Ok(None),
            (Err(error), _) => Err(error),
            (Ok(()), Ok(raw)) => Ok(raw.map(|raw| Graph { raw, lane })),
            (Ok(()), Err(failure)) => Err(lane.context().failed("record", &failure).into()),
        }
    }

    /// Queues the work once more.
    pub fn run(&self, op: &'static str) -> Result<()> {
        self.lane.queue(op, || driver::launch_graph(self.lane.compute().raw, self.raw))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.lane.context().bind("drop").is_ok() {
            driver::destroy_graph(self.raw);
        }
    }
}
