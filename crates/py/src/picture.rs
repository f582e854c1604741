//! What pictures are drawn from: curves of runs, and pipeline schedules as spans of time.

use std::path::Path;

use planaria::pipeline::{Costs, Error as PipelineError, ScheduleKind};
use planaria::telemetry::{Chart, ChartOptions, Error as TelemetryError, History};
use pyo3::prelude::*;

use crate::error::{Raise, exception};
use crate::gil::{Cancel, blocking, compute};
use crate::number::Size;

impl Raise for TelemetryError {
    fn raise(self, py: Python<'_>) -> PyErr {
        exception(py, "ArgumentError", self.to_string())
    }
}

impl Raise for PipelineError {
    fn raise(self, py: Python<'_>) -> PyErr {
        exception(py, "ArgumentError", self.to_string())
    }
}

/// Steps and values.
type Points = Vec<(u64, f64)>;

/// A run's name, its values and their moving average.
type Curve = (String, Points, Points);

/// A metric of some runs: its picture and its curves.
#[pyfunction]
pub(crate) fn chart(
    py: Python<'_>,
    runs: Vec<String>,
    metric: String,
    smooth: Option<f64>,
    size: (u32, u32),
) -> PyResult<(String, Vec<Curve>)> {
    if smooth.is_some_and(|weight| !(0.0..=0.999).contains(&weight)) {
        return Err(exception(py, "ArgumentError", format!("smooth is {smooth:?}; use 0 to 0.999")));
    }
    blocking(py, &Cancel::default(), move || {
        let mut histories = Vec::with_capacity(runs.len());
        for run in &runs {
            let mut history = History::read(Path::new(run))?;
            if histories.iter().any(|other: &History| other.name == history.name) {
                history.name.clone_from(run);
            }
            histories.push(history);
        }
        let chart = Chart::new(&histories, &metric, &ChartOptions { smooth, scale: None })?;
        let svg = chart.to_svg(size)?;
        Ok::<_, TelemetryError>((
            svg,
            chart.curves.into_iter().map(|c| (c.name, c.points, c.smooth)).collect(),
        ))
    })
}

/// A span of a rank's work: what it is, stage, micro-batch, start and end.
type Span = (&'static str, usize, usize, f64, f64);

/// Every rank's work in a schedule, in units of one forward; backwards take two.
#[pyfunction]
pub(crate) fn spans(
    py: Python<'_>,
    kind: &str,
    ranks: Size,
    micros: Size,
    chunks: Option<Size>,
) -> PyResult<(Vec<Vec<Span>>, f64, Vec<f64>)> {
    let kind: ScheduleKind = kind.parse().map_err(|error: PipelineError| error.raise(py))?;
    let chunks = chunks.map_or(kind.chunks().0, |chunks| chunks.0);
    let told = compute(py, move || kind.build(ranks.0, micros.0, chunks)?.simulate(&Costs::unit()))?;
    let rows = told.spans.iter().map(|spans| {
        let work = spans.iter().filter(|span| span.action.step.is_work());
        let row = work.map(|s| (s.action.step.words(), s.action.stage, s.action.micro, s.start, s.end));
        row.collect()
    });
    Ok((rows.collect(), told.makespan, told.bubble.clone()))
}
