//! Scales: where a value stands between the ends, and which round numbers label them.

use serde::Serialize;

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal differences take equal space.
    Linear,
    /// Equal ratios take equal space.
    Log,
}

impl Scale {
    /// A range with a little room at both ends, never empty.
    pub(super) fn padded(self, (low, high): (f64, f64)) -> (f64, f64) {
        match self {
            Scale::Linear => {
                let room =
                    if high > low { (high / 2.0 - low / 2.0) * 0.08 } else { low.abs().max(1.0) * 0.05 };
                ((low - room).max(f64::MIN), (high + room).min(f64::MAX))
            }
            Scale::Log => {
                let room = if high > low { (high / low).powf(0.04) } else { 1.5 };
                ((low / room).max(f64::MIN_POSITIVE), (high * room).min(f64::MAX))
            }
        }
    }

    /// Where a value stands, 0 at the lower end and 1 at the upper.
    pub(super) fn place(self, value: f64, (low, high): (f64, f64)) -> Option<f64> {
        let at = match self {
            // Halves: the difference of two large values may pass the largest number.
            Scale::Linear => (value / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0),
            Scale::Log => (value.ln() - low.ln()) / (high.ln() - low.ln()),
        };
        (value.is_finite() && at.is_finite()).then(|| at.clamp(0.0, 1.0))
    }

    /// At most about `wanted` round numbers inside a range.
    pub(super) fn ticks(self, (low, high): (f64, f64), wanted: usize) -> Vec<f64> {
        let wanted = wanted.max(2);
        match self {
            Scale::Linear => linear_ticks(low, high, wanted),
            Scale::Log => {
                let (first, last) = (low.log10().ceil() as i32, high.log10().floor() as i32);
                if last <= first {
                    return linear_ticks(low, high, wanted);
                }
                let every = ((last - first) as usize).div_ceil(wanted).max(1);
                (first..=last).step_by(every).map(|power| 10f64.powi(power)).collect()
            }
        }
    }
}

fn linear_ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let rough = (high / wanted as f64) - (low / wanted as f64);
    if !rough.is_finite() || rough <= 0.0 {
        return vec![low];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|s| s * power).find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(rough);
    let first = (low / step).ceil();
    let count = (((high / step).floor() - first).max(0.0) as usize).min(4 * wanted);
    // A product of a whole number and the step has no rounding that adds up.
    (0..=count).map(|i| (first + i as f64) * step).map(|t| if t == 0.0 { 0.0 } else { t }).collect()
}

/// A label for a tick, with as many digits as tell neighbouring ticks apart.
pub(super) fn label(value: f64, step: f64) -> String {
    let size = value.abs().max(step.abs());
    if value == 0.0 {
        return "0".to_string();
    }
    if !(1e-3..1e6).contains(&size) {
        let text = format!("{value:.2e}");
        return match text.split_once('e') {
            Some((digits, power)) => {
                format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'))
            }
            None => text,
        };
    }
    let places = (1.0 - step.abs().log10().floor()).clamp(0.0, 8.0) as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// Labels of some ticks.
pub(super) fn labels(ticks: &[f64]) -> Vec<String> {
    let step = match ticks {
        [a, b, ..] => (b - a).abs().min(a.abs().max(b.abs())),
        [only] => only.abs() / 10.0,
        [] => 1.0,
    };
    ticks.iter().map(|&t| label(t, if step > 0.0 { step } else { 1.0 })).collect()
}
