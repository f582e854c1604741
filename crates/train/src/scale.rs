//! The factor on the loss of f16 models.

use serde::{Deserialize, Serialize};

/// Grows while gradients are finite, halves when they are not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LossScale {
    scale: f64,
    good: u32,
}

/// Finite steps before the factor doubles.
const PATIENCE: u32 = 2000;

impl LossScale {
    pub(crate) fn new(scale: f64) -> LossScale {
        LossScale { scale, good: 0 }
    }

    pub(crate) fn value(&self) -> f64 {
        self.scale
    }

    pub(crate) fn update(&mut self, finite: bool) {
        if !finite {
            (self.scale, self.good) = ((self.scale / 2.0).max(1.0), 0);
            return;
        }
        self.good += 1;
        if self.good == PATIENCE {
            (self.scale, self.good) = ((self.scale * 2.0).min(2f64.powi(40)), 0);
        }
    }
}
