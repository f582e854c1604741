//! Rules whose result is a weighted sum of the inputs: only the weights depend on the elements, through inner products.

use super::{Combine, Rule};
use crate::error::{Error, Result};
use crate::passes::{Blocks, Inputs};

/// A weighted sum.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Weighted {
    pub(crate) weights: Vec<f64>,
}

impl Combine for Weighted {
    fn combine(&self, _: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        weighted_sum(&self.weights, inputs, out);
        Ok(())
    }
}

impl Rule for Weighted {
    fn is_copy(&self) -> bool {
        self.weights == [1.0]
    }

    fn prepare(&self, _: &Inputs) -> Result<Box<dyn Combine>> {
        Ok(Box::new(self.clone()))
    }
}

/// What has no weight is not looked at, so that a copy is one bit for bit.
pub(super) fn weighted_sum(weights: &[f64], inputs: &[Vec<f64>], out: &mut [f64]) {
    let used: Vec<(f64, &Vec<f64>)> =
        weights.iter().copied().zip(inputs).filter(|(weight, _)| *weight != 0.0).collect();
    if let [(first, a), (second, b)] = used[..] {
        out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out = first * a + second * b);
        return;
    }
    let mut begun = false;
    for (weight, input) in used {
        match begun {
            false => out.iter_mut().zip(input).for_each(|(out, x)| *out = weight * x),
            true => out.iter_mut().zip(input).for_each(|(out, x)| *out += weight * x),
        }
        begun = true;
    }
    if !begun {
        out.fill(0.0);
    }
}

/// The weights as they are given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear;

impl Linear {
    /// The rule; weights that cancel cannot be normalized.
    pub(crate) fn rule(weights: &[f64], normalize: bool) -> Result<Box<dyn Rule>> {
        let sum: f64 = weights.iter().sum();
        let weights = match (normalize, weights.len()) {
            (false, _) => weights.to_vec(),
            (true, 1) => vec![1.0],
            (true, _) if sum.abs() < 1e-12 => {
                let what =
                    format!("the weights {weights:?} have a sum of zero, and `normalize` divides by it");
                return Err(Error::request(format!("{what}; set `normalize: false` or change a weight")));
            }
            (true, _) => shares(weights, "`normalize`")?,
        };
        Ok(Box::new(Weighted { weights }))
    }
}

/// The sum of weights that something divides by. One that is not finite would leave nothing of any input.
pub(crate) fn total(weights: &[f64], divider: &str) -> Result<f64> {
    let sum: f64 = weights.iter().sum();
    match sum.is_finite() {
        true => Ok(sum),
        false => Err(Error::request(format!(
            "the weights {weights:?} have a sum of {sum}, and {divider} divides by it; write smaller ones"
        ))),
    }
}

/// Weights divided by their sum.
fn shares(weights: &[f64], divider: &str) -> Result<Vec<f64>> {
    let sum = total(weights, divider)?;
    let shares: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
    match shares.iter().all(|share| share.is_finite()) {
        true => Ok(shares),
        false => Err(Error::request(format!(
            "the weights {weights:?} are {shares:?} once {divider} divides them by their sum; change a weight"
        ))),
    }
}

/// All inner products of some vectors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gram {
    size: usize,
    products: Vec<f64>,
}

impl Gram {
    pub(super) fn zero(size: usize) -> Gram {
        Gram { size, products: vec![0.0; size * size] }
    }

    /// Of vectors in memory.
    pub(super) fn of(vectors: &[&[f64]]) -> Gram {
        let mut gram = Gram::zero(vectors.len());
        for (i, a) in vectors.iter().enumerate() {
            for (j, b) in vectors.iter().enumerate().skip(i) {
                gram.set(i, j, dot(a, b));
            }
        }
        gram
    }

    pub(super) fn add(&mut self, other: &Gram) {
        self.products.iter_mut().zip(&other.products).for_each(|(sum, more)| *sum += more);
    }

    pub(super) fn get(&self, i: usize, j: usize) -> f64 {
        self.products[i * self.size + j]
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn set(&mut self, i: usize, j: usize, product: f64) {
        self.products[i * self.size + j] = product;
        self.products[j * self.size + i] = product;
    }

    pub(super) fn norm(&self, i: usize) -> f64 {
        self.get(i, i).max(0.0).sqrt()
    }

    /// The inner product of two weighted sums.
    fn product(&self, a: &[f64], b: &[f64]) -> f64 {
        let row = |i: usize| (0..self.size).map(|j| b[j] * self.get(i, j)).sum::<f64>();
        (0..self.size).map(|i| a[i] * row(i)).sum()
    }
}

/// The inner product of two vectors, in lanes of its own: the sum does not wait for itself, and is the same everywhere.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 16;
    let (wide_a, rest_a) = a.as_chunks::<LANES>();
    let (wide_b, rest_b) = b.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in wide_a.iter().zip(wide_b) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    let rest: f64 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Inner products of the inputs, or of their differences to the base; the inputs they belong to.
pub(super) fn gram(inputs: &Inputs, from_base: bool) -> Result<(Gram, Vec<usize>)> {
    let base = inputs.base.filter(|_| from_base);
    let numbers: Vec<usize> = (0..inputs.values.len()).filter(|number| Some(*number) != base).collect();
    let work = |_: usize, read: &[Vec<f64>]| match base {
        None => Gram::of(&read.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        Some(base) => {
            let differences: Vec<Vec<f64>> =
                numbers.iter().map(|&n| difference(&read[n], &read[base])).collect();
            Gram::of(&differences.iter().map(Vec::as_slice).collect::<Vec<_>>())
        }
    };
    let gram = inputs.fold(Blocks::Any, Gram::zero(numbers.len()), work, |sum, more| sum.add(&more))?;
    Ok((gram, numbers))
}

pub(super) fn difference(x: &[f64], base: &[f64]) -> Vec<f64> {
    x.iter().zip(base).map(|(x, base)| x - base).collect()
}

/// Weights of differences as weights of the inputs themselves.
pub(super) fn onto_inputs(
    weights: &[f64],
    numbers: &[usize],
    inputs: usize,
    base: Option<usize>,
) -> Weighted {
    let mut all = vec![0.0; inputs];
    numbers.iter().zip(weights).for_each(|(&number, &weight)| all[number] = weight);
    if let Some(base) = base.filter(|base| !numbers.contains(base)) {
        all[base] = 1.0 - weights.iter().sum::<f64>();
    }
    Weighted { weights: all }
}

/// Along the great circle from the base, or from the first of two, to the other.
#[derive(Clone, Debug)]
pub(crate) struct Slerp {
    pub(crate) t: f64,
    /// Norms below it are not divided by.
    pub(crate) eps: f64,
    /// Cosines beyond it count as parallel.
    pub(crate) parallel: f64,
    pub(crate) ends: Ends,
}

/// Between what is interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The base and the other.
    FromBase,
    /// The two beside the base, as differences to it where there is one.
    Others,
}

impl Slerp {
    /// Weights of the two from their inner products.
    fn weights(&self, gram: &Gram, from: usize, to: usize) -> (f64, f64) {
        let inverse = |i: usize| if gram.norm(i) > self.eps { 1.0 / gram.norm(i) } else { 1.0 };
        let cosine = (gram.get(from, to) * inverse(from) * inverse(to)).clamp(-1.0, 1.0);
        if cosine.abs() > self.parallel {
            return (1.0 - self.t, self.t);
        }
        let angle = cosine.acos();
        (((1.0 - self.t) * angle).sin() / angle.sin(), (self.t * angle).sin() / angle.sin())
    }
}

impl Rule for Slerp {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        if inputs.values.len() < 2 {
            return Ok(Box::new(Weighted { weights: vec![1.0; inputs.values.len()] }));
        }
        if self.ends == Ends::Others {
            let (gram, numbers) = gram(inputs, true)?;
            let (from, to) = self.weights(&gram, 0, 1);
            return Ok(Box::new(onto_inputs(&[from, to], &numbers, inputs.values.len(), inputs.base)));
        }
        let from = inputs.base.unwrap_or(0);
        let to = 1 - from.min(1);
        let (gram, _) = gram(inputs, false)?;
        let mut weights = vec![0.0; 2];
        (weights[from], weights[to]) = self.weights(&gram, from, to);
        Ok(Box::new(Weighted { weights }))
    }
}

/// The weighted mean of directions, with the weighted mean of lengths.
#[derive(Clone, Debug)]
pub(super) struct MultiSlerp {
    weights: Vec<f64>,
    eps: f64,
}

impl MultiSlerp {
    pub(super) fn rule(weights: Vec<f64>, normalize: bool, eps: f64) -> Result<Box<dyn Rule>> {
        let sum: f64 = weights.iter().sum();
        if normalize && sum == 0.0 {
            let what =
                format!("the weights {weights:?} have a sum of zero, and `normalize_weights` divides by it");
            return Err(Error::request(what));
        }
        let weights = if normalize { shares(&weights, "`normalize_weights`")? } else { weights };
        Ok(Box::new(MultiSlerp { weights, eps }))
    }
}

impl Rule for MultiSlerp {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let count = inputs.values.len();
        let others = inputs.others();
        if let [only] = others[..] {
            let mut weights = vec![0.0; count];
            weights[only] = 1.0;
            return Ok(Box::new(Weighted { weights }));
        }
        let (gram, numbers) = gram(inputs, true)?;
        let weights: Vec<f64> = numbers.iter().map(|&number| self.weights[number]).collect();
        let units: Vec<f64> = (0..numbers.len()).map(|i| weights[i] / (gram.norm(i) + self.eps)).collect();
        let length = gram.product(&units, &units).max(0.0).sqrt();
        if length < self.eps {
            if numbers.len() == 2 {
                return Ok(Box::new(onto_inputs(&weights, &numbers, count, inputs.base)));
            }
            return Err(Error::request("the weighted directions cancel each other, so they have no mean"));
        }
        // The mean of the directions as seen from their mean is where it is: what is left of the tool's step are roundings.
        let lengths: f64 = (0..numbers.len()).map(|i| weights[i] * gram.norm(i)).sum();
        let scale = self.eps.cos() * lengths / length;
        let weights: Vec<f64> = units.iter().map(|unit| unit * scale).collect();
        Ok(Box::new(onto_inputs(&weights, &numbers, count, inputs.base)))
    }
}

/// The point of the sphere with the least sum of squared distances to the directions, with the mean length.
#[derive(Clone, Debug)]
pub(super) struct Karcher {
    pub(super) steps: usize,
    pub(super) tolerance: f64,
}

impl Rule for Karcher {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let (gram, _) = gram(inputs, false)?;
        Ok(Box::new(Weighted { weights: self.weights(&gram) }))
    }
}

impl Karcher {
    fn weights(&self, gram: &Gram) -> Vec<f64> {
        let count = gram.size;
        let used: Vec<usize> = (0..count).filter(|&i| gram.norm(i) > self.tolerance).collect();
        if used.is_empty() {
            return vec![0.0; count];
        }
        let unit = |i: usize| {
            let mut unit = vec![0.0; count];
            unit[i] = 1.0 / gram.norm(i);
            unit
        };
        let share = 1.0 / used.len() as f64;
        let mut mean = vec![0.0; count];
        used.iter().for_each(|&i| mean[i] = share / gram.norm(i));
        let norm = |weights: &[f64]| gram.product(weights, weights).max(0.0).sqrt();
        match norm(&mean) {
            length if length < self.tolerance => mean = unit(used[0]),
            length => mean.iter_mut().for_each(|weight| *weight /= length),
        }
        for _ in 0..self.steps {
            let mut step = vec![0.0; count];
            for &i in &used {
                let cosine = gram.product(&mean, &unit(i)).clamp(-1.0, 1.0);
                let angle = cosine.acos();
                // Also where nothing is tolerated: of an angle of 0 the sine is 0 too.
                if angle < self.tolerance || angle == 0.0 {
                    continue;
                }
                let factor = share * angle / angle.sin();
                step[i] += factor / gram.norm(i);
                step.iter_mut().zip(&mean).for_each(|(step, mean)| *step -= factor * cosine * mean);
            }
            let length = norm(&step);
            if length < self.tolerance || length == 0.0 {
                break;
            }
            let (sin, cos) = length.sin_cos();
            mean.iter_mut().zip(&step).for_each(|(mean, step)| *mean = cos * *mean + sin * step / length);
            let length = norm(&mean);
            mean.iter_mut().for_each(|weight| *weight /= length);
        }
        let lengths = used.iter().map(|&i| gram.norm(i)).sum::<f64>() / count as f64;
        mean.iter().map(|weight| weight * lengths).collect()
    }
}

/// How far to go from the base to the mean, by the angle between the differences.
pub(super) fn stock_weights(gram: &Gram) -> f64 {
    let count = gram.size;
    let pairs: Vec<(usize, usize)> = (0..count).flat_map(|i| (i + 1..count).map(move |j| (i, j))).collect();
    let cosine = |&(i, j): &(usize, usize)| {
        (gram.get(i, j) / (gram.norm(i) * gram.norm(j)).max(1e-6)).clamp(-1.0, 1.0)
    };
    let mean = pairs.iter().map(cosine).sum::<f64>() / pairs.len().max(1) as f64;
    let below = 1.0 + (count as f64 - 1.0) * mean;
    if below.abs() < 1e-6 { 0.0 } else { count as f64 * mean / below }
}

/// Between the base and the mean of the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelStock;

impl Rule for ModelStock {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let (gram, numbers) = gram(inputs, true)?;
        if numbers.is_empty() {
            return Ok(Box::new(onto_inputs(&[], &[], inputs.values.len(), inputs.base)));
        }
        let t = stock_weights(&gram) / numbers.len() as f64;
        let weights = vec![t; numbers.len()];
        Ok(Box::new(onto_inputs(&weights, &numbers, inputs.values.len(), inputs.base)))
    }
}
