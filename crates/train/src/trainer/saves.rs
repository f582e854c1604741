//! Saves that are written while training continues.

use super::Job;
use super::line::Held;
use super::lock::Lock;
use super::place::Pace;
use super::records::Records;
use super::resume::Best;
use super::tiers::Tier;
use super::writer::{Ahead, End, Taken, Work, Writer};
use crate::error::{Error, Result};
use crate::event::{Event, SaveProgress};
use planaria_array::Array;
use planaria_ckpt::{FileNames, Replicas, Retain, SaveOptions, TrainState};
use planaria_comm::{AllReduce, Comm, CommExt};
use planaria_layout::Reduce;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

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

/// The saves of one rank.
#[derive(Debug)]
pub(super) struct Saves {
    world: Arc<dyn Comm>,
    /// Of saves alone, so that they cannot get in the way of training.
    comm: Arc<dyn Comm>,
    tiers: Vec<Tier>,
    options: SaveOptions,
    /// Started by the first save, or ahead of it.
    writer: Option<Writer>,
    pace: Pace,
    /// The best evaluation so far whose checkpoint is committed.
    kept: Option<Best>,
    /// A better one whose checkpoint is being saved.
    better: Option<Best>,
    /// Step and folder of the newest checkpoint that is committed in the run's folder.
    pub(super) newest: Option<(u64, String)>,
    /// The newest step that is committed anywhere.
    pub(super) safe: u64,
    /// Checkpoints of each place after the one that the run went back to; they go before the first save there.
    pub(super) newer: Vec<Vec<u64>>,
    /// Bytes written and when, at the last look at the save under way.
    looked: Option<(u64, u64, Instant)>,
    /// Only rank 0 tells.
    tells: bool,
    pub(super) records: Option<Arc<Records>>,
    /// Rank 0 keeps other processes out of the run's folder, until the last save there has ended.
    lock: Option<Arc<Lock>>,
}

impl Saves {
    /// Collective.
    pub(super) fn new(world: &Arc<dyn Comm>, job: &Job, lock: Option<Lock>) -> Result<Saves> {
        let comm = world.split(&[world.ranks().to_vec()])?;
        let comm = comm.ok_or_else(|| Error::Bug { what: "a rank outside its own world".into() })?;
        let tiers = job.tiers()?;
        let names = if job.config.lora.is_some() { FileNames::Adapter } else { FileNames::Model };
        let replicas = match job.config.heal.compare_every {
            0 => Replicas::Trust,
            _ => Replicas::Compare,
        };
        Ok(Saves {
            tells: world.rank() == 0,
            world: world.clone(),
            comm,
            newer: vec![Vec::new(); tiers.len()],
            tiers,
            options: SaveOptions { names, replicas, ..SaveOptions::default() },
            writer: None,
            pace: Pace::Wait,
            kept: None,
            better: None,
            newest: None,
            safe: 0,
            looked: None,
            records: None,
            lock: lock.map(Arc::new),
        })
    }

    /// Decides how saves are paced, for a rank that saves so many bytes. Collective.
    pub(super) fn set_pace(&mut self, job: &Job, bytes: usize) -> Result<()> {
        let most = Array::from_slice(&[bytes as i64], &[1])?;
        self.world.all_reduce(AllReduce { send: most.clone(), recv: most.clone(), op: Reduce::Max })?;
        let most = most.to_vec::<i64>()?[0] as u64;
        self.pace = Pace::of(&job.config.checkpoint, most);
        Ok(())
    }

    /// Whether training continues while a snapshot is written.
    pub(super) fn overlaps(&self) -> bool {
        self.pace != Pace::Stand
    }

    /// Starts the thread that writes, to make what the first save would wait for. What older checkpoints must go is known.
    pub(super) fn start_ahead(&mut self, ahead: Ahead) -> Result<()> {
        self.writer_with(Some(ahead)).map(drop)
    }

    /// Where the snapshot of a step is due.
    pub(super) fn due(&self, step: u64) -> Vec<usize> {
        (0..self.tiers.len()).filter(|&tier| self.tiers[tier].is_due(step)).collect()
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
    pub(super) fn progress(&mut self) -> Option<SaveProgress> {
        let (step, tier, meter) = self.writer.as_ref()?.now()?;
        let (bytes, total) = meter.bytes()?;
        let now = Instant::now();
        let rate = match self.looked.replace((step, bytes, now)) {
            Some((same, before, then)) if same == step && bytes >= before => {
                Some((bytes - before) as f64 / (now - then).as_secs_f64().max(1e-9))
            }
            _ => None,
        };
        let tier = self.tiers[tier].name.clone();
        Some(SaveProgress { step, bytes, total, rate, tier })
    }

    /// Begins to save to these places; how long training waits for what is still under way is the pace's. Collective.
    pub(super) fn begin(
        &mut self,
        job: &Job,
        to: &[usize],
        take: impl FnOnce() -> Result<TrainState>,
        keep: Keep,
    ) -> Result<()> {
        let began = Instant::now();
        // What must stay follows from what is committed.
        if self.pace != Pace::Drop || self.better.is_some() {
            self.finish(job)?;
        }
        let state = take()?;
        let step = state.step;
        let best: Vec<u64> = [self.kept, self.better].iter().flatten().map(|best| best.step).collect();
        let retain = |tier: &usize| match (keep, &self.tiers[*tier]) {
            (Keep::All, _) => (*tier, Retain::default()),
            (_, place) => {
                let every = job.config.checkpoint.keep_every;
                let every = Some(every).filter(|every| *every > 0 && place.kind.is_none());
                let best = if place.kind.is_none() { best.clone() } else { Vec::new() };
                (*tier, Retain { last: Some(place.keep), every, best, ..Retain::default() })
            }
        };
        let to: BTreeMap<usize, Retain> = to.iter().map(retain).collect();
        self.tell(job, &Event::Saving { step });
        let what = Taken { state, began, blocked: began.elapsed() };
        self.writer_with(None)?.post(Held { step, to, what });
        if self.pace == Pace::Stand {
            self.finish(job)?;
        }
        Ok(())
    }

    /// The thread that writes, started where it is not there.
    fn writer_with(&mut self, ahead: Option<Ahead>) -> Result<&Writer> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let (comm, tiers, options) = (self.comm.clone(), self.tiers.clone(), self.options.clone());
                let (newer, lock) = (std::mem::take(&mut self.newer), self.lock.clone());
                Writer::start(Work { comm, tiers, options, newer, ahead, _lock: lock })?
            }
        };
        Ok(self.writer.insert(writer))
    }

    /// Tells of saves that have ended meanwhile; why the last one to the run's folder failed, if it did.
    pub(super) fn poll(&mut self, job: &Job) -> Option<String> {
        let mut why = None;
        for end in self.writer.as_ref().map(Writer::ends).unwrap_or_default() {
            match end {
                End::Dropped { step, by } => self.tell(job, &Event::SaveDropped { step, by }),
                End::Written { step, tier, failed, unremoved, blocked, took } => {
                    let place = self.tiers[tier].clone();
                    if let Some(better) =
                        self.better.take_if(|better| better.step == step && place.kind.is_none())
                        && failed.is_none()
                    {
                        self.kept = Some(better);
                    }
                    if place.kind.is_none() {
                        why = failed.clone();
                    }
                    let label = place.label(&folder(step));
                    match failed {
                        None => {
                            if place.kind.is_none() {
                                self.newest = Some((step, folder(step)));
                            }
                            self.safe = self.safe.max(step);
                            if let Some(error) = unremoved {
                                self.tell(job, &Event::NotRemoved { step, error });
                            }
                            self.tell(job, &Event::Saved { step, folder: label, blocked, took });
                        }
                        Some(error) => {
                            let error = match place.kind {
                                None => error,
                                Some(kind) => format!("to {kind}: {error}"),
                            };
                            self.tell(job, &Event::SaveFailed { step, error });
                        }
                    }
                }
            }
        }
        why
    }

    /// Waits for all saves. A failed one is told, not returned: the checkpoints before it are still good. Why the last one failed,
    /// if it did.
    pub(super) fn finish(&mut self, job: &Job) -> Result<Option<String>> {
        if let Some(writer) = &self.writer {
            writer.settle()?;
        }
        Ok(self.poll(job))
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
