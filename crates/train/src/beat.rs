//! What ranks tell whoever started them while they run: how far they are and which calls they wait in. One small file per
//! rank, written over and over, which stays readable when its process is stuck or gone.

use crate::drill::{Fault, What};
use crate::error::{Error, Result};
use planaria_comm::{Comm, CommExt, Visit, Watch, watched};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a file: every beat has as many, so that none is left of a longer one.
const BYTES: usize = 4096;

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
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let beats =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "beat"));
        // A file that is being written is read the next time.
        let read = |path: PathBuf| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
        let mut all: Vec<Beat> = beats.filter_map(read).collect();
        all.sort_by_key(|beat| beat.rank);
        all
    }
}

/// Tells what one rank does, and lets a drill's fault happen where it should.
#[derive(Debug)]
pub(crate) struct Pulse {
    rank: usize,
    file: Option<File>,
    fault: Option<Fault>,
    /// Calls that this rank has come to.
    came: AtomicU64,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    step: u64,
    saved: u64,
    calls: u64,
    waiting: BTreeMap<u64, Visit>,
}

impl Pulse {
    /// The pulse of a rank; silent without a folder.
    pub(crate) fn new(folder: Option<&Path>, rank: usize, fault: Option<Fault>) -> Result<Pulse> {
        let open = |folder: &Path| {
            let path = folder.join(format!("rank-{rank:05}.beat"));
            let file = File::create(&path);
            file.map_err(|source| Error::Io { path: path.display().to_string(), source })
        };
        let file = folder.map(open).transpose()?;
        let fault = fault.filter(|fault| fault.rank == rank);
        let pulse = Pulse { rank, file, fault, came: AtomicU64::new(0), now: Mutex::default() };
        pulse.change(|_| ());
        Ok(pulse)
    }

    /// The communicator whose calls are told, where anybody listens.
    pub(crate) fn watch(self: &Arc<Pulse>, comm: Arc<dyn Comm>) -> Arc<dyn Comm> {
        match self.file.is_some() || self.fault.is_some() {
            true => watched(comm, self.clone()),
            false => comm,
        }
    }

    /// A step begins.
    pub(crate) fn step(&self, step: u64) {
        if let Some(fault) = self.fault.filter(|fault| fault.is_at_step(step)) {
            fault.happen();
        }
        self.change(|now| now.step = step);
    }

    /// True where a bit should flip after this step.
    pub(crate) fn flips(&self, step: u64) -> bool {
        self.fault.is_some_and(|fault| fault.what == What::Flip && fault.is_at_step(step))
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
            waiting: now.waiting.values().map(told).collect(),
        };
        let mut text = serde_json::to_vec(&beat).unwrap_or_default();
        if text.len() >= BYTES {
            // Long lists of ranks are left out rather than cut.
            beat.waiting.iter_mut().for_each(|waiting| waiting.ranks.clear());
            beat.waiting.truncate(8);
            text = serde_json::to_vec(&beat).unwrap_or_default();
        }
        text.resize(BYTES, b' ');
        // Nobody can be told that nobody can be told.
        let _ = file.write_all_at(&text, 0);
    }
}

impl Watch for Pulse {
    fn came(&self, visit: Visit) -> u64 {
        let number = self.came.fetch_add(1, SeqCst);
        if let Some(fault) = self.fault.filter(|fault| fault.is_at_call(number)) {
            fault.happen();
        }
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
pub(crate) fn feel(
    comm: Arc<dyn Comm>,
    folder: Option<&Path>,
    fault: Option<Fault>,
) -> Result<(Arc<Pulse>, Arc<dyn Comm>)> {
    let pulse = Arc::new(Pulse::new(folder, comm.world_rank(), fault)?);
    let comm = pulse.watch(comm);
    Ok((pulse, comm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_tells_the_calls_that_a_rank_waits_in() {
        let folder = tempfile::tempdir().unwrap();
        let pulse = Pulse::new(Some(folder.path()), 3, None).unwrap();
        pulse.step(7);
        let visit = |number| Visit { call: "all_reduce", ranks: vec![1, 3], lane: "world".into(), number };
        let (first, second) = (pulse.came(visit(4)), pulse.came(visit(5)));
        pulse.left(first);
        let found = Beat::read_all(folder.path());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rank, found[0].step, found[0].calls), (3, 7, 1));
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
