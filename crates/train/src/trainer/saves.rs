//! Saves that go on while training goes on.

use super::Job;
use super::records::Records;
use crate::error::{Error, Result};
use crate::event::Event;
use planaria_ckpt::{Retain, SaveOptions, State};
use planaria_comm::Comm;
use planaria_store::Store;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The folder of a step's checkpoint, in the folder of checkpoints.
pub(crate) fn folder(step: u64) -> String {
    format!("ckpt/step-{step:08}")
}

/// Which checkpoints stay after a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Those that `[checkpoint]` says.
    Configured,
    /// All.
    All,
}

/// A save under way.
#[derive(Debug)]
struct Running {
    step: u64,
    blocked: Duration,
    thread: JoinHandle<(planaria_ckpt::Result<()>, Duration)>,
}

/// Removes checkpoints of a future that the run has left.
fn remove(store: &dyn Store, steps: &[u64]) -> planaria_ckpt::Result<()> {
    steps.iter().try_for_each(|&step| planaria_ckpt::remove(store, &folder(step)))
}

/// The saves of one rank. They have a communicator of their own, so that they cannot get in the way of training.
#[derive(Debug)]
pub(super) struct Saves {
    comm: Arc<dyn Comm>,
    store: Arc<dyn Store>,
    options: SaveOptions,
    running: Option<Running>,
    /// Step and folder of the newest committed checkpoint.
    pub(super) newest: Option<(u64, String)>,
    /// Checkpoints after the one that the run went back to; they go before the first save.
    pub(super) newer: Vec<u64>,
    /// Only rank 0 tells.
    tells: bool,
    pub(super) records: Option<Arc<Records>>,
}

impl Saves {
    /// Collective.
    pub(super) fn new(world: &Arc<dyn Comm>, store: Arc<dyn Store>, job: &Job) -> Result<Saves> {
        let comm = world.split(&[world.ranks().to_vec()])?;
        let comm = comm.ok_or_else(|| Error::Bug { what: "a rank outside its own world".into() })?;
        let section = &job.config.checkpoint;
        let every = (section.keep_every > 0).then_some(section.keep_every);
        let retain = Retain { last: Some(section.keep), every, ..Retain::default() };
        let options = SaveOptions { retain, ..SaveOptions::default() };
        Ok(Saves {
            tells: comm.rank() == 0,
            comm,
            store,
            options,
            running: None,
            newest: None,
            newer: Vec::new(),
            records: None,
        })
    }

    /// Begins to save; waits for the save before it, if that is still under way. Collective.
    pub(super) fn begin(&mut self, job: &Job, state: State, keep: Keep, began: Instant) -> Result<()> {
        self.finish(job)?;
        let step = state.step;
        self.tell(job, &Event::Saving { step });
        let (comm, store, mut options) = (self.comm.clone(), self.store.clone(), self.options.clone());
        if keep == Keep::All {
            options.retain = Retain::default();
        }
        let newer = std::mem::take(&mut self.newer);
        let thread = std::thread::Builder::new().name("planaria-save".into()).spawn(move || {
            let removed = if comm.rank() == 0 { remove(&*store, &newer) } else { Ok(()) };
            // Where an old one cannot be removed, the save says what stands in its way.
            let saved = planaria_ckpt::save(&*comm, &*store, &folder(step), &state, &options);
            (removed.and(saved.map(|_| ())), began.elapsed())
        });
        let thread = thread.map_err(|source| Error::Io { path: "the thread of a save".into(), source })?;
        self.running = Some(Running { step, blocked: began.elapsed(), thread });
        Ok(())
    }

    /// Tells of a save that has ended meanwhile.
    pub(super) fn poll(&mut self, job: &Job) -> Result<()> {
        if self.running.as_ref().is_some_and(|r| r.thread.is_finished()) {
            self.finish(job)?;
        }
        Ok(())
    }

    /// Waits for the save under way. A failed one is told, not returned: the checkpoints before it are still good.
    /// Why it failed, if it did.
    pub(super) fn finish(&mut self, job: &Job) -> Result<Option<String>> {
        let Some(Running { step, blocked, thread }) = self.running.take() else { return Ok(None) };
        let (end, took) = thread.join().map_err(|_| Error::Bug { what: "a save panicked".into() })?;
        let folder = folder(step);
        match end {
            Ok(()) => {
                self.newest = Some((step, folder.clone()));
                self.tell(job, &Event::Saved { step, folder, blocked, took });
                Ok(None)
            }
            Err(error) => {
                let error = error.to_string();
                self.tell(job, &Event::SaveFailed { step, error: error.clone() });
                Ok(Some(error))
            }
        }
    }

    fn tell(&self, job: &Job, event: &Event) {
        if let Some(records) = &self.records {
            records.event(event);
        }
        if self.tells {
            job.observer.event(event);
        }
    }
}
