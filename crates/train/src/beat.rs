//! What ranks tell whoever started them while they run: how far they are and which calls they wait in. One small file per
//! rank, written over and over, which stays readable when its process is stuck or gone.

use crate::drill::{Fault, What};
use crate::error::{Error, Result};
use crate::trainer::Healing;
use planaria_comm::{Comm, CommExt, Visit, Watch, watched};
use planaria_store::Trap;
use planaria_telemetry::Slate;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// How the names of the files end.
const ENDING: &str = "beat";

/// What one rank last told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// The rank.
    pub rank: usize,
    /// Its process.
    pub process: u32,
    /// The step it is in, from 1; 0 before the first.
    pub step: u64,
    /// Steps that are saved and committed, as far as this rank knows.
    #[serde(default)]
    pub saved: u64,
    /// Calls to other ranks that have ended.
    pub calls: u64,
    /// Calls that it has come to, by the group that makes them.
    #[serde(default)]
    pub lanes: BTreeMap<String, u64>,
    /// Operations on each place of checkpoints, where a drill counts them.
    #[serde(default)]
    pub operations: Vec<u64>,
    /// Calls that it waits in, the oldest first.
    pub waiting: Vec<Waiting>,
}

/// A call that a rank waits in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Waiting {
    /// The call.
    pub call: String,
    /// Its number among the calls of its group.
    pub number: u64,
    /// The ranks that it needs.
    pub ranks: Vec<usize>,
    /// Which group of these ranks.
    pub lane: String,
}

impl Beat {
    /// What all ranks have told in a folder, by rank.
    pub fn read_all(folder: &Path) -> Vec<Beat> {
        let mut all: Vec<Beat> = planaria_telemetry::read_slates(folder, ENDING);
        all.sort_by_key(|beat| beat.rank);
        all
    }
}

/// Tells what one rank does, and lets a drill's fault happen where it should.
#[derive(Debug)]
pub(crate) struct Pulse {
    rank: usize,
    file: Option<Slate>,
    faults: Vec<Fault>,
    traps: Vec<Trap>,
    /// Calls that this rank has come to.
    came: AtomicU64,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    step: u64,
    saved: u64,
    calls: u64,
    lanes: BTreeMap<String, u64>,
    waiting: BTreeMap<u64, Visit>,
}

impl Pulse {
    /// The pulse of a rank; silent where nobody asked to be told.
    pub(crate) fn new(rank: usize, healing: &Healing) -> Result<Pulse> {
        let open =
            |folder: &Path| Ok::<_, Error>(Slate::create(&folder.join(format!("rank-{rank:05}.{ENDING}")))?);
        let file = healing.beats.as_deref().map(open).transpose()?;
        let faults = healing.faults.iter().filter(|fault| fault.rank == rank).cloned().collect();
        let (traps, came) = (healing.traps.clone(), AtomicU64::new(0));
        let pulse = Pulse { rank, file, faults, traps, came, now: Mutex::default() };
        pulse.change(|_| ());
        Ok(pulse)
    }

    /// The communicator whose calls are told, where anybody listens.
    pub(crate) fn watch(self: &Arc<Pulse>, comm: Arc<dyn Comm>) -> Arc<dyn Comm> {
        match self.file.is_some() || !self.faults.is_empty() {
            true => watched(comm, self.clone()),
            false => comm,
        }
    }

    /// A step begins.
    pub(crate) fn step(&self, step: u64) {
        self.faults.iter().filter(|fault| fault.is_at_step(step)).for_each(Fault::happen);
        self.change(|now| now.step = step);
    }

    /// What should happen to a weight after this step: [`What::Flip`], [`What::Nan`] or nothing.
    pub(crate) fn harm(&self, step: u64) -> Option<What> {
        let mut harms = self.faults.iter().filter(|fault| matches!(fault.what, What::Flip | What::Nan));
        harms.find(|fault| fault.is_at_step(step)).map(|fault| fault.what)
    }

    /// A checkpoint is committed.
    pub(crate) fn saved(&self, step: u64) {
        self.change(|now| now.saved = step);
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut now);
        let Some(file) = &self.file else { return };
        let told = |visit: &Visit| Waiting {
            call: visit.call.into(),
            number: visit.number,
            ranks: visit.ranks.clone(),
            lane: visit.lane.clone(),
        };
        let mut beat = Beat {
            rank: self.rank,
            process: std::process::id(),
            step: now.step,
            saved: now.saved,
            calls: now.calls,
            lanes: now.lanes.clone(),
            operations: self.traps.iter().map(Trap::operations).collect(),
            waiting: now.waiting.values().map(told).collect(),
        };
        if !file.write(&beat) {
            // Long lists are left out rather than cut.
            beat.lanes.clear();
            beat.waiting.iter_mut().for_each(|waiting| waiting.ranks.clear());
            beat.waiting.truncate(8);
            let _ = file.write(&beat);
        }
    }
}

impl Watch for Pulse {
    fn came(&self, visit: Visit) -> u64 {
        let number = self.came.fetch_add(1, SeqCst);
        let lane = visit.lane.clone();
        let call = {
            let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
            let calls = now.lanes.entry(lane.clone()).or_default();
            *calls += 1;
            *calls - 1
        };
        self.faults.iter().filter(|fault| fault.is_at_call(&lane, call)).for_each(Fault::happen);
        self.change(|now| drop(now.waiting.insert(number, visit)));
        number
    }

    fn left(&self, visit: u64) {
        self.change(|now| {
            now.waiting.remove(&visit);
            now.calls += 1;
        });
    }
}

/// The pulse of the rank that a communicator belongs to, and the communicator as it is watched.
pub(crate) fn feel(comm: Arc<dyn Comm>, healing: &Healing) -> Result<(Arc<Pulse>, Arc<dyn Comm>)> {
    let pulse = Arc::new(Pulse::new(comm.world_rank(), healing)?);
    let comm = pulse.watch(comm);
    Ok((pulse, comm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_tells_the_calls_that_a_rank_waits_in() {
        let folder = tempfile::tempdir().unwrap();
        let healing = Healing { beats: Some(folder.path().into()), ..Healing::default() };
        let pulse = Pulse::new(3, &healing).unwrap();
        pulse.step(7);
        let visit = |number| Visit { call: "all_reduce", ranks: vec![1, 3], lane: "world".into(), number };
        let (first, second) = (pulse.came(visit(4)), pulse.came(visit(5)));
        pulse.left(first);
        let found = Beat::read_all(folder.path());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rank, found[0].step, found[0].calls), (3, 7, 1));
        assert_eq!(found[0].lanes, BTreeMap::from([("world".to_string(), 2)]));
        assert_eq!(
            found[0].waiting.iter().map(|w| (w.number, w.ranks.clone())).collect::<Vec<_>>(),
            [(5, vec![1, 3])]
        );
        pulse.left(second);
        assert!(Beat::read_all(folder.path())[0].waiting.is_empty());
        let many = Visit { call: "barrier", ranks: (0..5000).collect(), lane: "world".into(), number: 0 };
        pulse.came(many);
        assert!(Beat::read_all(folder.path())[0].waiting[0].ranks.is_empty());
    }
}
