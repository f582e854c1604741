//! Pictures of a simulation: what the stages do in a step, and what the run does in its days.

use super::Simulated;
use super::course::{Doing, Stretch};
use crate::error::Result;
use crate::pipeline::{Simulation, Step};
use planaria_telemetry::{Bar, Row, Timeline};

/// Stages of a pipeline that are drawn at most.
const STAGES: usize = 64;

/// Pixels.
const WIDTH: u32 = 1200;

/// What happened when.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Traced {
    pub(super) pipeline: Simulation,
    pub(super) stretches: Vec<Stretch>,
}

pub(super) fn draw(told: &Simulated) -> Result<String> {
    Ok(Timeline::to_svg(&[step(told), course(told)], WIDTH)?)
}

fn step(told: &Simulated) -> Timeline {
    let kind = |step: Step| match step {
        Step::Forward => 0,
        Step::Backward => 1,
        Step::Input => 2,
        _ => 3,
    };
    let pipeline = &told.traced.pipeline;
    let bars = |spans: &Vec<crate::pipeline::Span>| {
        let work = spans.iter().filter(|span| span.action.step.is_work());
        work.map(|s| Bar { start: s.start, end: s.end, kind: kind(s.action.step) }).collect()
    };
    let rows = pipeline.spans.iter().take(STAGES).enumerate();
    Timeline {
        title: format!("a step of {:.3} s: {}, schedule {}", told.step.seconds, told.mesh, told.schedule),
        unit: "seconds".into(),
        end: told.step.seconds,
        kinds: ["forward", "backward", "gradients of inputs", "gradients of weights"]
            .map(String::from)
            .to_vec(),
        rows: rows.map(|(stage, spans)| Row { name: format!("stage {stage}"), bars: bars(spans) }).collect(),
    }
}

fn course(told: &Simulated) -> Timeline {
    let (unit, second) = match told.seconds {
        s if s >= 7200.0 => ("hours", 1.0 / 3600.0),
        s if s >= 120.0 => ("minutes", 1.0 / 60.0),
        _ => ("seconds", 1.0),
    };
    let kinds = ["training", "done again", "waiting for saves", "recovering", "saving"];
    let place = |doing: Doing| match doing {
        Doing::Training => (0, 0),
        Doing::Again => (0, 1),
        Doing::Waiting => (0, 2),
        Doing::Recovering => (0, 3),
        Doing::Saving(place) => (place + 1, 4),
    };
    let names = told.places.iter().map(|place| place.name.clone());
    let mut rows: Vec<Row> =
        std::iter::once("run".to_string()).chain(names).map(|name| Row { name, bars: Vec::new() }).collect();
    for stretch in &told.traced.stretches {
        let (row, kind) = place(stretch.doing);
        rows[row].bars.push(Bar { start: stretch.start * second, end: stretch.end * second, kind });
    }
    let goodput = told.goodput * 100.0;
    Timeline {
        title: format!("{} ranks: goodput {goodput:.1} %, {} failures", told.ranks, told.failures),
        unit: unit.into(),
        end: told.seconds * second,
        kinds: kinds.map(String::from).to_vec(),
        rows,
    }
}
