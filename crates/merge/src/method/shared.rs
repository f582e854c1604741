//! Rules that look at what the differences of all models have in common: variance, signs, overlap.

use super::combine::difference;
use super::{Combine, Rule};
use crate::error::Result;
use crate::passes::{Blocks, Inputs};
use crate::select::{self, Nth, Place};

/// Select by variance, calculate weights by size, erase what disagrees in sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sce {
    /// Part of the elements that stays.
    pub(super) part: f64,
}

/// What stays by variance.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Chosen {
    All,
    Nothing,
    Largest { cut: u64, before: usize },
}

impl Rule for Sce {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let (numbers, base) = (inputs.others(), inputs.base.unwrap_or(0));
        let mut ready =
            Elected { base, numbers, wide: inputs.wide, chosen: self.choose(inputs)?, weights: Vec::new() };
        if ready.numbers.is_empty() || ready.chosen == Chosen::Nothing {
            ready.numbers.clear();
            return Ok(Box::new(ready));
        }
        let count = ready.numbers.len();
        let work = |first: usize, read: &[Vec<f64>]| -> Vec<f64> {
            ready.differences(first, read).iter().map(|d| d.iter().map(|d| d * d).sum()).collect()
        };
        let squares = inputs.fold(Blocks::Any, vec![0.0; count], work, |sums, more| {
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        })?;
        let means: Vec<f64> = squares.iter().map(|sum| sum / inputs.numel().max(1) as f64).collect();
        let total: f64 = means.iter().sum();
        ready.weights = match total < 1e-6 {
            true => vec![1.0 / count as f64; count],
            false => means.iter().map(|mean| mean / total).collect(),
        };
        Ok(Box::new(ready))
    }
}

impl Sce {
    fn choose(&self, inputs: &Inputs) -> Result<Chosen> {
        if self.part >= 1.0 {
            return Ok(Chosen::All);
        }
        let (numbers, base) = (inputs.others(), inputs.base.unwrap_or(0));
        let channel = |_: usize, _: usize, read: &[Vec<f64>], out: &mut Vec<f64>| {
            let differences: Vec<Vec<f64>> =
                numbers.iter().map(|&number| difference(&read[number], &read[base])).collect();
            variances(&differences, read[base].len(), out);
        };
        let counts = inputs.tally(
            Blocks::Any,
            || 0usize,
            |count, first, read| {
                let mut values = Vec::new();
                channel(0, first, read, &mut values);
                *count += values.iter().filter(|value| select::key(**value, inputs.wide) > 0).count();
            },
        )?;
        let varied: usize = counts.iter().sum();
        let keep = (self.part.max(0.0) * varied as f64).floor() as usize;
        if keep == 0 {
            return Ok(Chosen::Nothing);
        }
        let numel = inputs.numel();
        let place = Place { channel: 0, position: numel - keep };
        let cut = select::find(inputs, &channel, &[place])?[0];
        let nth = keep - (numel - cut.below - cut.equal);
        let before = match nth >= cut.equal {
            true => numel,
            false => select::indices(inputs, &channel, &[Nth { channel: 0, key: cut.key, nth }])?[0],
        };
        Ok(Chosen::Largest { cut: cut.key, before })
    }
}

/// Population variances over the models.
fn variances(differences: &[Vec<f64>], len: usize, out: &mut Vec<f64>) {
    let count = differences.len().max(1) as f64;
    out.clear();
    out.extend((0..len).map(|at| {
        let mean = differences.iter().map(|d| d[at]).sum::<f64>() / count;
        differences.iter().map(|d| (d[at] - mean) * (d[at] - mean)).sum::<f64>() / count
    }));
}

#[derive(Debug)]
struct Elected {
    base: usize,
    numbers: Vec<usize>,
    wide: bool,
    chosen: Chosen,
    weights: Vec<f64>,
}

impl Elected {
    /// The differences with zeros where nothing was chosen.
    fn differences(&self, first: usize, read: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let base = &read[self.base];
        let mut all: Vec<Vec<f64>> =
            self.numbers.iter().map(|&number| difference(&read[number], base)).collect();
        if let Chosen::Largest { cut, before } = self.chosen {
            let mut variance = Vec::new();
            variances(&all, base.len(), &mut variance);
            for (at, variance) in variance.iter().enumerate() {
                let key = select::key(*variance, self.wide);
                if key < cut || key == cut && first + at >= before {
                    all.iter_mut().for_each(|difference| difference[at] = 0.0);
                }
            }
        }
        all
    }
}

impl Combine for Elected {
    fn combine(&self, first: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        let all = self.differences(first, inputs);
        for (at, out) in out.iter_mut().enumerate() {
            let plus = all.iter().map(|d| d[at]).sum::<f64>() >= 0.0;
            let (mut sum, mut weight) = (0.0, 0.0);
            for (difference, w) in all.iter().map(|d| d[at]).zip(&self.weights) {
                if if plus { difference > 0.0 } else { difference < 0.0 } {
                    sum += w * difference;
                    weight += w;
                }
            }
            *out = inputs[self.base][at] + sum / weight.max(1e-6);
        }
        Ok(())
    }
}

/// What only one model changed is added; what several changed is averaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ram {
    /// Differences up to it are none.
    pub(super) epsilon: f64,
    /// Strength and limit of the boost for what only one model changed.
    pub(super) boost: Option<(f64, f64)>,
}

impl Rule for Ram {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let (numbers, base) = (inputs.others(), inputs.base.unwrap_or(0));
        let mut ready = Overlap { base, epsilon: self.epsilon, boosts: vec![1.0; numbers.len()], numbers };
        if let Some((strength, limit)) = self.boost {
            let counted = inputs.tally(
                Blocks::Any,
                || vec![(0usize, 0usize); ready.numbers.len()],
                |counts, _, read| ready.count(read, counts),
            )?;
            for (number, boost) in ready.boosts.iter_mut().enumerate() {
                let shared: usize = counted.iter().map(|counts| counts[number].0).sum();
                let unique: usize = counted.iter().map(|counts| counts[number].1).sum();
                let ratio = shared as f64 / (unique as f64).max(self.epsilon);
                // A limit below 0 wins, as in torch.
                *boost = 1.0 + strength * ratio.max(0.0).min(limit);
            }
        }
        Ok(Box::new(ready))
    }
}

#[derive(Debug)]
struct Overlap {
    base: usize,
    numbers: Vec<usize>,
    epsilon: f64,
    boosts: Vec<f64>,
}

impl Overlap {
    /// The changes of one element: by how much each model changes it, if it does.
    fn changes<'a>(
        &'a self,
        read: &'a [Vec<f64>],
        at: usize,
    ) -> impl Iterator<Item = Option<f64>> + Clone + 'a {
        self.numbers.iter().map(move |&number| {
            let difference = read[number][at] - read[self.base][at];
            (difference.abs() > self.epsilon).then_some(difference)
        })
    }

    /// Adds up, for every model, what it changed together with others and alone.
    fn count(&self, read: &[Vec<f64>], counts: &mut [(usize, usize)]) {
        for at in 0..read[self.base].len() {
            let together = self.changes(read, at).flatten().count() > 1;
            for (change, count) in self.changes(read, at).zip(&mut *counts) {
                if change.is_some() {
                    *(if together { &mut count.0 } else { &mut count.1 }) += 1;
                }
            }
        }
    }
}

impl Combine for Overlap {
    fn combine(&self, _: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        for (at, out) in out.iter_mut().enumerate() {
            let changes = self.changes(inputs, at);
            let count = changes.clone().flatten().count();
            let sum: f64 = match count {
                1 => changes.zip(&self.boosts).filter_map(|(change, boost)| Some(change? * boost)).sum(),
                _ => changes.flatten().sum::<f64>() / count.max(1) as f64,
            };
            *out = inputs[self.base][at] + sum;
        }
        Ok(())
    }
}
