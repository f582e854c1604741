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
        let total: f64 = self.weights.iter().sum();
        for (at, out) in out.iter_mut().enumerate() {
            let part = |number: usize| self.weights[number] * weighted[number][at];
            let numbers = 0..weighted.len();
            let (sum, weight) = match self.elect {
                Elect::Nobody => (numbers.map(part).sum::<f64>(), total),
                elect => {
                    let votes: f64 = match elect {
                        Elect::Count => numbers.clone().map(|number| sign(part(number))).sum(),
                        _ => numbers.clone().map(part).sum(),
                    };
                    let plus = votes >= 0.0;
                    let agree = |number: &usize| if plus { part(*number) > 0.0 } else { part(*number) < 0.0 };
                    let (mut sum, mut weight) = (0.0, 0.0);
                    for number in numbers.filter(agree) {
                        sum += part(number);
                        weight += self.weights[number];
                    }
                    (sum, weight)
                }
            };
            let divisor = match self.divide {
                Divide::Weights if weight.abs() >= 1e-8 => weight,
                _ => 1.0,
            };
            let base = self.source.base.map_or(0.0, |base| inputs[base][at]);
            *out = base + self.factor * (sum / divisor);
        }
        Ok(())
    }
}

fn sign(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value.signum() }
}
