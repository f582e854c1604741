//! Which rank holds which stage.

use super::error::{Error, Result};

/// The rank of each stage, in the order of the model. Ranks are positions in the pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stages {
    rank_of: Vec<usize>,
    ranks: usize,
}

/// Most stages of a pipeline; tags of messages are made of their numbers.
const MOST: usize = 1 << 20;

impl Stages {
    /// Stages on the ranks given; every rank below the largest holds at least one.
    pub fn new(rank_of: &[usize]) -> Result<Stages> {
        let ranks = rank_of.iter().max().map_or(0, |&last| last.saturating_add(1));
        if rank_of.is_empty() || rank_of.len() > MOST {
            return Err(Error::Size {
                what: "stages",
                found: rank_of.len(),
                expected: format!("1 to {MOST}"),
            });
        }
        // More ranks than stages leave one idle, so this many places tell.
        let mut holds = vec![false; ranks.min(rank_of.len())];
        for &rank in rank_of {
            if let Some(place) = holds.get_mut(rank) {
                *place = true;
            }
        }
        match holds.iter().position(|holds| !holds) {
            None if ranks <= rank_of.len() => Ok(Stages { rank_of: rank_of.to_vec(), ranks }),
            idle => Err(Error::IdleRank { rank: idle.unwrap_or(rank_of.len()) }),
        }
    }

    /// `chunks` rounds over all ranks: stage `c * ranks + r` on rank `r`.
    pub fn round_robin(ranks: usize, chunks: usize) -> Result<Stages> {
        let count = stage_count(ranks, chunks)?;
        Stages::new(&(0..count).map(|stage| stage % ranks).collect::<Vec<_>>())
    }

    /// Down the ranks and up again: the first and the last stage are on rank 0.
    pub fn vee(ranks: usize) -> Result<Stages> {
        stage_count(ranks, 2)?;
        Stages::new(&(0..ranks).chain((0..ranks).rev()).collect::<Vec<_>>())
    }

    /// Number of stages.
    pub fn len(&self) -> usize {
        self.rank_of.len()
    }

    /// False: a pipeline has at least one stage.
    pub fn is_empty(&self) -> bool {
        self.rank_of.is_empty()
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The rank that holds a stage.
    pub fn rank_of(&self, stage: usize) -> Option<usize> {
        self.rank_of.get(stage).copied()
    }

    /// The stages of a rank, in the order of the model.
    pub fn of(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        self.rank_of.iter().enumerate().filter(move |(_, r)| **r == rank).map(|(stage, _)| stage)
    }

    /// The rank of each stage.
    pub fn as_slice(&self) -> &[usize] {
        &self.rank_of
    }

    /// The rank that the stage before lies on, when that is another.
    pub fn before(&self, stage: usize) -> Option<usize> {
        let before = self.rank_of(stage.checked_sub(1)?)?;
        (Some(before) != self.rank_of(stage)).then_some(before)
    }

    /// The rank that the stage after lies on, when that is another.
    pub fn after(&self, stage: usize) -> Option<usize> {
        let after = self.rank_of(stage + 1)?;
        (Some(after) != self.rank_of(stage)).then_some(after)
    }
}

fn stage_count(ranks: usize, chunks: usize) -> Result<usize> {
    let most = || format!("1 to {MOST} stages in all");
    match ranks.checked_mul(chunks) {
        Some(0) if ranks == 0 => Err(Error::Size { what: "ranks", found: 0, expected: most() }),
        Some(0) => Err(Error::Size { what: "chunks", found: 0, expected: most() }),
        Some(count) if count <= MOST => Ok(count),
        _ => Err(Error::Size { what: "ranks", found: ranks, expected: most() }),
    }
}
