//! Averages of a run's weights as models: those that the run kept, and those of any width made of two that it kept.
//!
//! A power function of one width is nearly a sum of those of other widths at other times. What the checkpoints of a run hold of two
//! tracked averages is therefore enough to make, after training, the average of any width in between (Karras et al. 2024, appendix C).

use crate::config::{Average, OptimSection};
use crate::error::{Error, Result};
use crate::weights::average_kind;
use planaria_array::ops::Binary;
use planaria_array::{Array, DType};
pub use planaria_ckpt::Existing;
use planaria_ckpt::{
    Checkpoint, Item, LoadOptions, SaveOptions, TensorKey, TensorKind, TrainState, Unmatched,
};
use planaria_ckpt::{OutputFolder, step_folder};
use planaria_nn::optim::Ema;
use planaria_store::{Store, join};
use std::path::Path;

/// Which average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Which {
    /// The one of this number that the run kept, from 0: `optim.ema` first, then `[[optim.averages]]`.
    Kept(usize),
    /// The power function of this width, made of those that the run kept.
    Sigma(f64),
}

/// What was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// The step that it is of.
    pub step: u64,
    /// How much each checkpoint's average counts: step, number of the average, weight.
    pub from: Vec<(u64, usize, f64)>,
    /// How far the sum is from the power function that was asked for, as part of it; 0 for one that the run kept.
    pub error: f64,
}

/// A power function that a checkpoint holds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    step: u64,
    number: usize,
    /// Updates so far.
    time: f64,
    power: f64,
}

/// Where an average is written.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// What may be done with a checkpoint that is there.
    pub existing: Existing,
}

/// Writes an average of a run's weights as a model's folder: that of `step`, or the newest.
pub fn write(run: &Path, out: &Output<'_>, which: Which, step: Option<u64>) -> Result<Made> {
    let store = planaria_store::open(&run.display().to_string())?;
    let steps = planaria_ckpt::committed(&*store, "ckpt")?;
    if steps.is_empty() {
        let (found, expected) =
            (format!("'{}'", run.display()), "the folder of a run that has a checkpoint".into());
        return Err(Error::Value { key: "run".into(), found, expected });
    }
    let at = step.or(steps.last().copied()).filter(|step| steps.contains(step));
    let Some(at) = at else {
        let known: Vec<String> = steps.iter().map(|&step| step_folder(step)).collect();
        let found = step.map_or("none".to_string(), |step| step.to_string());
        let expected = format!("a step of '{}', which has {}", run.display(), known.join(", "));
        return Err(Error::Value { key: "step".into(), found, expected });
    };
    let newest = open(&*store, at)?;
    let averages = averages_of(&newest)?;
    let made = match which {
        Which::Kept(number) if number < averages.len() => {
            Made { step: at, from: vec![(at, number, 1.0)], error: 0.0 }
        }
        Which::Kept(_) if averages.is_empty() => {
            let expected = "a run that keeps averages: set `optim.ema` or `optim.averages`".into();
            return Err(Error::Value { key: "averages".into(), found: "none".into(), expected });
        }
        Which::Kept(number) => {
            let expected = format!("below {}, the averages that the run kept", averages.len());
            return Err(Error::Value { key: "number".into(), found: number.to_string(), expected });
        }
        Which::Sigma(sigma) => synthesis(&*store, &steps, at, sigma)?,
    };
    let folder = OutputFolder::check([], &out.folder.display().to_string(), out.existing, [])?;
    let mut sum: Option<TrainState> = None;
    for (step, number, weight) in &made.from {
        let part = load(&*store, &newest, *step, *number)?;
        sum = Some(match sum {
            None => scaled(part, *weight)?,
            Some(sum) => added(sum, &part, *weight)?,
        });
    }
    let sum = sum.ok_or_else(|| Error::Bug { what: "an average of nothing".into() })?;
    save(&folder, sum, &newest)?;
    Ok(made)
}

fn open(store: &dyn Store, step: u64) -> Result<Checkpoint> {
    Ok(planaria_ckpt::open(store, &join("ckpt", &step_folder(step)))?)
}

/// The averages of the run that wrote a checkpoint.
fn averages_of(checkpoint: &Checkpoint) -> Result<Vec<Average>> {
    let section = checkpoint.state.config.get("optim").cloned().unwrap_or_default();
    let section: OptimSection = serde_json::from_value(section).map_err(|error| Error::Run {
        what: format!("'{}' does not say how it was trained: {error}", checkpoint.folder),
    })?;
    section.averages()
}

/// The sum of what checkpoints up to `at` hold that is nearest to the power function of this width at `at`.
fn synthesis(store: &dyn Store, steps: &[u64], at: u64, sigma: f64) -> Result<Made> {
    let Ema::Power(power) = Ema::power(sigma)? else {
        return Err(Error::Bug { what: "a power function is none".into() });
    };
    let mut known = Vec::new();
    let mut time = 1.0;
    for &step in steps.iter().filter(|&&step| step <= at) {
        let checkpoint = open(store, step)?;
        let updates = crate::trainer::updates_of(&checkpoint.state)? as f64;
        if step == at {
            time = updates.max(1.0);
        }
        for (number, average) in averages_of(&checkpoint)?.iter().enumerate() {
            if let (Ema::Power(power), true) = (average.profile, updates >= average.every as f64) {
                known.push(Known { step, number, time: updates, power });
            }
        }
    }
    if known.len() < 2 {
        return Err(Error::Value {
            key: "sigma".into(),
            found: sigma.to_string(),
            expected:
                "a run with two `[[optim.averages]]` that have a `sigma`, and checkpoints that were kept"
                    .into(),
        });
    }
    let target = Known { step: at, number: 0, time, power };
    let weights = nearest(&known, target)?;
    let error = distance(&known, &weights, target);
    let from = known.iter().zip(weights).map(|(known, weight)| (known.step, known.number, weight));
    Ok(Made { step: at, from: from.filter(|(_, _, weight)| *weight != 0.0).collect(), error })
}

/// The integral of the product of two power functions, each from 0 to its own time and of integral 1.
fn product(a: Known, b: Known) -> f64 {
    let (first, last) = if a.time <= b.time { (a, b) } else { (b, a) };
    let scale = (a.power + 1.0) * (b.power + 1.0) / ((a.power + b.power + 1.0) * last.time);
    // The earlier one ends where the later one is this small part of its end.
    scale * (first.time / last.time).powf(last.power)
}

/// The weights with which the known functions are nearest to the target, in the mean square.
fn nearest(known: &[Known], target: Known) -> Result<Vec<f64>> {
    let size = known.len();
    let scale = product(target, target);
    let mut rows: Vec<Vec<f64>> = known
        .iter()
        .map(|&a| {
            let own = product(a, a).sqrt();
            let of = |b: Known| product(a, b) / (own * product(b, b).sqrt());
            let row = known.iter().map(|&b| of(b));
            row.chain([product(a, target) / (own * scale.sqrt())]).collect()
        })
        .collect();
    for (i, row) in rows.iter_mut().enumerate() {
        // Functions that are nearly alike make the equations nearly singular; this keeps the weights small.
        row[i] += 1e-12;
    }
    for column in 0..size {
        let pivot = (column..size).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()));
        rows.swap(column, pivot.unwrap_or(column));
        if rows[column][column].abs() < 1e-300 {
            return Err(Error::Run { what: "the averages of the run are too similar".into() });
        }
        let (above, below) = rows.split_at_mut(column + 1);
        let lead = &above[column];
        for row in below {
            let factor = row[column] / lead[column];
            row.iter_mut().zip(lead).skip(column).for_each(|(x, y)| *x -= factor * y);
        }
    }
    let mut weights = vec![0.0; size];
    for row in (0..size).rev() {
        let rest: f64 = (row + 1..size).map(|column| rows[row][column] * weights[column]).sum();
        weights[row] = (rows[row][size] - rest) / rows[row][row];
    }
    let shares = known.iter().map(|&a| (scale / product(a, a)).sqrt());
    Ok(weights.into_iter().zip(shares).map(|(weight, share)| weight * share).collect())
}

/// How far a weighted sum is from the target, as part of it, in the mean square.
fn distance(known: &[Known], weights: &[f64], target: Known) -> f64 {
    let mut square = product(target, target);
    for (a, x) in known.iter().zip(weights) {
        square -= 2.0 * x * product(*a, target);
        square += known.iter().zip(weights).map(|(b, y)| x * y * product(*a, *b)).sum::<f64>();
    }
    (square.max(0.0) / product(target, target)).sqrt()
}

/// One average of a checkpoint, under the names of the parameters; a parameter that was not trained is itself.
fn load(store: &dyn Store, newest: &Checkpoint, step: u64, number: usize) -> Result<TrainState> {
    let checkpoint = open(store, step)?;
    let mut items = Vec::new();
    for (key, stored) in newest.tensors.iter().filter(|(key, _)| key.kind == TensorKind::Parameter) {
        let kind = average_kind(number);
        let kept = checkpoint.tensors.contains_key(&TensorKey { kind: kind.clone(), name: key.name.clone() });
        let (kind, dtype) = if kept { (kind, DType::F32) } else { (TensorKind::Parameter, stored.dtype) };
        items.push(Item::whole(kind, &key.name, &Array::zeros(stored.shape.dims(), dtype)?));
    }
    let mut state = TrainState::new(items);
    let options = LoadOptions { unexpected: Unmatched::Allow, ..LoadOptions::default() };
    planaria_ckpt::load(&*planaria_comm::alone(), store, &checkpoint.folder, &mut state, &options)?;
    Ok(state)
}

fn is_kept(item: &Item) -> bool {
    item.kind != TensorKind::Parameter
}

fn scaled(mut state: TrainState, weight: f64) -> Result<TrainState> {
    for item in state.items.iter_mut().filter(|item| is_kept(item)) {
        for piece in &mut item.pieces {
            piece.array = piece.array.cast(DType::F64)?;
            piece.array.binary_in_place(Binary::Mul, &Array::scalar(weight, DType::F64)?)?;
        }
    }
    Ok(state)
}

fn added(sum: TrainState, part: &TrainState, weight: f64) -> Result<TrainState> {
    for (item, other) in sum.items.iter().zip(&part.items).filter(|(item, _)| is_kept(item)) {
        for (piece, other) in item.pieces.iter().zip(&other.pieces) {
            let more = other.array.cast(DType::F64)?;
            more.binary_in_place(Binary::Mul, &Array::scalar(weight, DType::F64)?)?;
            piece.array.binary_in_place(Binary::Add, &more)?;
        }
    }
    Ok(sum)
}

/// Writes the folder of a model with the element types that it was trained with.
fn save(folder: &OutputFolder, sum: TrainState, newest: &Checkpoint) -> Result<()> {
    let mut items = Vec::new();
    for item in &sum.items {
        let stored = newest.tensors.get(&TensorKey::parameter(&item.name));
        let dtype = stored.map_or(item.dtype, |stored| stored.dtype);
        for piece in &item.pieces {
            items.push(Item::whole(TensorKind::Parameter, &item.name, &piece.array.cast(dtype)?));
        }
    }
    let state = TrainState { items, ..sum };
    folder.fill(|store, at| {
        planaria_ckpt::save(&*planaria_comm::alone(), store, at, &state, &SaveOptions::default())?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn power(sigma: f64) -> f64 {
        match Ema::power(sigma).unwrap() {
            Ema::Power(power) => power,
            Ema::Decay(_) => f64::NAN,
        }
    }

    #[test]
    fn products_are_the_integrals_of_float64_sums() {
        let known = |time, power| Known { step: 0, number: 0, time, power };
        for (a, b) in [(known(10.0, 3.0), known(10.0, 5.0)), (known(4.0, 6.9), known(9.0, 2.5))] {
            let value = |k: Known, t: f64| {
                if t > k.time { 0.0 } else { (k.power + 1.0) / k.time * (t / k.time).powf(k.power) }
            };
            let cells = 2_000_000;
            let width = 10.0 / f64::from(cells);
            let sum: f64 = (0..cells)
                .map(|i| (f64::from(i) + 0.5) * width)
                .map(|t| value(a, t) * value(b, t) * width)
                .sum();
            assert!((product(a, b) - sum).abs() < 1e-5 * sum, "{} {sum}", product(a, b));
            assert_eq!(product(a, b), product(b, a));
        }
    }

    #[test]
    fn a_width_in_between_is_made_of_two_that_were_kept() {
        let times = (1..=32).map(|k| f64::from(k) * 125.0);
        let known: Vec<Known> = times
            .flat_map(|time| {
                [0.05, 0.1].map(|sigma| Known { step: time as u64, number: 0, time, power: power(sigma) })
            })
            .collect();
        for sigma in [0.05, 0.07, 0.1, 0.15] {
            let target = Known { step: 4000, number: 0, time: 4000.0, power: power(sigma) };
            let weights = nearest(&known, target).unwrap();
            assert!(
                distance(&known, &weights, target) < 0.02,
                "{sigma}: {}",
                distance(&known, &weights, target)
            );
            assert!((weights.iter().sum::<f64>() - 1.0).abs() < 0.02, "{sigma}");
            // Means of a thousand values and more, of a walk that is not smooth, in float64.
            let value = |t: f64| (t * 0.01).sin() + t / 1000.0;
            let mean = |k: Known| {
                let profile = Ema::Power(k.power);
                (1..=k.time as u64).fold(0.0, |mean, t| mean + profile.gain(t) * (value(t as f64) - mean))
            };
            let made: f64 = known.iter().zip(&weights).map(|(k, w)| w * mean(*k)).sum();
            assert!((made - mean(target)).abs() < 0.02, "{sigma}: {made} {}", mean(target));
        }
    }
}
