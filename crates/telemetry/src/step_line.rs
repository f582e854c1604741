//! The line a run shows for a step: the same columns in the same places, whatever the numbers.

use std::fmt;

/// A save in the background.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saving {
    /// Of this step, under way.
    Running {
        /// The step.
        step: u64,
        /// How much is written, from 0 to 1, where that is known.
        done: Option<f64>,
        /// Bytes per second, where they are known.
        rate: Option<f64>,
    },
    /// Of this step, committed.
    Saved {
        /// The step.
        step: u64,
    },
    /// Of this step, failed; the run continues.
    Failed {
        /// The step.
        step: u64,
    },
}

/// The figures of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepLine {
    /// Number of the step.
    pub step: u64,
    /// Steps of the run.
    pub steps: u64,
    /// Mean loss per token.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Tokens per second of all ranks.
    pub tokens_per_second: f64,
    /// Share of the machine's peak that the model used, from 0 to 1.
    pub mfu: Option<f64>,
    /// Largest number of bytes in use.
    pub memory: Option<u64>,
    /// Bytes there are.
    pub memory_limit: Option<u64>,
    /// The last save.
    pub saving: Option<Saving>,
}

/// Characters of a number.
const COLUMN: usize = 7;

impl fmt::Display for StepLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.steps.max(1).to_string().len();
        write!(f, "step {:>width$}/{}", self.step, self.steps)?;
        write!(f, "  loss {:>7}  grad {:>7}", decimals(self.loss, 4), decimals(self.grad_norm, 2))?;
        write!(f, "  lr {:>7}  {:>6} tok/s", power(self.lr), count(self.tokens_per_second))?;
        if let Some(mfu) = self.mfu {
            write!(f, "  mfu {:>4.1}%", mfu * 100.0)?;
        }
        match (self.memory, self.memory_limit) {
            (Some(used), Some(limit)) => {
                write!(f, "  mem {:>5.1}/{:.0} GB", used as f64 / 1e9, limit as f64 / 1e9)?;
            }
            (Some(used), None) => write!(f, "  mem {:>7}B", count(used as f64))?,
            _ => {}
        }
        match self.saving {
            Some(Saving::Running { step, done, rate }) => {
                write!(f, "  ckpt {step} saving")?;
                done.map_or(Ok(()), |done| write!(f, " {:.0}%", done.clamp(0.0, 1.0) * 100.0))?;
                rate.map_or(Ok(()), |rate| write!(f, " at {}B/s", count(rate)))
            }
            Some(Saving::Saved { step }) => write!(f, "  ckpt {step}"),
            Some(Saving::Failed { step }) => write!(f, "  ckpt {step} failed"),
            None => Ok(()),
        }
    }
}

/// As many decimals as fit, at most `places`; else a power of ten.
fn decimals(value: f64, places: usize) -> String {
    let texts = (0..=places).rev().map(|places| format!("{value:.places$}"));
    texts.into_iter().find(|text| text.len() <= COLUMN).unwrap_or_else(|| power(value))
}

/// `3.0e-4`.
fn power(value: f64) -> String {
    if value == 0.0 { "0".to_string() } else { format!("{value:.1e}") }
}

/// A count in at most five characters: `950`, `12.4k`, `1.24M`.
pub fn count(value: f64) -> String {
    let units = [("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15)];
    // What rounds to 1000 belongs to the next unit.
    let fits = |size: &f64| value.abs() < size * 999.5;
    let (unit, size) = units.iter().find(|(_, size)| fits(size)).copied().unwrap_or(units[5]);
    let scaled = value / size;
    let places = match scaled.abs() {
        _ if unit.is_empty() => 0,
        small if small < 9.995 => 2,
        middle if middle < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.places$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_that_of_the_conventions() {
        let line = StepLine {
            step: 120,
            steps: 1000,
            loss: 2.34123,
            grad_norm: 0.874,
            lr: 3e-4,
            tokens_per_second: 1_240_000.0,
            mfu: Some(0.412),
            memory: Some(61_300_000_000),
            memory_limit: Some(80_000_000_000),
            saving: Some(Saving::Running { step: 1000, done: Some(0.83), rate: None }),
        };
        assert_eq!(
            line.to_string(),
            "step  120/1000  loss  2.3412  grad    0.87  lr  3.0e-4   1.24M tok/s  mfu 41.2%  mem  61.3/80 GB  \
             ckpt 1000 saving 83%"
        );
        let unknown =
            StepLine { saving: Some(Saving::Running { step: 1000, done: None, rate: None }), ..line };
        assert!(unknown.to_string().ends_with("ckpt 1000 saving"));
    }

    #[test]
    fn columns_stay_in_place() {
        let line = |loss: f64, grad_norm: f64, lr: f64, tokens_per_second: f64| {
            let (step, steps) = (7, 100);
            StepLine { step, steps, loss, grad_norm, lr, tokens_per_second, ..StepLine::default() }
                .to_string()
        };
        let width = line(1.0, 1.0, 1e-3, 1.0).len();
        for (a, b, c, d) in [
            (0.0, 0.0, 0.0, 0.0),
            (f64::NAN, f64::INFINITY, 1.5e-10, 999_999.0),
            (99.99999, 12_345.6, 0.5, 1e9),
            (123_456.0, 9_999.99, 1e-3, 99_960.0),
        ] {
            let text = line(a, b, c, d);
            assert_eq!(text.len(), width, "{text}");
        }
    }

    #[test]
    fn counts_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (1.24e6, "1.24M"),
            (2e12, "2.00T"),
        ];
        for (value, text) in cases {
            assert_eq!(count(value), text);
        }
    }
}
