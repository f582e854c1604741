//! The one thread of a rank that writes checkpoints. Snapshots wait for it in a short line; where that is allowed, a newer one
//! takes the place of those that nobody has begun to write.

use super::line::{Dropped, Held, Waiting};
use super::lock::Lock;
use super::place::quick_first;
use super::saves::folder;
use super::tiers::Tier;
use crate::error::{Error, Result};
use planaria_array::{Array, DType, Device};
use planaria_ckpt::{Meter, SaveOptions, TrainState};
use planaria_comm::{AllReduce, Comm, CommExt};
use planaria_layout::Reduce;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A snapshot to be written.
pub(super) type Snapshot = Held<Taken>;

/// A state as it was.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) state: TrainState,
    /// When training stopped for it, and for how long.
    pub(super) began: Instant,
    pub(super) blocked: Duration,
}

/// What became of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// It is committed, or failed for this reason.
    Written {
        step: u64,
        tier: usize,
        failed: Option<String>,
        /// Why older ones stay that should go.
        unremoved: Option<String>,
        blocked: Duration,
        took: Duration,
    },
    /// A newer one took its place.
    Dropped { step: u64, by: u64 },
}

#[derive(Debug, Default)]
struct Line {
    waiting: Waiting<Taken>,
    /// Step and place that are written now.
    writing: Option<(u64, usize)>,
    ends: Vec<End>,
    /// True while ranks find out which snapshot all have: none that waits may be dropped meanwhile.
    agreeing: bool,
    closed: bool,
}

/// The thread, seen from training.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    line: Mutex<Line>,
    changed: Condvar,
    meter: Mutex<Arc<Meter>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        self.changed.wait(line).unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread makes before the first snapshot comes, so that this one costs training what later ones do: its own way to the device, and as
/// much touched memory of the host as copies of a state take, which the allocator then keeps.
#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) device: Device,
    /// Bytes of each array.
    pub(super) sizes: Vec<usize>,
}

impl Ahead {
    fn make(self) -> planaria_array::Result<()> {
        drop(Array::zeros_on(&[TRIAL], DType::U8, self.device)?.to(Device::Cpu)?);
        // All at once, or each would have the memory of the one before.
        let touched = |&bytes: &usize| Array::full(&[bytes], 1, DType::U8);
        self.sizes.iter().map(touched).collect::<planaria_array::Result<Vec<_>>>().map(drop)
    }
}

/// Bytes of a copy that goes the way of large ones.
const TRIAL: usize = 4 << 20;

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Work {
    /// Of its own, so that saves cannot get in the way of training.
    pub(super) comm: Arc<dyn Comm>,
    pub(super) tiers: Vec<Tier>,
    pub(super) options: SaveOptions,
    /// Checkpoints of each place that come after the one that the run went back to; they go before the first save there. Only rank
    /// 0 knows of any.
    pub(super) newer: Vec<Vec<u64>>,
    pub(super) ahead: Option<Ahead>,
    /// The run's folder stays taken while anything is written to it.
    pub(super) _lock: Option<Arc<Lock>>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(work: Work) -> Result<Writer> {
        let shared =
            Arc::new(Shared { line: Mutex::default(), changed: Condvar::new(), meter: Mutex::default() });
        let theirs = shared.clone();
        let thread =
            std::thread::Builder::new().name("planaria-save".into()).spawn(move || work.serve(&theirs));
        let thread = thread.map_err(|source| Error::Io { path: "the thread of saves".into(), source })?;
        Ok(Writer { shared, thread: Some(thread) })
    }

    /// True while anything is written or waits.
    pub(super) fn is_busy(&self) -> bool {
        let line = self.shared.lock();
        line.writing.is_some() || !line.waiting.is_empty()
    }

    /// Adds a snapshot; of more than can wait, the oldest is dropped.
    pub(super) fn post(&self, snapshot: Snapshot) {
        let mut line = self.shared.lock();
        while line.agreeing && line.waiting.is_full() {
            line = self.shared.wait(line);
        }
        let dropped = line.waiting.post(snapshot);
        line.ends.extend(dropped.map(End::from));
        self.shared.changed.notify_all();
    }

    /// Waits until nothing is written and nothing waits.
    pub(super) fn settle(&self) -> Result<()> {
        let mut line = self.shared.lock();
        while line.writing.is_some() || !line.waiting.is_empty() {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err(Error::Bug { what: "a save panicked".into() });
            }
            let pause = Duration::from_millis(200);
            let waited = self.shared.changed.wait_timeout(line, pause);
            line = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// What has come to an end since the last time.
    pub(super) fn ends(&self) -> Vec<End> {
        std::mem::take(&mut self.shared.lock().ends)
    }

    /// The save under way: its step, its place, and how far it is.
    pub(super) fn now(&self) -> Option<(u64, usize, Arc<Meter>)> {
        let (step, tier) = self.shared.lock().writing?;
        Some((step, tier, self.shared.meter.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        // A thread whose ranks are lost ends with its calls; one that waits for storage must not keep the rank.
        if let Some(thread) = self.thread.take().filter(|_| !self.is_busy()) {
            let _ = thread.join();
        }
    }
}

impl From<Dropped> for End {
    fn from(Dropped { step, by }: Dropped) -> End {
        End::Dropped { step, by }
    }
}

impl Work {
    fn serve(mut self, shared: &Shared) {
        // Only speed is lost without it; what a save cannot have either, it tells.
        let _ = self.ahead.take().map(Ahead::make);
        loop {
            let held = {
                let mut line = shared.lock();
                while line.waiting.is_empty() && !line.closed {
                    line = shared.wait(line);
                }
                let Some(held) = line.waiting.ends() else { return };
                line.agreeing = true;
                held
            };
            let agreed = self.agree(held);
            let snapshot = {
                let mut line = shared.lock();
                line.agreeing = false;
                shared.changed.notify_all();
                let step = *agreed.as_ref().unwrap_or(&held[0]);
                loop {
                    let dropped = line.waiting.drop_before(step);
                    line.ends.extend(dropped.into_iter().map(End::from));
                    if line.closed || line.waiting.ends().is_none_or(|[first, _]| first >= step) {
                        break;
                    }
                    // The one that all have comes with training's next step.
                    line = shared.wait(line);
                }
                let snapshot = line.waiting.pop();
                line.writing = snapshot.as_ref().and_then(|s| Some((s.step, *s.to.keys().next()?)));
                snapshot
            };
            if let Some(snapshot) = snapshot {
                self.write(shared, snapshot, agreed.err().map(|error| error.to_string()));
            }
            shared.lock().writing = None;
            shared.changed.notify_all();
        }
    }

    /// The newest snapshot that every rank has, given the oldest and the newest of this one. Collective.
    fn agree(&self, [oldest, newest]: [u64; 2]) -> Result<u64> {
        let steps = Array::from_slice(&[oldest as i64, -(newest as i64)], &[2])?;
        self.comm.all_reduce(AllReduce { send: steps.clone(), recv: steps.clone(), op: Reduce::Max })?;
        let steps = steps.to_vec::<i64>()?;
        Ok(steps[0].max(-steps[1]) as u64)
    }

    fn write(&mut self, shared: &Shared, snapshot: Snapshot, lost: Option<String>) {
        let Held { step, to, what: Taken { mut state, began, blocked } } = snapshot;
        // What cannot be copied is tried once more by the save, which tells all ranks.
        let _ = state.to_host();
        for tier in quick_first(&self.tiers, to.keys()) {
            let meter = Arc::new(Meter::default());
            *shared.meter.lock().unwrap_or_else(PoisonError::into_inner) = meter.clone();
            shared.lock().writing = Some((step, tier));
            let options =
                SaveOptions { meter: Some(meter), retain: to[&tier].clone(), ..self.options.clone() };
            let saved = match &lost {
                Some(why) => Err(why.clone()),
                None => self.save(tier, step, &state, &options).map_err(|error| error.to_string()),
            };
            let (failed, unremoved) = match saved {
                Ok(unremoved) => (None, unremoved),
                Err(why) => (Some(why), None),
            };
            let end = End::Written { step, tier, failed, unremoved, blocked, took: began.elapsed() };
            shared.lock().ends.push(end);
        }
    }

    fn save(
        &mut self,
        tier: usize,
        step: u64,
        state: &TrainState,
        options: &SaveOptions,
    ) -> planaria_ckpt::Result<Option<String>> {
        let store = self.tiers[tier].store.clone();
        let newer = &mut self.newer[tier];
        // Where an old one cannot be removed, the save says what stands in its way, and the next one tries again.
        let mut removed = Ok(());
        while let (Ok(()), Some(&step)) = (&removed, newer.last()) {
            removed = planaria_ckpt::remove(&*store, &folder(step));
            newer.pop_if(|_| removed.is_ok());
        }
        let saved = planaria_ckpt::save(&*self.comm, &*store, &folder(step), state, options);
        removed.and(saved.map(|saved| saved.unremoved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CheckpointSection;
    use crate::trainer::place::Place;
    use planaria_ckpt::Retain;

    fn snapshot(step: u64, to: &[usize]) -> Snapshot {
        let to = to.iter().map(|&tier| (tier, Retain::default())).collect();
        let state = TrainState { step, ..TrainState::new(Vec::new()) };
        Held { step, to, what: Taken { state, began: Instant::now(), blocked: Duration::ZERO } }
    }

    #[test]
    fn every_snapshot_is_written_or_told_as_dropped_and_the_last_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        // Two ranks that run at their own pace, but never more than one snapshot apart.
        let told = planaria_comm::threads::run(2, |comm| {
            let store = planaria_store::open(&path).unwrap();
            let section = CheckpointSection { every: 1, keep: 3, ..CheckpointSection::default() };
            let tier = Tier { place: Place::all(&section).remove(0), store };
            let (tiers, options) = (vec![tier], SaveOptions::default());
            let saves = comm.split(&[comm.ranks().to_vec()]).unwrap().unwrap();
            let newer = vec![Vec::new()];
            let work = Work { comm: saves, tiers, options, newer, ahead: None, _lock: None };
            let writer = Writer::start(work).unwrap();
            for step in 1..=30 {
                comm.barrier().unwrap();
                writer.post(snapshot(step, &[0]));
            }
            writer.settle().unwrap();
            assert!(!writer.is_busy());
            writer.ends()
        });
        let written = |ends: &[End]| -> Vec<u64> {
            let step = |end: &End| match end {
                End::Written { step, failed: None, .. } => Some(*step),
                _ => None,
            };
            ends.iter().filter_map(step).collect()
        };
        assert_eq!(written(&told[0]), written(&told[1]));
        assert_eq!(written(&told[0]).last(), Some(&30));
        for ends in &told {
            let mut all: Vec<u64> = ends
                .iter()
                .map(|end| match end {
                    End::Written { step, failed, .. } => {
                        assert_eq!(*failed, None);
                        *step
                    }
                    End::Dropped { step, by } => {
                        assert!(by > step);
                        *step
                    }
                })
                .collect();
            all.sort_unstable();
            assert_eq!(all, (1..=30).collect::<Vec<_>>());
        }
    }

    #[test]
    #[cfg(not(planaria_checked))]
    fn memory_for_the_first_snapshot_is_there_before_it_comes() {
        let sizes = vec![37 << 20, 37 << 20, 43 << 20];
        let kept: usize = sizes.iter().map(|&bytes| planaria_array::allocated(bytes)).sum();
        let ahead = Some(Ahead { device: Device::Cpu, sizes });
        let (comm, options) = (planaria_comm::alone(), SaveOptions::default());
        let work = Work { comm, tiers: Vec::new(), options, newer: Vec::new(), ahead, _lock: None };
        // It ends when all is made.
        drop(Writer::start(work).unwrap());
        assert!(planaria_array::memory_stats().cached >= kept);
    }
}
