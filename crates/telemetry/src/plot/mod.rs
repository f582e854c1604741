//! Curves of runs: what is drawn, on which scale, and the two ways to draw it.

mod canvas;
mod scale;
mod svg;
mod terminal;
#[cfg(test)]
mod tests;
mod timeline;

pub use scale::Scale;
pub use terminal::Canvas;
pub use timeline::{Bar, Row, Timeline};

use crate::error::{Error, Result};
use crate::history::{History, Mark};
use serde::Serialize;

/// Colours of the runs, in order; they stay apart for colour-blind eyes.
const COLOURS: [(u8, u8, u8); 8] = [
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (148, 103, 189),
    (120, 120, 120),
];

/// The colour of a run.
fn colour(index: usize) -> (u8, u8, u8) {
    COLOURS[index % COLOURS.len()]
}

/// Values above this multiple of the smallest one are drawn on a logarithmic scale.
const LOG_RANGE: f64 = 100.0;

/// Weight of the past in the moving average where nothing is said.
const SMOOTH: f64 = 0.9;

/// How curves are made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChartOptions {
    /// Weight of the past in the moving average, from 0 (none) up to but not including 1. Without it 0.9, and 0 for
    /// evaluations (`eval_...`): their last values count, and there are few of them.
    pub smooth: Option<f64>,
    /// The scale of the values; chosen by their range if not given.
    pub scale: Option<Scale>,
}

/// One run's values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The run.
    pub name: String,
    /// Step and value as recorded.
    pub points: Vec<(u64, f64)>,
    /// Step and moving average.
    pub smooth: Vec<(u64, f64)>,
    /// Checkpoints and restarts.
    pub marks: Vec<Mark>,
}

/// One metric of some runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The metric.
    pub metric: String,
    /// The runs.
    pub curves: Vec<Curve>,
    /// The scale of the values.
    pub scale: Scale,
    /// Weight of the past in the moving average; 0 for none.
    pub smooth: f64,
    steps: (f64, f64),
    values: (f64, f64),
}

impl Chart {
    /// The curves of one metric of some runs.
    pub fn new(runs: &[History], metric: &str, options: &ChartOptions) -> Result<Chart> {
        let otherwise = if metric.starts_with("eval_") { 0.0 } else { SMOOTH };
        let weight =
            options.smooth.filter(|weight| weight.is_finite()).unwrap_or(otherwise).clamp(0.0, 0.9999);
        let mut curves = Vec::new();
        for run in runs {
            let points = run.series(metric)?.to_vec();
            let smooth = smoothed(&points, weight);
            curves.push(Curve { name: run.name.clone(), points, smooth, marks: run.marks.clone() });
        }
        let shown = || curves.iter().flat_map(|c| &c.points).filter(|p| p.1.is_finite());
        let empty = || Error::Empty { metric: metric.to_string() };
        let steps = range(shown().map(|p| p.0 as f64)).ok_or_else(empty)?;
        let values = range(shown().map(|p| p.1)).ok_or_else(empty)?;
        let wide = values.0 > 0.0 && values.1 / values.0 > LOG_RANGE;
        // A logarithm needs positive numbers, whatever was asked for.
        let wanted = options.scale.unwrap_or(if wide { Scale::Log } else { Scale::Linear });
        let scale = if values.0 > 0.0 { wanted } else { Scale::Linear };
        Ok(Chart {
            metric: metric.to_string(),
            curves,
            scale,
            smooth: weight,
            steps: opened(steps),
            values: scale.padded(values),
        })
    }

    /// Where a point stands in a picture from (0, 0) at the bottom left to (1, 1); none for values that cannot be drawn.
    fn place(&self, (step, value): (u64, f64)) -> Option<(f64, f64)> {
        let y = self.scale.place(value, self.values)?;
        Some((self.place_step(step as f64), y))
    }

    fn place_step(&self, step: f64) -> f64 {
        (step - self.steps.0) / (self.steps.1 - self.steps.0)
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, v| {
        let (low, high) = range.unwrap_or((v, v));
        Some((v.min(low), v.max(high)))
    })
}

/// A range that is not empty.
fn opened((low, high): (f64, f64)) -> (f64, f64) {
    if low < high { (low, high) } else { (low - 0.5, high + 0.5) }
}

/// Moving average that starts at the first value instead of at zero. Values that are not finite are passed over.
pub fn smoothed(points: &[(u64, f64)], weight: f64) -> Vec<(u64, f64)> {
    let (mut sum, mut total) = (0.0, 0.0);
    let finite = points.iter().filter(|p| p.1.is_finite());
    let step = |&(step, value): &(u64, f64)| {
        sum = sum * weight + value;
        total = total * weight + 1.0;
        (step, sum / total)
    };
    finite.map(step).collect()
}
