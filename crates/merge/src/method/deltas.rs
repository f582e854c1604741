//! Task vectors: differences to the base, thinned out, weighed, perhaps elected by sign, and added to the base.

use super::sparsify::{self, Kept, Sparsify};
use super::{Combine, Rule};
use crate::error::Result;
use crate::passes::{Blocks, Inputs};

/// Whose sign counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elect {
    /// Nobody's: all are added.
    Nobody,
    /// That of the sum of what is added.
    Sum,
    /// That of most.
    Count,
}

/// What the sum is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Divide {
    Never,
    /// The weights of those whose sign counts.
    Weights,
}

/// What makes up for what was thinned out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rescale {
    Never,
    /// A factor that restores the sum of magnitudes.
    Magnitudes,
    /// This factor, where anything was thinned out.
    By(f64),
}

/// The rule.
#[derive(Clone, Debug)]
pub(crate) struct Deltas {
    /// Of every input; that of the base is not used.
    pub(crate) weights: Vec<f64>,
    /// Of every input beside the base.
    pub(crate) sparsify: Vec<Sparsify>,
    pub(crate) rescale: Rescale,
    pub(crate) elect: Elect,
    pub(crate) divide: Divide,
    pub(crate) factor: f64,
}

/// What is thinned out and added: differences to the base, or the inputs themselves.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) base: Option<usize>,
    pub(crate) numbers: Vec<usize>,
}

impl Source {
    pub(crate) fn of(inputs: &Inputs) -> Source {
        Source { base: inputs.base, numbers: inputs.others() }
    }

    /// The elements of one of them.
    pub(crate) fn fill(&self, number: usize, read: &[Vec<f64>], out: &mut Vec<f64>) {
        out.clear();
        let x = &read[self.numbers[number]];
        match self.base {
            Some(base) => out.extend(x.iter().zip(&read[base]).map(|(x, base)| x - base)),
            None => out.extend(x),
        }
    }
}

impl Rule for Deltas {
    fn blocks(&self) -> Blocks {
        if self.sparsify.iter().any(Sparsify::compares_rows) { Blocks::Rows } else { Blocks::Any }
    }

    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let source = Source::of(inputs);
        let kept = sparsify::prepare(&self.sparsify, &source, inputs)?;
        let mut ready = Ready {
            weights: source.numbers.iter().map(|&number| self.weights[number]).collect(),
            scales: vec![1.0; kept.len()],
            row: inputs.row(),
            wide: inputs.wide,
            elect: self.elect,
            divide: self.divide,
            factor: self.factor,
            source,
            kept,
        };
        let thinned: Vec<bool> = ready.kept.iter().map(|kept| !matches!(kept, Kept::All)).collect();
        match self.rescale {
            Rescale::Magnitudes if thinned.contains(&true) => {
                ready.scales = ready.restore(inputs, self.blocks())?
            }
            Rescale::By(factor) => {
                ready.scales = thinned.iter().map(|thinned| if *thinned { factor } else { 1.0 }).collect()
            }
            _ => {}
        }
        Ok(Box::new(ready))
    }
}

/// Everything that must be known of all elements.
#[derive(Clone, Debug)]
struct Ready {
    source: Source,
    weights: Vec<f64>,
    kept: Vec<Kept>,
    scales: Vec<f64>,
    row: usize,
    wide: bool,
    elect: Elect,
    divide: Divide,
    factor: f64,
}

/// Sums of magnitudes below it are left as they are.
const LEAST: f64 = 1e-7;

impl Ready {
    /// Factors that restore the sum of magnitudes.
    fn restore(&self, inputs: &Inputs, blocks: Blocks) -> Result<Vec<f64>> {
        let work = |first: usize, read: &[Vec<f64>]| -> Result<Vec<(f64, f64)>> {
            let mut values = Vec::new();
            let sums = (0..self.kept.len()).map(|number| {
                self.source.fill(number, read, &mut values);
                let all: f64 = values.iter().map(|value| value.abs()).sum();
                self.kept[number].apply(first, self.row, self.wide, &mut values)?;
                Ok((all, values.iter().map(|value| value.abs()).sum()))
            });
            sums.collect()
        };
        let start = Ok(vec![(0.0, 0.0); self.kept.len()]);
        let sums: Result<Vec<(f64, f64)>> =
            inputs.fold(blocks, start, work, |sums, more| match (&mut *sums, more) {
                (Ok(sums), Ok(more)) => sums.iter_mut().zip(more).for_each(|(sum, more)| {
                    sum.0 += more.0;
                    sum.1 += more.1;
                }),
                (Ok(_), Err(error)) => *sums = Err(error),
                (Err(_), _) => {}
            })?;
        let factor = |(all, kept): (f64, f64)| if all >= LEAST && kept >= LEAST { all / kept } else { 1.0 };
        Ok(sums?.into_iter().map(factor).collect())
    }
}

impl Combine for Ready {
    fn combine(&self, first: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        let mut weighted: Vec<Vec<f64>> = Vec::with_capacity(self.kept.len());
        for (number, kept) in self.kept.iter().enumerate() {
            let mut values = Vec::new();
            self.source.fill(number, inputs, &mut values);
            kept.apply(first, self.row, self.wide, &mut values)?;
            let factor = self.scales[number];
            if factor != 1.0 {
                values.iter_mut().for_each(|value| *value *= factor);
            }
            weighted.push(values);
        }
        let mut tile = Tile::default();
        for (number, out) in out.chunks_mut(TILE).enumerate() {
            let at = number * TILE..number * TILE + out.len();
            let parts: Vec<&[f64]> = weighted.iter().map(|values| &values[at.clone()]).collect();
            self.add_up(&parts, &mut tile);
            let base = self.source.base.map(|base| &inputs[base][at]);
            self.onto(base, &tile, out);
        }
        Ok(())
    }
}

/// Elements that are added up together.
const TILE: usize = 1024;

/// Sums of a few elements, and the weights that went into them.
#[derive(Debug)]
struct Tile {
    votes: [f64; TILE],
    sums: [f64; TILE],
    weights: [f64; TILE],
}

impl Default for Tile {
    fn default() -> Tile {
        Tile { votes: [0.0; TILE], sums: [0.0; TILE], weights: [0.0; TILE] }
    }
}

impl Ready {
    /// Adds up those whose sign counts. Plain loops over elements without branches, one for each input.
    fn add_up(&self, parts: &[&[f64]], tile: &mut Tile) {
        let Tile { votes, sums, weights } = tile;
        let pairs = || self.weights.iter().zip(parts);
        sums.fill(0.0);
        if self.elect == Elect::Nobody {
            weights.fill(self.weights.iter().sum());
            for (weight, part) in pairs() {
                sums.iter_mut().zip(*part).for_each(|(sum, value)| *sum += weight * value);
            }
            return;
        }
        votes.fill(0.0);
        weights.fill(0.0);
        for (weight, part) in pairs() {
            match self.elect {
                Elect::Count => {
                    votes.iter_mut().zip(*part).for_each(|(votes, value)| *votes += sign(weight * value))
                }
                _ => votes.iter_mut().zip(*part).for_each(|(votes, value)| *votes += weight * value),
            }
        }
        for (weight, part) in pairs() {
            for (((votes, value), sum), total) in votes.iter().zip(*part).zip(&mut *sums).zip(&mut *weights) {
                let part = weight * value;
                // A zero agrees with nobody.
                let agrees = (part > 0.0) & (*votes >= 0.0) | (part < 0.0) & (*votes < 0.0);
                *sum += if agrees { part } else { 0.0 };
                *total += if agrees { *weight } else { 0.0 };
            }
        }
    }

    /// Divides the sums, and adds them to the base.
    fn onto(&self, base: Option<&[f64]>, tile: &Tile, out: &mut [f64]) {
        let divide = self.divide == Divide::Weights;
        for ((out, sum), weight) in out.iter_mut().zip(&tile.sums).zip(&tile.weights) {
            let divisor = if divide & (weight.abs() >= 1e-8) { *weight } else { 1.0 };
            *out = self.factor * (sum / divisor);
        }
        if let Some(base) = base {
            out.iter_mut().zip(base).for_each(|(out, base)| *out += base);
        }
    }
}

fn sign(value: f64) -> f64 {
    f64::from(i8::from(value > 0.0) - i8::from(value < 0.0))
}
