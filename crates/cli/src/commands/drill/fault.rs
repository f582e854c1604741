//! The kinds of faults, and where a seed lets them happen.

use super::scratch::{Reached, Undisturbed};
use serde::Serialize;
use std::fmt;

/// What is done to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FaultKind {
    /// A rank is killed with SIGKILL
    Kill,
    /// A rank stands still
    Hang,
    /// A rank is away for longer than the others wait
    Partition,
    /// An allocation of a rank fails
    Oom,
    /// Writing fails for want of room, for a while
    DiskFull,
    /// Writing takes long
    SlowDisk,
    /// A bit of the newest checkpoint flips while the run is down
    Corrupt,
    /// A file of the newest checkpoint is cut short
    Torn,
    /// A file of the newest checkpoint is gone
    LostFile,
    /// The clock jumps: files are from the future or from long ago
    Clock,
}

impl FaultKind {
    pub(super) const ALL: [FaultKind; 10] = [
        FaultKind::Kill,
        FaultKind::Hang,
        FaultKind::DiskFull,
        FaultKind::SlowDisk,
        FaultKind::Corrupt,
        FaultKind::Torn,
        FaultKind::LostFile,
        FaultKind::Partition,
        FaultKind::Clock,
        FaultKind::Oom,
    ];
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = clap::ValueEnum::to_possible_value(self);
        f.write_str(name.as_ref().map_or("", |name| name.get_name()))
    }
}

/// Numbers that look random and are the same for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// Where a fault happens inside a run.
#[derive(Clone, Debug)]
enum Place {
    /// As a rank comes to a call.
    Call { rank: usize, lane: String, call: u64 },
    /// As a rank comes to an operation on the run's folder or a tier.
    Operation { rank: usize, tier: usize, operation: u64 },
}

impl Place {
    /// All places of a rank where a kind can happen.
    fn all(kind: FaultKind, rank: usize, has: &Reached) -> Vec<Place> {
        let calls = has.calls.iter().flat_map(|(lane, &calls)| {
            (0..calls).map(move |call| Place::Call { rank, lane: lane.clone(), call })
        });
        let operations = has.operations.iter().enumerate().flat_map(|(tier, &operations)| {
            (0..operations).map(move |operation| Place::Operation { rank, tier, operation })
        });
        match kind {
            FaultKind::Kill => calls.chain(operations).collect(),
            FaultKind::DiskFull | FaultKind::SlowDisk => operations.collect(),
            _ => calls.collect(),
        }
    }
}

/// A fault and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) kind: FaultKind,
    /// What happens inside a rank, as `PLANARIA_FAULT` says it.
    pub(super) inside: Option<String>,
    /// What happens to the store, as `PLANARIA_STORE_FAULT` says it.
    pub(super) store: Option<String>,
    /// Chooses the file and the place in it, for what happens to files.
    pub(super) pick: u64,
}

impl Planned {
    pub(super) fn new(kind: FaultKind, dice: &mut Dice, whole: &Undisturbed) -> Planned {
        let (rank, step) = (dice.below(whole.ranks.len() as u64) as usize, 1 + dice.below(whole.steps));
        let (place, pick) = (dice.below(u64::MAX), dice.below(u64::MAX));
        let rank_has = whole.ranks.get(rank).cloned().unwrap_or_default();
        match kind {
            FaultKind::Corrupt | FaultKind::Torn | FaultKind::LostFile | FaultKind::Clock => {
                Planned::between(kind, rank, step, pick, whole)
            }
            _ => {
                let places = Place::all(kind, rank, &rank_has);
                let place = places.get(place as usize % places.len().max(1));
                Planned::at(kind, place, pick)
            }
        }
    }

    /// A fault of this kind at every place where it can happen.
    pub(super) fn everywhere(kind: FaultKind, whole: &Undisturbed) -> Vec<Planned> {
        if matches!(kind, FaultKind::Corrupt | FaultKind::Torn | FaultKind::LostFile | FaultKind::Clock) {
            // Every file of a small checkpoint, and then some bytes of them.
            let all = (0..16).map(|pick| {
                Planned::between(kind, pick as usize % whole.ranks.len().max(1), whole.steps, pick, whole)
            });
            return all.collect();
        }
        let ranks = whole.ranks.iter().enumerate();
        let places = ranks.flat_map(|(rank, has)| Place::all(kind, rank, has));
        places.map(|place| Planned::at(kind, Some(&place), 0)).collect()
    }

    /// Something that happens to files after a rank was killed.
    fn between(kind: FaultKind, rank: usize, step: u64, pick: u64, whole: &Undisturbed) -> Planned {
        // Two checkpoints are there by then: each save waits for the one before, and losing the only one would be a loss indeed.
        let step = step.max(3 * whole.every + 1).min(whole.steps);
        Planned { kind, inside: Some(format!("kill rank={rank} step={step}")), store: None, pick }
    }

    fn at(kind: FaultKind, place: Option<&Place>, pick: u64) -> Planned {
        let what = match kind {
            FaultKind::Hang => "hang",
            FaultKind::Partition => "away",
            FaultKind::Oom => "oom",
            FaultKind::DiskFull => "full",
            FaultKind::SlowDisk => "slow",
            _ => "kill",
        };
        let times = match kind {
            FaultKind::DiskFull => format!(" for={}", 1 + pick % 7),
            FaultKind::SlowDisk => " for=40".into(),
            _ => String::new(),
        };
        let (inside, store) = match place {
            Some(Place::Call { rank, lane, call }) => {
                (Some(format!("{what} rank={rank} lane={lane} call={call}")), None)
            }
            Some(Place::Operation { rank, tier, operation }) => {
                (None, Some(format!("{what} rank={rank} tier={tier} after={operation}{times}")))
            }
            None => (None, None),
        };
        Planned { kind, inside, store, pick }
    }

    /// True for what happens to files while the run is down.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.kind, FaultKind::Corrupt | FaultKind::Torn | FaultKind::LostFile | FaultKind::Clock)
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.inside, &self.store) {
            (Some(inside), _) if self.is_between() => write!(f, "{} after {inside}", self.kind),
            (Some(place), _) | (None, Some(place)) => write!(f, "{place}"),
            (None, None) => write!(f, "{}", self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_same_seed_plans_the_same_faults_inside_the_run() {
        let reached = |calls| Reached {
            calls: BTreeMap::from([("world".to_string(), calls), ("world/1".to_string(), 5)]),
            operations: vec![12, 7],
        };
        let ranks = vec![reached(30), reached(20)];
        let whole = Undisturbed { ranks, steps: 8, every: 2, ..Undisturbed::default() };
        let plan = |seed| {
            let mut dice = Dice::new(seed);
            let all: Vec<Planned> = FaultKind::ALL
                .iter()
                .cycle()
                .take(100)
                .map(|kind| Planned::new(*kind, &mut dice, &whole))
                .collect();
            all
        };
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
        for planned in plan(3) {
            let text = planned.to_string();
            if let Some(inside) = &planned.inside {
                let number = |key: &str| {
                    let at = inside.split(key).nth(1)?;
                    at.split_whitespace().next()?.parse::<u64>().ok()
                };
                let rank = number("rank=").unwrap();
                let lane = inside.split("lane=").nth(1).and_then(|rest| rest.split(' ').next());
                let calls = lane.map(|lane| whole.ranks[rank as usize].calls[lane]);
                let inside_run = number("call=").is_none_or(|call| Some(call) < calls);
                assert!(rank < 2 && inside_run && number("step=").is_none_or(|step| step <= 8), "{text}");
            }
            let stored = planned.store.is_some();
            assert!(stored != planned.inside.is_some(), "{text}");
            let always = matches!(planned.kind, FaultKind::DiskFull | FaultKind::SlowDisk);
            assert!(always <= stored && stored <= (always || planned.kind == FaultKind::Kill), "{text}");
        }
        // Both ranks, all their calls and all their operations.
        assert_eq!(Planned::everywhere(FaultKind::Kill, &whole).len(), 30 + 20 + 2 * 5 + 2 * 19);
        assert_eq!(Planned::everywhere(FaultKind::DiskFull, &whole).len(), 2 * 19);
    }
}
