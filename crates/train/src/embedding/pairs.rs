//! Losses of pairs with a score, and of triplets.

use super::similarity::normalized;
use crate::error::Result;
use planaria_array::DType;
use planaria_array::ops::Keep;
use planaria_tensor::{Tensor, ops};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    let alike: Tensor = match kind {
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
    let values = alike.detach().local().cast(DType::F64)?.to_vec::<f64>()?;
    let (loss, slopes) = ordered(&values, labels, scale);
    // The slopes are constants: this has the value and the gradient of the loss.
    let rest = loss - values.iter().zip(&slopes).map(|(value, slope)| value * slope).sum::<f64>();
    Ok(alike.mul(&plain(&slopes, &[slopes.len()])?)?.sum(&[], Keep::No)?.add_scalar(rest)?)
}

/// `log(1 + sum of exp(scale * (a_i - a_j)))` over all pairs in which the label of `i` is below that of `j`, and its slope along each
/// `a`. Sums over sorted labels take the place of a matrix of all pairs.
fn ordered(alike: &[f64], labels: &[f64], scale: f64) -> (f64, Vec<f64>) {
    let mut order: Vec<usize> = (0..alike.len()).collect();
    order.sort_by(|&i, &j| labels[i].total_cmp(&labels[j]));
    let low = alike.iter().copied().fold(f64::INFINITY, f64::min);
    let high = alike.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Both are at most 1; what they leave out of a product is the exponent `out`.
    let up = |i: usize| (scale * (alike[i] - high)).exp();
    let down = |j: usize| (scale * (low - alike[j])).exp();
    let out = if alike.is_empty() { 0.0 } else { scale * (high - low) };
    let (mut below, mut above) = (vec![0.0; alike.len()], vec![0.0; alike.len()]);
    let mut sum = 0.0;
    for group in order.chunk_by(|&i, &j| labels[i] == labels[j]) {
        group.iter().for_each(|&i| below[i] = sum);
        sum += group.iter().map(|&i| up(i)).sum::<f64>();
    }
    sum = 0.0;
    for group in order.chunk_by(|&i, &j| labels[i] == labels[j]).rev() {
        group.iter().for_each(|&i| above[i] = sum);
        sum += group.iter().map(|&i| down(i)).sum::<f64>();
    }
    let wrong: f64 = order.iter().map(|&j| down(j) * below[j]).sum();
    if wrong == 0.0 {
        return (0.0, vec![0.0; alike.len()]);
    }
    let exponent = out + wrong.ln();
    let most = exponent.max(0.0);
    let loss = most + ((-most).exp() + (exponent - most).exp()).ln();
    let share = scale * (out - loss).exp();
    let slope = |i: usize| share * (up(i) * above[i] - down(i) * below[i]);
    (loss, (0..alike.len()).map(slope).collect())
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// 1 less the cosine.
    #[default]
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
