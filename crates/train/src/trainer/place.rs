//! The places that checkpoints go to, without their stores: when each is due, in which order they are written, and whether training waits.

use crate::config::{Behind, CheckpointSection, TierKind};
use std::collections::BTreeSet;

/// The run's folder among the places.
pub(crate) const OWN: usize = 0;

/// One place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// How it is named to people: its kind, with a number where it is not the first of it. Absent for the run's folder.
    pub(crate) name: Option<String>,
    /// Absent for the run's folder.
    pub(crate) kind: Option<TierKind>,
    /// Steps between saves; 0 for none.
    pub(crate) every: u64,
    pub(crate) keep: usize,
}

impl Place {
    /// The run's folder, then the tiers in the order of the configuration.
    pub(crate) fn all(section: &CheckpointSection) -> Vec<Place> {
        let own = Place { name: None, kind: None, every: section.every, keep: section.keep };
        let rest = section.tiers.iter().enumerate().map(|(number, tier)| {
            let before = section.tiers[..number].iter().filter(|other| other.kind == tier.kind).count();
            let name =
                if before == 0 { tier.kind.to_string() } else { format!("{} {}", tier.kind, before + 1) };
            Place { name: Some(name), kind: Some(tier.kind), every: tier.every, keep: tier.keep }
        });
        std::iter::once(own).chain(rest).collect()
    }

    /// A checkpoint here, as it is named to people.
    pub(crate) fn label(&self, folder: &str) -> String {
        match &self.name {
            None => folder.to_string(),
            Some(name) => format!("{folder} ({name})"),
        }
    }

    /// Quick ones come first.
    pub(crate) fn order(&self) -> u8 {
        match self.kind {
            Some(TierKind::Memory) => 0,
            Some(TierKind::Peer) => 1,
            None => 2,
            Some(TierKind::Local) => 3,
            Some(TierKind::Remote) => 4,
        }
    }

    /// Whether the snapshot of a step goes here.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        self.every > 0 && step.is_multiple_of(self.every)
    }
}

/// The order in which a snapshot is written to some of the places.
pub(crate) fn quick_first<'a, P>(places: &[P], to: impl Iterator<Item = &'a usize>) -> Vec<usize>
where
    P: std::ops::Deref<Target = Place>,
{
    let ordered: BTreeSet<(u8, usize)> = to.map(|&place| (places[place].order(), place)).collect();
    ordered.into_iter().map(|(_, place)| place).collect()
}

/// The newest step of all places, in the quickest that has it, where each has this one at last.
pub(crate) fn newest<P>(places: &[P], last: &dyn Fn(usize) -> Option<u64>) -> Option<(usize, u64)>
where
    P: std::ops::Deref<Target = Place>,
{
    let all = (0..places.len()).filter_map(|place| Some((place, last(place)?)));
    all.max_by_key(|&(place, step)| (step, std::cmp::Reverse(places[place].order())))
}

/// What training does when a snapshot is due and the one before is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// It continues; of the snapshots that wait, the newest stays.
    Drop,
    /// It waits until the one before is written.
    Wait,
    /// It waits until this one is written: there is no memory to continue with.
    Stand,
}

impl Pace {
    /// How a run is paced whose largest rank saves so many bytes.
    pub(crate) fn of(section: &CheckpointSection, bytes: u64) -> Pace {
        // One is written and two may wait.
        let held = section.memory.map_or(3, |memory| memory / bytes.max(1));
        match (section.pace(), held) {
            (_, 0) => Pace::Stand,
            (Behind::Drop, 3..) => Pace::Drop,
            _ => Pace::Wait,
        }
    }
}
