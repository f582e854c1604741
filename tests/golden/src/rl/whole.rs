//! Whole updates from fixed rollouts, or from pairs, by the trainer.

use crate::cases::Verdict;
use std::path::Path;

pub(super) fn check(_folder: &Path) -> Verdict {
    Verdict::Skipped("updates of an algorithm that the trainer does not have yet")
}
