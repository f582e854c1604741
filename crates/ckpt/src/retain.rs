//! Which checkpoints of a run stay.

use crate::error::Result;
use crate::folder;
use planaria_store::{Store, join};
use std::collections::BTreeSet;

/// Which checkpoints stay beside the one just saved. Without limits all do. Counted are committed folders by their
/// step, never by their age.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retain {
    /// How many of the latest stay, the new one among them; `None` for all.
    pub last: Option<usize>,
    /// Steps that are multiples of this stay.
    pub every: Option<u64>,
    /// The steps of the best results stay.
    pub best: Vec<u64>,
    /// Other steps that stay.
    pub protected: Vec<u64>,
}

impl Retain {
    /// The steps that go, of the committed ones.
    pub fn dropped(&self, committed: &[u64], new: u64) -> Vec<u64> {
        let Some(last) = self.last else { return Vec::new() };
        let mut steps: Vec<u64> = committed.to_vec();
        steps.sort_unstable();
        let latest: BTreeSet<u64> = steps.iter().rev().take(last.max(1)).copied().collect();
        let round = |step: u64| self.every.is_some_and(|every| every > 0 && step.is_multiple_of(every));
        let named = |step: &u64| self.best.contains(step) || self.protected.contains(step);
        steps.retain(|step| !(latest.contains(step) || *step == new || round(*step) || named(step)));
        steps
    }

    /// Removes what goes; the folders removed. Only folders of steps beside `saved` are looked at.
    pub(crate) fn apply(&self, store: &dyn Store, saved: &str) -> Result<Vec<String>> {
        let (parent, name) = saved.rsplit_once('/').unwrap_or(("", saved));
        let (Some(new), Some(_)) = (folder::step_of(name), self.last) else { return Ok(Vec::new()) };
        let committed = folder::committed(store, parent)?;
        let dropped = self.dropped(&committed, new).into_iter();
        let folders: Vec<String> = dropped.map(|step| join(parent, &folder::step_folder(step))).collect();
        folders.iter().try_for_each(|gone| folder::remove(store, gone))?;
        Ok(folders)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_the_round_the_best_and_the_protected_stay() {
        let steps = [10, 20, 30, 40, 50, 60];
        let retain = Retain { last: Some(2), every: Some(30), best: vec![20], protected: vec![] };
        assert_eq!(retain.dropped(&steps, 60), [10, 40]);
        assert_eq!(Retain { last: Some(0), ..Retain::default() }.dropped(&steps, 60), [10, 20, 30, 40, 50]);
        assert_eq!(Retain::default().dropped(&steps, 60), [0u64; 0]);
        // A run that went back to an earlier step keeps what it just saved.
        assert_eq!(Retain { last: Some(1), ..Retain::default() }.dropped(&steps, 30), [10, 20, 40, 50]);
    }
}
