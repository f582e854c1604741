//! Rules for two models that choose between base and other element by element.

use super::{Combine, Rule, Weighted};
use crate::error::Result;
use crate::passes::{Blocks, Inputs};
use crate::select::{self, Place};

/// Takes over the differences that stand out, by size and by how much their row changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArceeFusion;

impl Rule for ArceeFusion {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        let (Some(base), [other]) = (inputs.base, &inputs.others()[..]) else {
            return Ok(Box::new(Weighted { weights: vec![1.0; inputs.values.len()] }));
        };
        let (row, other) = (inputs.row(), *other);
        let work = |_: usize, read: &[Vec<f64>]| -> Vec<f64> {
            read[other].chunks(row).zip(read[base].chunks(row)).map(|(x, base)| divergence(x, base)).collect()
        };
        let rows =
            inputs.fold(Blocks::Rows, Vec::new(), work, |rows: &mut Vec<f64>, more| rows.extend(more))?;
        let mut fused = Fused { base, other, row, rows, threshold: f64::INFINITY, wide: inputs.wide };
        let numel = inputs.numel();
        if numel == 0 {
            return Ok(Box::new(fused));
        }
        let quarters = [0.25f32, 0.5, 0.75].map(|part| (part * (numel - 1) as f32).floor() as usize);
        let places: Vec<Place> = quarters
            .iter()
            .map(|&position| Place { channel: 0, position: position.min(numel - 1) })
            .collect();
        let channel = |_: usize, first: usize, read: &[Vec<f64>], out: &mut Vec<f64>| {
            out.clear();
            out.extend((0..read[base].len()).map(|at| fused.importance(first + at, read, at)));
        };
        let found = select::find(inputs, &channel, &places)?;
        let value = |at: usize| select::magnitude(found[at].key, inputs.wide);
        fused.threshold = value(1) + 1.5 * (value(2) - value(0));
        if !inputs.wide {
            fused.threshold = f64::from(fused.threshold as f32);
        }
        Ok(Box::new(fused))
    }
}

/// How far the distribution of a row lies from that of the base.
fn divergence(x: &[f64], base: &[f64]) -> f64 {
    let softmax = |row: &[f64]| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum + 1e-8).collect::<Vec<f64>>()
    };
    softmax(x).iter().zip(&softmax(base)).map(|(p, q)| p * (p / q).ln()).sum()
}

#[derive(Debug)]
struct Fused {
    base: usize,
    other: usize,
    row: usize,
    /// Of every row.
    rows: Vec<f64>,
    threshold: f64,
    wide: bool,
}

impl Fused {
    fn importance(&self, flat: usize, read: &[Vec<f64>], at: usize) -> f64 {
        (read[self.other][at] - read[self.base][at]).abs() * self.rows[flat / self.row]
    }
}

impl Combine for Fused {
    fn combine(&self, first: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        for (at, out) in out.iter_mut().enumerate() {
            let importance = self.importance(first + at, inputs, at);
            let stands_out =
                select::magnitude(select::key(importance, self.wide), self.wide) >= self.threshold;
            *out = if stands_out { inputs[self.other][at] } else { inputs[self.base][at] };
        }
        Ok(())
    }
}

/// Moves to the other where it is near.
#[derive(Clone, Copy, Debug)]
pub(super) struct NearSwap {
    pub(super) t: f64,
}

impl Rule for NearSwap {
    fn prepare(&self, inputs: &Inputs) -> Result<Box<dyn Combine>> {
        match (inputs.base, &inputs.others()[..]) {
            (Some(base), [other]) => Ok(Box::new(Swapped { base, other: *other, t: self.t })),
            _ => Ok(Box::new(Weighted { weights: vec![1.0; inputs.values.len()] })),
        }
    }
}

#[derive(Debug)]
struct Swapped {
    base: usize,
    other: usize,
    t: f64,
}

impl Combine for Swapped {
    fn combine(&self, _: usize, inputs: &[Vec<f64>], out: &mut [f64]) -> Result<()> {
        for ((out, base), x) in out.iter_mut().zip(&inputs[self.base]).zip(&inputs[self.other]) {
            let part = (self.t / (base - x).abs().max(1e-6)).clamp(0.0, 1.0);
            *out = part * x + (1.0 - part) * base;
        }
        Ok(())
    }
}
