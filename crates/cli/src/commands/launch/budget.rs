//! How often a job is started again, how soon, and when to see that it is of no use.

use std::time::Duration;

/// Failures in a row without a new checkpoint that make a crash loop.
const LOOP: u32 = 3;

/// The longest pause before a restart.
const LONGEST: Duration = Duration::from_secs(60);

/// What is left of a job's restarts.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    most: u32,
    used: u32,
    pause: Duration,
    /// Failures in a row that came no further, and why the first of them failed.
    idle: u32,
    first: Option<String>,
    /// The newest checkpoint that ranks have told of.
    saved: Option<u64>,
}

/// What to do after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Start again after this pause.
    Again(Duration),
    /// Give up, for this reason.
    GiveUp(String),
}

impl Budget {
    /// So many restarts, the first of several in a row without progress after `pause`.
    pub(super) fn new(most: u32, pause: Duration) -> Budget {
        Budget { most, used: 0, pause, idle: 0, first: None, saved: None }
    }

    /// Restarts so far.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// A failure; `saved` is the newest checkpoint that the job told of, none for a job that tells nothing.
    pub(super) fn fail(&mut self, cause: &str, saved: Option<u64>) -> Then {
        let further = saved.is_none() || saved > self.saved.or(Some(0));
        self.saved = self.saved.max(saved);
        self.idle = if further { 0 } else { self.idle + 1 };
        if further || self.first.is_none() {
            self.first = Some(cause.to_string());
        }
        let first = self.first.clone().unwrap_or_default();
        if self.idle >= LOOP {
            let times = self.idle + u32::from(self.saved > Some(0));
            return Then::GiveUp(format!(
                "{times} failures in a row without a new checkpoint; the first: {first}"
            ));
        }
        if self.used == self.most {
            return Then::GiveUp(first);
        }
        self.used += 1;
        match self.idle {
            0 => Then::Again(Duration::ZERO),
            n => Then::Again((self.pause * (1 << (n - 1).min(16))).min(LONGEST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_loop_ends_with_its_first_cause() {
        let mut budget = Budget::new(100, Duration::from_secs(1));
        assert_eq!(budget.fail("a cable", Some(20)), Then::Again(Duration::ZERO));
        assert_eq!(budget.fail("bad data", Some(20)), Then::Again(Duration::from_secs(1)));
        assert_eq!(budget.fail("echo", Some(20)), Then::Again(Duration::from_secs(2)));
        let Then::GiveUp(why) = budget.fail("another echo", Some(20)) else { panic!("it went on") };
        assert!(why.starts_with("4 failures in a row") && why.ends_with("the first: a cable"), "{why}");
    }

    #[test]
    fn progress_gives_the_pause_back_and_the_budget_ends() {
        let mut budget = Budget::new(3, Duration::from_secs(1));
        for (saved, pause) in [(10, 0), (10, 1), (30, 0)] {
            assert_eq!(budget.fail("x", Some(saved)), Then::Again(Duration::from_secs(pause)));
        }
        assert_eq!((budget.fail("last", Some(40)), budget.used()), (Then::GiveUp("last".into()), 3));
        // A command that tells nothing is started again as often as was asked for.
        let mut silent = Budget::new(5, Duration::from_secs(1));
        assert!((0..5).all(|_| silent.fail("x", None) == Then::Again(Duration::ZERO)));
        // Before the first checkpoint there is no progress.
        let mut early = Budget::new(9, Duration::ZERO);
        let ends: Vec<_> = (0..3).map(|_| early.fail("first", Some(0))).collect();
        assert!(matches!(&ends[2], Then::GiveUp(why) if why.starts_with("3 failures")), "{ends:?}");
    }
}
