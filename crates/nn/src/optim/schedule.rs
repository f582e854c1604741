//! Learning rates by step, with the values that transformers gives.

use crate::error::{Error, Result};
use std::f64::consts::PI;

/// How the last part of a schedule goes down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    /// In a straight line.
    Linear,
    /// Along half a cosine.
    #[default]
    Cosine,
    /// By the root of the progress: steep first.
    OneMinusSqrt,
}

/// What comes after warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// The full rate for ever.
    Constant,
    /// Down in a straight line until `steps`.
    Linear {
        /// Steps of the run.
        steps: u64,
    },
    /// Down along half a cosine until `steps`.
    Cosine {
        /// Steps of the run.
        steps: u64,
    },
    /// The full rate for a time, then down: warm-up, stable, decay.
    Wsd {
        /// Steps at the full rate.
        stable: u64,
        /// Steps of going down.
        decay: u64,
        /// How.
        kind: Decay,
    },
}

/// A learning rate for every step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The full rate.
    pub lr: f64,
    /// The rate at the end, as a share of the full one.
    pub min_ratio: f64,
    /// Steps of going up in a straight line, from 0 (from the end's rate for [`Shape::Wsd`]).
    pub warmup: u64,
    /// What comes then.
    pub shape: Shape,
}

impl Schedule {
    /// The rate of a step, counted from 0: what `LambdaLR` uses for the update after `step` earlier ones.
    pub fn rate(&self, step: u64) -> f64 {
        self.lr * self.factor(step)
    }

    /// The rate as a share of the full one.
    pub fn factor(&self, step: u64) -> f64 {
        let floor = |factor: f64| (factor * (1.0 - self.min_ratio) + self.min_ratio).max(0.0);
        let share = |done: u64, of: u64| done as f64 / of.max(1) as f64;
        if step < self.warmup {
            let up = share(step, self.warmup);
            return if matches!(self.shape, Shape::Wsd { .. }) { floor(up) } else { up };
        }
        let after = step - self.warmup;
        match self.shape {
            Shape::Constant => 1.0,
            Shape::Linear { steps } => {
                let left = share(steps.saturating_sub(step), steps.saturating_sub(self.warmup));
                floor(left)
            }
            // Past the end the rate stays there, where a cosine would rise again.
            Shape::Cosine { steps } => {
                let progress = share(after, steps.saturating_sub(self.warmup)).min(1.0);
                floor(0.5 * (1.0 + (PI * progress).cos()))
            }
            Shape::Wsd { stable, .. } if after < stable => 1.0,
            Shape::Wsd { stable, decay, .. } if after - stable >= decay => self.min_ratio,
            Shape::Wsd { stable, decay, kind } => {
                let progress = share(after - stable, decay);
                floor(match kind {
                    Decay::Linear => 1.0 - progress,
                    Decay::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
                    Decay::OneMinusSqrt => 1.0 - progress.sqrt(),
                })
            }
        }
    }

    /// Refuses rates that are not rates.
    pub fn check(&self) -> Result<()> {
        let Schedule { lr, min_ratio, .. } = *self;
        if !(lr >= 0.0 && lr.is_finite() && (0.0..=1.0).contains(&min_ratio)) {
            let message =
                format!("lr {lr} must be finite and at least 0, min_ratio {min_ratio} within 0 and 1");
            return Err(Error::Argument { what: "schedule", message });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Factors that transformers 5.22 gives at these steps, with 4 warm-up steps.
    #[test]
    fn factors_equal_those_of_transformers() {
        let at = [0, 1, 3, 4, 9, 15, 19, 20, 25];
        let wsd = |kind| Shape::Wsd { stable: 8, decay: 10, kind };
        #[rustfmt::skip]
        let cases = [
            (Shape::Constant, 0.0, "0.0 0.25 0.75 1.0 1.0 1.0 1.0 1.0 1.0"),
            (Shape::Linear { steps: 20 }, 0.0, "0.0 0.25 0.75 1.0 0.6875 0.3125 0.0625 0.0 0.0"),
            (Shape::Cosine { steps: 25 }, 0.0, "0.0 0.25 0.75 1.0 0.8665259359149131 0.4626349532067879 0.18825509907063326 0.13347406408508694 0.0"),
            (Shape::Cosine { steps: 25 }, 0.1, "0.0 0.25 0.75 1.0 0.8798733423234218 0.516371457886109 0.26942958916356996 0.22012665767657824 0.1"),
            (wsd(Decay::Linear), 0.1, "0.1 0.325 0.775 1.0 1.0 0.73 0.3700000000000001 0.27999999999999997 0.1"),
            (wsd(Decay::Cosine), 0.1, "0.1 0.325 0.775 1.0 1.0 0.8145033635316129 0.2854966364683872 0.18594235253127372 0.1"),
            (wsd(Decay::OneMinusSqrt), 0.1, "0.1 0.325 0.775 1.0 1.0 0.5070496982453505 0.247005976119332 0.19501552810007572 0.1"),
        ];
        for (shape, min_ratio, expected) in cases {
            let schedule = Schedule { lr: 1.0, min_ratio, warmup: 4, shape };
            for (step, want) in at.into_iter().zip(expected.split(' ')) {
                let (got, want) = (schedule.factor(step), want.parse::<f64>().unwrap());
                assert!((got - want).abs() < 1e-15, "{shape:?} at {step}: {got}, not {want}");
            }
        }
    }

    #[test]
    fn a_cosine_does_not_rise_again() {
        let schedule = Schedule { lr: 2.0, min_ratio: 0.1, warmup: 0, shape: Shape::Cosine { steps: 10 } };
        assert_eq!(schedule.rate(10), schedule.rate(1000));
        assert!((schedule.rate(10) - 0.2).abs() < 1e-15);
        assert_eq!(schedule.rate(0), 2.0);
    }
}
