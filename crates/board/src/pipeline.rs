//! A step of a pipeline as it was measured, beside the same schedule as it is simulated with the times of its stages.

use planaria_pipeline::{Action, Schedule, Span, Stages, Step};
use planaria_telemetry::{RankSteps, TimedStep};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Most actions of a rank, micro-batches and stages: more is no step of a run.
const MOST: usize = 1 << 20;

/// One rank's part of a step.
struct Part {
    rank: usize,
    host: String,
    begin: f64,
    spans: Vec<Span>,
}

/// The newest step that all ranks of a pipeline have told: of the one that begins with rank `first`, or of the first that there is.
pub(crate) fn step(run: &Path, first: Option<usize>) -> Value {
    let told: HashMap<usize, RankSteps> =
        RankSteps::read_all(run).into_iter().map(|one| (one.rank, one)).collect();
    let whole = |one: &&RankSteps| one.pipeline.len() > 1 && one.pipeline.first() == Some(&one.rank);
    let mut all: Vec<&RankSteps> = told.values().filter(whole).collect();
    all.sort_by_key(|one| one.rank);
    let pipelines: Vec<usize> = all.iter().map(|one| one.rank).collect();
    let chosen = all.iter().find(|one| first == Some(one.rank)).or(all.first());
    let found = chosen.and_then(|chosen| Some((chosen.rank, newest(&told, &chosen.pipeline)?)));
    match found {
        Some((first, (number, parts))) => {
            let mut shown = drawn(parts);
            shown["step"] = number.into();
            shown["first"] = first.into();
            shown["pipelines"] = pipelines.into();
            shown
        }
        None => json!({ "pipelines": pipelines }),
    }
}

/// The newest step that all these ranks have told, with the part of each.
fn newest(told: &HashMap<usize, RankSteps>, ranks: &[usize]) -> Option<(u64, Vec<Part>)> {
    let all = ranks.iter().map(|rank| told.get(rank).filter(|one| one.pipeline == ranks));
    let all: Vec<&RankSteps> = all.collect::<Option<_>>()?;
    let of = |one: &RankSteps, number: u64| one.steps.iter().position(|step| step.step == number);
    let numbers = all[0].steps.iter().map(|step| step.step);
    let number = numbers.filter(|&number| all.iter().all(|one| of(one, number).is_some())).max()?;
    let part = |one: &&RankSteps| {
        let TimedStep { begin, actions, .. } = &one.steps[of(one, number)?];
        let span = |(name, start, end): &(String, f64, f64)| {
            let action: Action = name.parse().ok()?;
            let sound = start.is_finite() && end.is_finite() && start <= end;
            let small = action.stage < MOST && action.micro < MOST;
            (sound && small).then_some(Span { action, start: *start, end: *end })
        };
        let spans: Vec<Span> = actions.iter().take(MOST).map(span).collect::<Option<_>>()?;
        Some(Part { rank: one.rank, host: one.host.clone(), begin: *begin, spans })
    };
    Some((number, all.iter().map(part).collect::<Option<_>>()?))
}

/// Both pictures of a step.
fn drawn(mut parts: Vec<Part>) -> Value {
    let moved = align(&mut parts);
    let rows = |spans: &[Vec<Span>]| -> Value {
        let row = |(part, spans): (&Part, &Vec<Span>)| {
            let bar = |span: &Span| {
                json!([
                    span.action.to_string(),
                    span.action.step.words(),
                    rounded(span.start),
                    rounded(span.end)
                ])
            };
            json!({ "rank": part.rank, "host": part.host, "spans": spans.iter().map(bar).collect::<Value>() })
        };
        parts.iter().zip(spans).map(row).collect()
    };
    let measured: Vec<Vec<Span>> = parts.iter().map(|part| part.spans.clone()).collect();
    let simulated = simulated(&measured);
    json!({
        "measured": { "rows": rows(&measured), "seconds": length(&measured), "idle": idle(&measured) },
        "simulated": simulated.map(|spans| {
            json!({ "rows": rows(&spans), "seconds": length(&spans), "idle": idle(&spans) })
        }),
        "moved": moved,
    })
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

/// Puts the parts on one axis that begins at 0. Clocks of machines differ: where a message would arrive before it was sent, a rank is
/// moved against the one before it by as little as makes that good, or to the middle where nothing does. The most that any was moved.
fn align(parts: &mut [Part]) -> f64 {
    let mut most = 0.0f64;
    for at in 0..parts.len() {
        let begin = parts[at].begin;
        parts[at]
            .spans
            .iter_mut()
            .for_each(|span| (span.start, span.end) = (span.start + begin, span.end + begin));
        if at == 0 {
            continue;
        }
        let (before, here) = parts.split_at_mut(at);
        let (before, here) = (&before[at - 1].spans, &mut here[0].spans);
        // What the clock of this rank must at least be set forward by, and at most.
        let least = early(before, here).fold(f64::NEG_INFINITY, f64::max);
        let highest = early(here, before).map(|late| -late).fold(f64::INFINITY, f64::min);
        let by = match least <= highest {
            true => 0f64.clamp(least, highest),
            false => (least + highest) / 2.0,
        };
        here.iter_mut().for_each(|span| (span.start, span.end) = (span.start + by, span.end + by));
        // Machines of one clock need no moving; what is left there are microseconds of rounding.
        most = most.max(by.abs());
    }
    let first = parts
        .iter()
        .filter_map(|part| part.spans.first())
        .map(|span| span.start)
        .fold(f64::INFINITY, f64::min);
    for span in parts.iter_mut().flat_map(|part| &mut part.spans) {
        (span.start, span.end) = (span.start - first, span.end - first);
    }
    most
}

/// By how much each message from one rank to another arrived before its sending began.
fn early<'a>(from: &'a [Span], to: &'a [Span]) -> impl Iterator<Item = f64> + 'a {
    let sent: HashMap<Action, f64> = from.iter().map(|span| (span.action, span.start)).collect();
    to.iter().filter_map(move |span| {
        let Action { step, stage, micro } = span.action;
        let source = match step {
            Step::ReceiveInput => Action::new(Step::SendOutput, stage.checked_sub(1)?, micro),
            Step::ReceiveGradient => Action::new(Step::SendGradient, stage.checked_add(1)?, micro),
            _ => return None,
        };
        Some(sent.get(&source)? - span.end)
    })
}

/// The schedule that was carried out, where all work of a stage takes its median time and messages take none. Absent where the lists
/// are no schedule.
fn simulated(measured: &[Vec<Span>]) -> Option<Vec<Vec<Span>>> {
    let mut ranks: BTreeMap<usize, usize> = BTreeMap::new();
    let (mut micros, mut times) = (0usize, HashMap::<(usize, Step), Vec<f64>>::new());
    for (rank, spans) in measured.iter().enumerate() {
        for Span { action: Action { step, stage, micro }, start, end } in spans {
            ranks.insert(*stage, rank);
            micros = micros.max(micro + 1);
            times.entry((*stage, *step)).or_default().push(end - start);
        }
    }
    // Stages without a gap, or it is no pipeline.
    if ranks.keys().enumerate().any(|(expected, stage)| expected != *stage) {
        return None;
    }
    let medians: HashMap<(usize, Step), f64> =
        times.into_iter().map(|(of, list)| (of, median(list))).collect();
    let stages = Stages::new(&ranks.into_values().collect::<Vec<_>>()).ok()?;
    let lists = measured.iter().map(|spans| spans.iter().map(|span| span.action).collect()).collect();
    let time = |action: Action| match action.step.is_work() {
        true => medians.get(&(action.stage, action.step)).copied().unwrap_or(0.0),
        false => 0.0,
    };
    Schedule::new(stages, micros, lists).replay(time).ok()
}

fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list.get(list.len() / 2).copied().unwrap_or(0.0)
}

fn length(spans: &[Vec<Span>]) -> f64 {
    rounded(spans.iter().flatten().map(|span| span.end).fold(0.0, f64::max))
}

/// The part of the time in which a rank does not compute, over all ranks.
fn idle(spans: &[Vec<Span>]) -> f64 {
    let work = spans.iter().flatten().filter(|span| span.action.step.is_work());
    let busy: f64 = work.map(|span| span.end - span.start).sum();
    let all = length(spans) * spans.len() as f64;
    if all > 0.0 { rounded(1.0 - busy / all) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_pipeline::ScheduleKind;
    use planaria_telemetry::RankStepsFile;
    use std::time::Duration;

    /// Writes the steps of a pipeline as its ranks would, forward taking 1 ms and backward 2 ms.
    fn tell(run: &Path, ranks: &[usize], steps: u64) -> Schedule {
        let schedule = ScheduleKind::OneForwardOneBackward.build(ranks.len(), 4, 1).unwrap();
        let time = |action: Action| match action.step {
            Step::Forward => 1e-3,
            Step::Backward => 2e-3,
            _ => 0.0,
        };
        let spans = schedule.replay(time).unwrap();
        for (&rank, spans) in ranks.iter().zip(&spans) {
            let mut file = RankStepsFile::create(run, rank, 8, ranks).unwrap();
            for step in 1..=steps {
                let actions = spans.iter().map(|span| (span.action.to_string(), span.start, span.end));
                file.tell(step, Duration::ZERO, actions.collect());
            }
        }
        schedule
    }

    /// Makes a rank's clock differ.
    fn set_clock(run: &Path, rank: usize, begin: f64) {
        let path = run.join(format!("ranks/rank-{rank:05}.steps"));
        let mut told: RankSteps = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        told.steps.iter_mut().for_each(|step| step.begin = begin);
        std::fs::write(path, serde_json::to_vec(&told).unwrap()).unwrap();
    }

    #[test]
    fn a_measured_step_stands_beside_its_schedule_whatever_the_clocks_say() {
        let run = tempfile::tempdir().unwrap();
        let schedule = tell(run.path(), &[0, 2, 4], 3);
        tell(run.path(), &[1, 3, 5], 2);
        // An hour apart, which messages contradict.
        for (rank, begin) in [(0, 0.0), (2, 3600.0), (4, -3600.0)] {
            set_clock(run.path(), rank, begin);
        }
        let shown = step(run.path(), None);
        assert_eq!((&shown["step"], &shown["pipelines"]), (&json!(3), &json!([0, 1])));
        assert!(shown["moved"].as_f64().unwrap() > 3000.0);
        let rows = shown["measured"]["rows"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[1]["rank"]), (3, &json!(2)));
        assert_eq!(rows[1]["spans"].as_array().unwrap().len(), schedule.list(1).len());
        // 3 forwards and backwards of filling and 3 more micro-batches: the bubble that 1F1B has.
        assert_eq!(shown["simulated"]["seconds"], json!(0.018));
        assert_eq!(shown["simulated"]["idle"], json!(0.333333));
        let (told, ideal) = (&shown["measured"]["seconds"], 0.018);
        assert!((told.as_f64().unwrap() - ideal).abs() < 0.004, "{told}");
        assert_eq!(step(run.path(), Some(1))["step"], json!(2));
    }

    #[test]
    fn ranks_that_do_not_fit_together_show_nothing() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(step(run.path(), None), json!({ "pipelines": [] }));
        tell(run.path(), &[0, 1], 2);
        let path = run.path().join("ranks/rank-00001.steps");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("1F0", "soup")).unwrap();
        assert_eq!(step(run.path(), None), json!({ "pipelines": [0] }));
        std::fs::write(&path, text.replace("\"1B3\"", "\"1B2\"")).unwrap();
        assert_eq!(step(run.path(), None)["simulated"], Value::Null, "no schedule does something twice");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(step(run.path(), None), json!({ "pipelines": [0] }));
    }
}
