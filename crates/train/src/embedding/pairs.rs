//! Losses of pairs with a score, and of triplets.

use super::similarity::normalized;
use crate::error::Result;
use planaria_array::ops::Keep;
use planaria_tensor::{Tensor, ops};

/// What is learnt from how alike two texts should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairLoss {
    /// Pairs that should be more alike are, by their cosines.
    CoSent,
    /// The same by the angles of their elements as complex numbers.
    Angle,
    /// The cosine is the score.
    CosineMse,
}

/// The loss of pairs `[pairs, width]` whose scores are `labels`, `[pairs]`.
pub fn pair_loss(kind: PairLoss, [a, b]: [&Tensor; 2], labels: &[f64], scale: f64) -> Result<Tensor> {
    let (a, b) = (normalized(a)?, normalized(b)?);
    let cosine = a.mul(&b)?.sum(&[-1], Keep::No)?;
    let plain = |values: &[f64], shape: &[usize]| Tensor::from_slice(values, shape)?.cast(a.dtype());
    let alike = match kind {
        PairLoss::CosineMse => {
            let apart = cosine.sub(&plain(labels, &[labels.len()])?)?;
            return Ok(apart.square()?.mean(&[], Keep::No)?);
        }
        PairLoss::CoSent => cosine,
        PairLoss::Angle => {
            let [a1, a2] = halves(&a)?;
            let [b1, b2] = halves(&b)?;
            let turned = a2.mul(&b1)?.sub(&a1.mul(&b2)?)?.sum(&[-1], Keep::No)?;
            cosine.add(&turned)?.abs()?
        }
    };
    // Entry (i, j) is how much more alike i is than j, which should be more alike.
    let apart = alike.unsqueeze(1)?.sub(&alike.unsqueeze(0)?)?.mul_scalar(scale)?;
    let ordered = |(i, j): (usize, usize)| if labels[i] < labels[j] { 0.0 } else { f64::NEG_INFINITY };
    let all = (0..labels.len()).flat_map(|i| (0..labels.len()).map(move |j| (i, j)));
    let others: Vec<f64> = all.map(ordered).collect();
    let wrong = apart.add(&plain(&others, &[labels.len(), labels.len()])?)?.flatten(0, -1)?;
    let right = plain(&[0.0], &[1])?;
    Ok(ops::concat(&[&right, &wrong], 0)?.logsumexp(&[0], Keep::No)?)
}

/// The two halves of every vector; one of odd width has a zero more.
fn halves(x: &Tensor) -> Result<[Tensor; 2]> {
    let [rows, width] = x.shape()[..] else {
        return Err(crate::Error::Bug { what: format!("vectors of shape {}", x.shape()) });
    };
    let even = if width.is_multiple_of(2) {
        x.clone()
    } else {
        ops::concat(&[x, &Tensor::zeros(&[rows, 1], x.dtype())?], 1)?
    };
    let half = width.div_ceil(2);
    Ok([even.narrow(1, 0, half)?, even.narrow(1, half, half)?])
}

/// How far two vectors are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// 1 less the cosine.
    Cosine,
    /// The length of their difference.
    Euclidean,
}

impl Distance {
    fn between(self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Distance::Cosine => {
                normalized(a)?.mul(&normalized(b)?)?.sum(&[-1], Keep::No)?.neg()?.add_scalar(1.0)?
            }
            Distance::Euclidean => a.sub(b)?.sum_squares(&[-1], Keep::No)?.sqrt()?,
        })
    }
}

/// Texts `[rows, width]` are nearer to their answers than to what does not answer them, by a margin.
pub fn triplet_loss(distance: Distance, margin: f64, [anchor, near, far]: [&Tensor; 3]) -> Result<Tensor> {
    let apart = distance.between(anchor, near)?.sub(&distance.between(anchor, far)?)?;
    Ok(apart.add_scalar(margin)?.relu()?.mean(&[], Keep::No)?)
}
