//! Saves that go on while training goes on.

use super::Job;
use super::records::Records;
use super::resume::Best;
use crate::error::{Error, Result};
use crate::event::Event;
use planaria_ckpt::{FileNames, Meter, Retain, SaveOptions, State};
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
    meter: Arc<Meter>,
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
    /// The best evaluation so far whose checkpoint is committed.
    kept: Option<Best>,
    /// A better one whose checkpoint is being saved.
    better: Option<Best>,
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
        let names = if job.config.lora.is_some() { FileNames::Adapter } else { FileNames::Model };
        let options = SaveOptions { retain, names, ..SaveOptions::default() };
        Ok(Saves {
            tells: comm.rank() == 0,
            comm,
            store,
            options,
            running: None,
            kept: None,
            better: None,
            newest: None,
            newer: Vec::new(),
            records: None,
        })
    }

    /// The best evaluation, of a run that resumes.
    pub(super) fn resume_best(&mut self, best: Option<Best>) {
        self.kept = best;
    }

    /// The best evaluation whose checkpoint is saved or is being saved.
    pub(super) fn best(&self) -> Option<Best> {
        self.better.or(self.kept)
    }

    /// Whether an evaluation is better than all before it; then its checkpoint must be saved and stays until a better one
    /// is committed. A save of the best before it is waited for, so that all ranks decide alike.
    pub(super) fn improves(&mut self, job: &Job, now: Best) -> Result<bool> {
        if self.better.is_some() {
            self.finish(job)?;
        }
        let better = self.kept.is_none_or(|kept| now.loss < kept.loss) && now.loss.is_finite();
        self.better = better.then_some(now);
        Ok(better)
    }

    /// How much of the save under way this rank has written, if there is one.
    pub(super) fn share(&self) -> Option<f64> {
        self.running.as_ref()?.meter.share()
    }

    /// Begins to save; waits for the save before it, if that is still under way. Collective.
    pub(super) fn begin(&mut self, job: &Job, mut state: State, keep: Keep, began: Instant) -> Result<()> {
        self.finish(job)?;
        let step = state.step;
        self.tell(job, &Event::Saving { step });
        let (comm, store, mut options) = (self.comm.clone(), self.store.clone(), self.options.clone());
        options.retain.best = [self.kept, self.better].iter().flatten().map(|best| best.step).collect();
        let meter = Arc::new(Meter::default());
        options.meter = Some(meter.clone());
        if keep == Keep::All {
            options.retain = Retain::default();
        }
        let newer = std::mem::take(&mut self.newer);
        let thread = std::thread::Builder::new().name("planaria-save".into()).spawn(move || {
            let removed = if comm.rank() == 0 { remove(&*store, &newer) } else { Ok(()) };
            // Where an old one cannot be removed, the save says what stands in its way.
            // What cannot be copied is tried once more by the save, which tells all ranks.
            let _ = state.to_host();
            let saved = planaria_ckpt::save(&*comm, &*store, &folder(step), &state, &options);
            (removed.and(saved.map(|_| ())), began.elapsed())
        });
        let thread = thread.map_err(|source| Error::Io { path: "the thread of a save".into(), source })?;
        self.running = Some(Running { step, blocked: began.elapsed(), meter, thread });
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
        let Some(Running { step, blocked, thread, .. }) = self.running.take() else { return Ok(None) };
        let (end, took) = thread.join().map_err(|_| Error::Bug { what: "a save panicked".into() })?;
        let folder = folder(step);
        if let Some(better) = self.better.take_if(|better| better.step == step)
            && end.is_ok()
        {
            self.kept = Some(better);
        }
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
