//! Rules that treat the rows or the columns of a tensor one by one, or all of it as one line.

use super::combine::{Gram, difference, gram, onto_inputs, stock_weights};
use super::{Combine, Rule};
use crate::error::Result;
use crate::passes::{Blocks, Inputs};
use std::fmt::Debug;

/// Which elements are one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// All.
    All,
    /// Those along the last dim.
    Last,
    /// Those along the first dim.
    First,
}

/// Weights of differences (or of the inputs, without a base) from their inner products.
pub(super) trait Weigh: Debug + Send + Sync {
    fn weights(&self, gram: &Gram) -> Vec<f64>;
}

/// Along the great circle from the first to the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interpolate {
    pub(super) t: f64,
}

impl Weigh for Interpolate {
    fn weights(&self, gram: &Gram) -> Vec<f64> {
        let norm = |i: usize| gram.norm(i).max(1e-7);
        let cosine = gram.get(0, 1) / (norm(0) * norm(1));
        if 1.0 - cosine * cosine <= 1e-16 {
            return vec![1.0 - self.t, self.t];
        }
        let angle = cosine.clamp(-1.0, 1.0).acos();
        vec![((1.0 - self.t) * angle).sin() / angle.sin(), (self.t * angle).sin() / angle.sin()]
    }
}

/// Between the base and the mean of the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stock;

impl Weigh for Stock {
    fn weights(&self, gram: &Gram) -> Vec<f64> {
        let count = gram.size();
        vec![stock_weights(gram) / count as f64; count]
    }
}

/// A rule for every line.
#[derive(Debug)]
pub(super) struct Lines {
    along: Along,
    weigh: std::sync::Arc<dyn Weigh>,
}

impl Lines {
    pub(super) fn rule(along: Along, weigh: Box<dyn Weigh>) -> Box<dyn Rule> {
        Box::new(Lines { along, weigh: weigh.into() })
    }
}

impl Rule for Lines {
    fn blocks(&self) -> Blocks {
        if self.along == Along::Last { Blocks::Rows } else { Blocks::Any }
    }

    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let count = inputs.values.len();
        // The one that has an optional tensor lends it.
        if inputs.others().len() < 2 {
            let mut weights = vec![0.0; count];
            inputs.others().iter().for_each(|&number| weights[number] = 1.0);
            return Ok(Box::new(super::Weighted { weights }));
        }
        let numbers = inputs.others();
        // Along the first dim of a vector there is only one line.
        let along =
            if self.along == Along::First && inputs.shape.len() < 2 { Along::All } else { self.along };
        match along {
            Along::All => {
                let (gram, numbers) = gram(inputs, true)?;
                Ok(Box::new(onto_inputs(&self.weigh.weights(&gram), &numbers, count, inputs.base)))
            }
            Along::Last => {
                let (row, weigh) = (inputs.row(), self.weigh.clone());
                Ok(Box::new(Rows { row, base: inputs.base, numbers, weigh }))
            }
            Along::First => {
                columns(inputs, &*self.weigh).map(|columns| Box::new(columns) as Box<dyn Combine>)
            }
        }
    }
}

/// Every row has weights of its own, found when it is made.
#[derive(Debug)]
struct Rows {
    row: usize,
    base: Option<usize>,
    numbers: Vec<usize>,
    weigh: std::sync::Arc<dyn Weigh>,
}

impl Combine for Rows {
    fn combine(&self, _: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        let whole: Vec<Vec<f64>> = match self.base {
            Some(base) => self.numbers.iter().map(|&n| difference(&inputs[n], &inputs[base])).collect(),
            None => self.numbers.iter().map(|&n| inputs[n].clone()).collect(),
        };
        for (number, out) in out.chunks_mut(self.row).enumerate() {
            let range = number * self.row..number * self.row + out.len();
            let lines: Vec<&[f64]> = whole.iter().map(|line| &line[range.clone()]).collect();
            let weights = self.weigh.weights(&Gram::of(&lines));
            match self.base {
                Some(base) => out.copy_from_slice(&inputs[base][range]),
                None => out.fill(0.0),
            }
            for (weight, line) in weights.iter().zip(&lines) {
                out.iter_mut().zip(*line).for_each(|(out, x)| *out += weight * x);
            }
        }
        Ok(())
    }
}

/// Every column has weights of its own, found in a pass before.
#[derive(Debug)]
struct Columns {
    base: Option<usize>,
    numbers: Vec<usize>,
    /// Column by column, the weights of the inputs.
    weights: Vec<Vec<f64>>,
}

fn columns(inputs: &Inputs, weigh: &dyn Weigh) -> Result<Columns> {
    let numbers = inputs.others();
    let width: usize = inputs.shape[1..].iter().product::<usize>().max(1);
    let pairs: Vec<(usize, usize)> =
        (0..numbers.len()).flat_map(|i| (i..numbers.len()).map(move |j| (i, j))).collect();
    let base = inputs.base;
    let work = |first: usize, read: &[Vec<f64>]| {
        let lines: Vec<Vec<f64>> = match base {
            Some(base) => numbers.iter().map(|&n| difference(&read[n], &read[base])).collect(),
            None => numbers.iter().map(|&n| read[n].clone()).collect(),
        };
        let mut sums = vec![0.0; pairs.len() * width];
        for (pair, (i, j)) in pairs.iter().enumerate() {
            for (at, (a, b)) in lines[*i].iter().zip(&lines[*j]).enumerate() {
                sums[pair * width + (first + at) % width] += a * b;
            }
        }
        sums
    };
    let sums = inputs.fold(Blocks::Any, vec![0.0; pairs.len() * width], work, |sums, more| {
        sums.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
    })?;
    let mut weights = vec![Vec::with_capacity(width); numbers.len()];
    for column in 0..width {
        let products: Vec<f64> = (0..pairs.len()).map(|pair| sums[pair * width + column]).collect();
        let found = weigh.weights(&Gram::of_pairs(numbers.len(), &pairs, &products));
        weights.iter_mut().zip(found).for_each(|(weights, weight)| weights.push(weight));
    }
    Ok(Columns { base, numbers, weights })
}

impl Combine for Columns {
    fn combine(&self, first: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        let width = self.weights.first().map_or(1, Vec::len);
        for (at, out) in out.iter_mut().enumerate() {
            let column = (first + at) % width;
            let base = self.base.map_or(0.0, |base| inputs[base][at]);
            let parts = self.numbers.iter().zip(&self.weights);
            *out = base + parts.map(|(&n, weights)| weights[column] * (inputs[n][at] - base)).sum::<f64>();
        }
        Ok(())
    }
}

impl Gram {
    /// From the products of pairs.
    fn of_pairs(size: usize, pairs: &[(usize, usize)], products: &[f64]) -> Gram {
        let mut gram = Gram::zero(size);
        pairs.iter().zip(products).for_each(|(&(i, j), &product)| gram.set(i, j, product));
        gram
    }
}
