//! Where each rank of a run is now: a file per rank, written over every few steps.

use crate::error::{Error, Result};
use crate::metrics::now;
use crate::slate::{Slate, read_slates};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The folder of these files in a run's folder.
pub const RANKS: &str = "ranks";

const ENDING: &str = "now";

/// What one rank last told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankNow {
    /// The rank.
    pub rank: usize,
    /// Its process.
    pub process: u32,
    /// The machine that is on.
    pub host: String,
    /// When it told, in seconds since 1970.
    pub time: f64,
    /// Steps done.
    pub step: u64,
    /// Seconds of the last step.
    pub seconds: f64,
    /// Bytes of its arrays.
    pub bytes: u64,
    /// The most there were at once.
    pub peak_bytes: u64,
    /// Bytes sent since the process started, by the axis of the mesh that they went along; `all` for several axes.
    pub sent: BTreeMap<String, u64>,
    /// The same for each step since the time before, on average.
    pub sent_each: BTreeMap<String, u64>,
}

impl RankNow {
    /// What all ranks of a run have told, by rank.
    pub fn read_all(run: &Path) -> Vec<RankNow> {
        let mut all: Vec<RankNow> = read_slates(&run.join(RANKS), ENDING);
        all.sort_by_key(|now| now.rank);
        all
    }

    /// Bytes sent in a step, over all axes.
    pub fn sent_a_step(&self) -> u64 {
        self.sent_each.values().fold(0, |all, &bytes| all.saturating_add(bytes))
    }
}

/// The file of one rank.
#[derive(Debug)]
pub struct RankSlate {
    slate: Slate,
    host: String,
}

impl RankSlate {
    /// Makes the file of a rank of so many; the first one removes what more ranks have left.
    pub fn create(run: &Path, rank: usize, ranks: usize) -> Result<RankSlate> {
        let folder = run.join(RANKS);
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        if rank == 0 {
            let old = RankNow::read_all(run).into_iter().filter(|now| now.rank >= ranks);
            old.for_each(|now| drop(std::fs::remove_file(folder.join(name(now.rank)))));
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(RankSlate { slate: Slate::create(&folder.join(name(rank)))?, host: host.trim().to_string() })
    }

    /// Tells where the rank is; process, host and time are added.
    pub fn tell(&self, told: RankNow) {
        let (process, host) = (std::process::id(), self.host.clone());
        // A few axes fit whatever their figures.
        let _ = self.slate.write(&RankNow { process, host, time: now(), ..told });
    }
}

fn name(rank: usize) -> String {
    format!("rank-{rank:05}.{ENDING}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_word_of_every_rank_is_read() {
        let run = tempfile::tempdir().unwrap();
        let slates = [0, 1, 2].map(|rank| RankSlate::create(run.path(), rank, 3).unwrap());
        for step in [12_345, 7] {
            slates[1].tell(RankNow {
                rank: 1,
                step,
                sent_each: [("dp".into(), step)].into(),
                ..RankNow::default()
            });
        }
        let [told] = &RankNow::read_all(run.path())[..] else { panic!("others have told nothing yet") };
        assert_eq!((told.step, told.sent_a_step(), told.process), (7, 7, std::process::id()));
        // A run that goes on with one rank has one.
        let _slate = RankSlate::create(run.path(), 0, 1).unwrap();
        assert_eq!(RankNow::read_all(run.path()), []);
    }
}
