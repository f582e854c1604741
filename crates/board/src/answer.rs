//! What the page asks for, as JSON: runs, one run, curves, lines of a log.

use crate::runs::{Board, checkpoints, config};
use crate::{log, pipeline, thin};
use planaria_telemetry::{RankNow, read_samples, smoothed};
use serde_json::{Value, json};
use std::path::Path;

/// Points of a curve, unless asked for fewer or more.
const POINTS: usize = 1200;

/// Most points of a curve that are given at once.
const MOST_POINTS: usize = 20_000;

/// Lines of a log that are given at once.
const LINES: usize = 500;

/// A question: a path and what stands behind its `?`.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) path: String,
    values: Vec<(String, String)>,
}

impl Question {
    /// Reads the target of a request, such as `/api/series?run=a&metric=loss`.
    pub(crate) fn parse(target: &str) -> Question {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        };
        Question { path: decoded(path), values: pairs.map(pair).collect() }
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.values.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// All values of a name that is given several times.
    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.values.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn number<T: std::str::FromStr>(&self, name: &str, otherwise: T) -> T {
        self.text(name).parse().unwrap_or(otherwise)
    }
}

/// `%41` is `A`, `+` is a space; what is neither stays.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let coded =
            (bytes[at] == b'%').then(|| u8::from_str_radix(text.get(at + 1..at + 3)?, 16).ok()).flatten();
        out.push(coded.unwrap_or(if bytes[at] == b'+' { b' ' } else { bytes[at] }));
        at += if coded.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The answer to a question; `None` where there is nothing of that name.
pub(crate) fn answer(board: &Board, asked: &Question) -> Option<Value> {
    match asked.path.as_str() {
        "/api/cluster" => return serde_json::to_value(board.changes(asked.number("since", 0))).ok(),
        "/api/runs" => {
            let some: Vec<&str> = asked.all("run").collect();
            let runs = if some.is_empty() { board.summaries() } else { board.summaries_of(&some) };
            return Some(json!({ "runs": runs }));
        }
        _ => {}
    }
    // A run is one of those that were found: no path of the asker's is ever opened.
    let path = board.path(asked.text("run"))?;
    match asked.path.as_str() {
        "/api/run" => Some(json!({
            "config": config(&path),
            "checkpoints": checkpoints(&path),
            "ranks": log::ranks(&path),
            "now": RankNow::read_all(&path),
        })),
        "/api/pipeline" => Some(pipeline::step(&path, asked.text("first").parse().ok())),
        "/api/samples" => Some(samples(&path, asked.number("step", u64::MAX))),
        "/api/log" => {
            let lines = log::lines(&path, asked.number("rank", 0), asked.text("text"), LINES);
            Some(json!({ "lines": lines }))
        }
        "/api/series" => {
            let (from, to) = (asked.number("from", 0), asked.number("to", u64::MAX));
            let most = asked.number("points", POINTS).clamp(10, MOST_POINTS);
            let weight = asked.number("smooth", 0.0f64);
            let weight = if weight.is_finite() { weight.clamp(0.0, 0.9999) } else { 0.0 };
            let drawn = |history: &planaria_telemetry::History| {
                let points = history.series(asked.text("metric")).ok()?;
                let raw = thin(points, from, to, most);
                let average = (weight > 0.0).then(|| thin(&smoothed(points, weight), from, to, most));
                Some(json!({ "points": numbers(&raw), "smooth": average.map(|average| numbers(&average)) }))
            };
            board.with_history(&path, drawn).ok()?
        }
        _ => None,
    }
}

/// The steps that have samples, and what was generated in one of them: the last that is not after `step`.
pub(crate) fn samples(run: &Path, step: u64) -> Value {
    let (steps, chosen) = read_samples(run, step);
    json!({ "steps": steps, "chosen": chosen })
}

/// Pairs, with `null` for what JSON has no number for.
pub(crate) fn numbers(points: &[(u64, f64)]) -> Value {
    points.iter().map(|&(step, value)| json!([step, value.is_finite().then_some(value)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_browsers_write_them() {
        let asked = Question::parse("/api/series?run=a%2Fb+c&metric=loss&points=7&odd=%zz%4");
        assert_eq!((asked.path.as_str(), asked.text("run")), ("/api/series", "a/b c"));
        assert_eq!((asked.number("points", 0), asked.number("from", 3)), (7, 3));
        assert_eq!((asked.text("odd"), asked.text("nothing")), ("%zz%4", ""));
    }
}
