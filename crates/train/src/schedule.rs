//! How the learning rate moves with the step.

use crate::config::{Config, ScheduleKind};

/// The learning rate of every step; it has no state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Schedule {
    kind: ScheduleKind,
    peak: f64,
    floor: f64,
    warmup: u64,
    horizon: u64,
    decay: u64,
}

impl Schedule {
    pub(crate) fn new(config: &Config) -> Schedule {
        let optim = &config.optim;
        let horizon = optim.horizon.unwrap_or(config.train.steps);
        let decay = optim.decay.unwrap_or(horizon / 10).min(horizon);
        let (peak, floor, warmup) = (optim.lr, optim.min_lr, optim.warmup);
        Schedule { kind: optim.schedule, peak, floor, warmup, horizon, decay }
    }

    /// The rate of step `step`, from 1.
    pub(crate) fn lr(&self, step: u64) -> f64 {
        if step <= self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let since = |start: u64, len: u64| {
            let len = len.max(1) as f64;
            (step.saturating_sub(start) as f64 / len).min(1.0)
        };
        let down = match self.kind {
            ScheduleKind::Constant => 0.0,
            ScheduleKind::Linear => since(self.warmup, self.horizon.saturating_sub(self.warmup)),
            ScheduleKind::Cosine => {
                let at = since(self.warmup, self.horizon.saturating_sub(self.warmup));
                0.5 - 0.5 * (std::f64::consts::PI * at).cos()
            }
            ScheduleKind::Wsd => since(self.horizon - self.decay, self.decay),
        };
        self.peak + (self.floor - self.peak) * down
    }
}
