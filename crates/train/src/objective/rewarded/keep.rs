//! The rollouts that steps learn from, in memory and in checkpoints.

use super::Rewarded;
use super::record::{Memory, Rollout};
use crate::error::{Error, Result};
use std::sync::{Arc, PoisonError};

impl Rewarded {
    /// The newest rollout that a step or one before it began.
    pub(super) fn newest(&self, step: u64) -> Option<Arc<Rollout>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().filter(|rollout| rollout.first <= step).max_by_key(|rollout| rollout.first).cloned()
    }

    /// Keeps a rollout, and the one before it.
    pub(super) fn keep(&self, rollout: &Arc<Rollout>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let near = |known: &Rollout| known.first + 2 * rollout.steps > rollout.first;
        kept.retain(|known| known.first != rollout.first && near(known));
        kept.push(rollout.clone());
    }

    /// What earlier rollouts left to the one that this step begins.
    pub(super) fn memory(&self, step: u64) -> Memory {
        self.newest(step - 1).map_or_else(Memory::default, |rollout| rollout.memory.clone())
    }

    /// The stored rollout that a step inside it learns from.
    pub(super) fn stored(&self, step: u64) -> Result<Arc<Rollout>> {
        let whole = |rollout: &Arc<Rollout>| rollout.has(step) && !rollout.records.is_empty();
        self.newest(step).filter(whole).ok_or_else(|| Error::Run {
            what: format!(
                "step {step} is inside a rollout that is not there; go on from a step after a multiple of {}",
                self.steps()
            ),
        })
    }
}
