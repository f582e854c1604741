//! Which numbers a parameter may be.

use std::fmt;

/// The most steps of an iteration: means are found in tens, and nothing asks between steps whether to go on.
const STEPS: f64 = 10_000.0;

/// The numbers that mean something for a parameter. All of them are finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// Any.
    Finite,
    /// A part of a whole.
    Share,
    /// A bound for what is small.
    Bound,
    /// Steps of an iteration.
    Steps,
}

impl Range {
    pub(crate) fn has(self, value: f64) -> bool {
        match self {
            Range::Finite => value.is_finite(),
            Range::Share => (0.0..=1.0).contains(&value),
            Range::Bound => value.is_finite() && value >= 0.0,
            Range::Steps => (0.0..=STEPS).contains(&value),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Finite => f.write_str("a finite number"),
            Range::Share => f.write_str("a share from 0 to 1"),
            Range::Bound => f.write_str("a finite number of at least 0"),
            Range::Steps => write!(f, "a number of steps from 0 to {STEPS}"),
        }
    }
}
