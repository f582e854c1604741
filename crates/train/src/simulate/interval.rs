//! The interval between saves that loses least: found by simulation, beside the one that theory gives.

use super::course::{Course, Setup};
use super::failures::Failures;
use crate::trainer::place::Pace;

/// Mean times between failures that a trial is long; and the most snapshots it takes.
const FAILURES: f64 = 400.0;
const SNAPSHOTS: f64 = 100_000.0;

/// Neighbours of the best of a row of powers of two that are tried too, as powers of two.
const BETWEEN: [f64; 6] = [-0.75, -0.5, -0.25, 0.25, 0.5, 0.75];

/// The best interval of one place, in steps, and the goodput there; the other places are as they are.
pub(super) fn best(setup: &Setup, place: usize, mtbf: f64, failures: &Failures) -> (u64, f64) {
    let tried = |every: u64| (every, goodput(setup, place, every.max(1), mtbf, failures));
    // Less often than failures come, there is nothing left to gain or to lose.
    let most = (8.0 * mtbf / setup.step).clamp(1.0, 1e9) as u64;
    let coarse = (0..).map(|power| 1u64 << power).take_while(|&every| every <= most.max(1)).map(tried);
    let better = |a: (u64, f64), b: (u64, f64)| if b.1 > a.1 { b } else { a };
    let Some(first) = coarse.reduce(better) else { return (1, 0.0) };
    let near = BETWEEN.map(|power| (first.0 as f64 * power.exp2()).round().max(1.0) as u64);
    near.into_iter().map(tried).fold(first, better)
}

/// Goodput with another interval of a place, of the same failures.
fn goodput(setup: &Setup, place: usize, every: u64, mtbf: f64, failures: &Failures) -> f64 {
    let mut setup = setup.clone();
    setup.places[place].place.every = every;
    let often = setup.places.iter().map(|place| place.every).filter(|&every| every > 0).min().unwrap_or(1);
    setup.end = (FAILURES * mtbf).min(SNAPSHOTS * often as f64 * setup.step).max(8.0 * mtbf);
    (setup.last, setup.final_save) = (u64::MAX, false);
    Course::new(&setup, failures, 0).run().goodput()
}

/// Seconds of training that one save to a place costs.
pub(super) fn cost(setup: &Setup, place: usize) -> f64 {
    let place = &setup.places[place];
    match setup.pace {
        Pace::Stand => place.save,
        _ => place.save * place.drag / (1.0 + place.drag),
    }
}

/// The interval of Young and Daly in seconds: the square root of twice the cost of a save times the mean time between failures; never
/// less than a save takes.
pub(super) fn daly(setup: &Setup, place: usize, mtbf: f64) -> f64 {
    (2.0 * cost(setup, place) * mtbf).sqrt().max(setup.places[place].save)
}
