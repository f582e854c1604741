//! Dynamic loss scaling for f16: as large as the gradients allow.

/// A factor on the loss that keeps small gradients out of the zeros of f16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The factor. The loss is multiplied, gradients are divided.
    pub scale: f64,
    /// What the scale is multiplied by after enough good steps.
    pub growth: f64,
    /// What it is multiplied by after a step with gradients that are not finite.
    pub backoff: f64,
    /// How many good steps are enough.
    pub interval: u64,
    /// Good steps since the scale was changed.
    pub good: u64,
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale { scale: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000, good: 0 }
    }
}

impl LossScale {
    /// Takes note of a step. With gradients that were not finite its update must be left out.
    pub fn update(&mut self, finite: bool) {
        if !finite {
            // Not to 0: a run that diverges must be able to come back.
            self.scale = (self.scale * self.backoff).max(f64::MIN_POSITIVE);
            self.good = 0;
            return;
        }
        self.good += 1;
        if self.good >= self.interval {
            let grown = self.scale * self.growth;
            self.scale = if grown.is_finite() { grown } else { self.scale };
            self.good = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_grows_after_enough_good_steps_and_backs_off_at_once() {
        let mut scale = LossScale { interval: 3, ..LossScale::default() };
        (0..2).for_each(|_| scale.update(true));
        assert_eq!((scale.scale, scale.good), (65536.0, 2));
        scale.update(true);
        assert_eq!((scale.scale, scale.good), (131072.0, 0));
        scale.update(true);
        scale.update(false);
        assert_eq!((scale.scale, scale.good), (65536.0, 0));
    }
}
