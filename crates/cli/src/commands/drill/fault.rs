//! The kinds of faults, and where a seed lets them happen.

use super::scratch::Undisturbed;
use serde::Serialize;
use std::fmt;

/// What is done to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
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

impl Kind {
    pub(super) const ALL: [Kind; 10] = [
        Kind::Kill,
        Kind::Hang,
        Kind::DiskFull,
        Kind::SlowDisk,
        Kind::Corrupt,
        Kind::Torn,
        Kind::LostFile,
        Kind::Partition,
        Kind::Clock,
        Kind::Oom,
    ];
}

impl fmt::Display for Kind {
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

/// A fault and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) kind: Kind,
    /// What happens inside a rank, as `PLANARIA_FAULT` says it.
    pub(super) inside: Option<String>,
    /// What happens to the store, as `PLANARIA_STORE_FAULT` says it.
    pub(super) store: Option<String>,
    /// Chooses the file and the place in it, for what happens to files.
    pub(super) pick: u64,
}

impl Planned {
    pub(super) fn new(kind: Kind, dice: &mut Dice, whole: &Undisturbed) -> Planned {
        let rank = dice.below(whole.calls.len() as u64);
        let call = dice.below(whole.calls.get(rank as usize).copied().unwrap_or(1));
        let (step, pick) = (1 + dice.below(whole.steps), dice.below(u64::MAX));
        let at = |what: &str| Some(format!("{what} rank={rank} call={call}"));
        // Two checkpoints are there by then: each save waits for the one before, and losing the only one would be a loss indeed.
        let late = Some(format!("kill rank={rank} step={}", step.max(3 * whole.every + 1).min(whole.steps)));
        let (inside, store) = match kind {
            Kind::Kill => (at("kill"), None),
            Kind::Hang => (at("hang"), None),
            Kind::Partition => (at("away"), None),
            Kind::Oom => (at("oom"), None),
            Kind::DiskFull => (None, Some(format!("full after={} for={}", pick % 40, 1 + pick % 7))),
            Kind::SlowDisk => (None, Some(format!("slow after={} for=40", pick % 40))),
            Kind::Corrupt | Kind::Torn | Kind::LostFile | Kind::Clock => (late, None),
        };
        Planned { kind, inside, store, pick }
    }

    /// True for what happens to files while the run is down.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.kind, Kind::Corrupt | Kind::Torn | Kind::LostFile | Kind::Clock)
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

    #[test]
    fn the_same_seed_plans_the_same_faults_inside_the_run() {
        let whole = Undisturbed { calls: vec![30, 20], steps: 8, every: 2, ..Undisturbed::default() };
        let plan = |seed| {
            let mut dice = Dice::new(seed);
            let all: Vec<Planned> = Kind::ALL
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
                let inside_run = number("call=").is_none_or(|call| call < whole.calls[rank as usize]);
                assert!(rank < 2 && inside_run && number("step=").is_none_or(|step| step <= 8), "{text}");
            }
            assert_eq!(
                planned.store.is_some(),
                matches!(planned.kind, Kind::DiskFull | Kind::SlowDisk),
                "{text}"
            );
        }
    }
}
