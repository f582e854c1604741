//! When every action of a pipeline's step began and ended on a rank: a file per rank with the newest such steps.

use crate::error::{Error, Result};
use crate::metrics::now;
use crate::ranks::RANKS;
use crate::slate::read_slates;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

const ENDING: &str = "steps";

/// Steps that a file has: one rank may have told a step that another has not yet, and the one before is told by all.
const KEPT: usize = 2;

/// An action, such as `2F0`, with its beginning and its end in seconds since the step began on this rank.
pub type TimedAction = (String, f64, f64);

/// One step of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimedStep {
    /// The step.
    pub step: u64,
    /// When its first action began by the clock of the machine, in seconds since 1970.
    pub begin: f64,
    /// Its actions in order.
    pub actions: Vec<TimedAction>,
}

/// The steps that one rank told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankSteps {
    /// The rank.
    pub rank: usize,
    /// The machine that it is on.
    pub host: String,
    /// The ranks of its pipeline, first to last.
    pub pipeline: Vec<usize>,
    /// The newest steps, newest last.
    pub steps: Vec<TimedStep>,
}

impl RankSteps {
    /// What all ranks of a run have told, by rank.
    pub fn read_all(run: &Path) -> Vec<RankSteps> {
        let mut all: Vec<RankSteps> = read_slates(&run.join(RANKS), ENDING);
        all.sort_by_key(|told| told.rank);
        all
    }
}

/// The file of one rank.
#[derive(Debug)]
pub struct RankStepsFile {
    path: PathBuf,
    told: RankSteps,
}

impl RankStepsFile {
    /// The file of a rank in its pipeline; nothing is written before there is something to tell. What an earlier process of the
    /// rank has left is removed, and rank 0 removes what is left of ranks that are not there.
    pub fn create(run: &Path, rank: usize, ranks: usize, pipeline: &[usize]) -> Result<RankStepsFile> {
        let folder = run.join(RANKS);
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let path = |rank: usize| folder.join(format!("rank-{rank:05}.{ENDING}"));
        let others = if rank == 0 { RankSteps::read_all(run) } else { Vec::new() };
        let others = others.into_iter().map(|told| told.rank).filter(|&old| old >= ranks);
        for old in others.chain([rank]) {
            // Most often there is none; one that cannot be removed is told apart by its pipeline.
            let _ = std::fs::remove_file(path(old));
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (host, pipeline) = (host.trim().to_string(), pipeline.to_vec());
        Ok(RankStepsFile { path: path(rank), told: RankSteps { rank, host, pipeline, steps: Vec::new() } })
    }

    /// Tells a step that began so long ago. A reader finds the file as it was or as it is, never half of it.
    pub fn tell(&mut self, step: u64, ago: Duration, actions: Vec<TimedAction>) {
        let rounded = |seconds: f64| (seconds * 1e6).round() / 1e6;
        let actions = actions.into_iter().map(|(name, start, end)| (name, rounded(start), rounded(end)));
        let begin = rounded(now() - ago.as_secs_f64());
        self.told.steps.push(TimedStep { step, begin, actions: actions.collect() });
        let extra = self.told.steps.len().saturating_sub(KEPT);
        self.told.steps.drain(..extra);
        let new = self.path.with_extension("new");
        // A disk that is full has nobody to tell: what was there stays.
        let text = serde_json::to_vec(&self.told).unwrap_or_default();
        let _ = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_two_steps_are_told_and_old_ranks_are_forgotten() {
        let run = tempfile::tempdir().unwrap();
        let mut files = [0, 1].map(|rank| RankStepsFile::create(run.path(), rank, 2, &[0, 1]).unwrap());
        for step in 1..=3 {
            let action = |text: &str| (text.to_string(), 0.25, 0.5 + step as f64);
            files[1].tell(step, Duration::from_secs(2), vec![action(">1F0"), action("1F0")]);
        }
        let [told] = &RankSteps::read_all(run.path())[..] else { panic!("rank 0 has told nothing") };
        assert_eq!((told.rank, &told.pipeline[..], told.steps.len()), (1, &[0, 1][..], 2));
        assert_eq!((told.steps[1].step, &told.steps[1].actions[1]), (3, &("1F0".into(), 0.25, 3.5)));
        assert!(now() - told.steps[1].begin > 1.99);
        // A run that goes on with one rank has no pipeline.
        RankStepsFile::create(run.path(), 0, 1, &[0]).unwrap();
        assert_eq!(RankSteps::read_all(run.path()), []);
    }
}
