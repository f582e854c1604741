//! Cross-entropy of a linear layer's result, a few rows at a time: the scores of all rows are never there at once.

use planaria_array::ops::Reduction;
use planaria_tensor::ops::{CrossEntropyOptions, cross_entropy, linear};
use planaria_tensor::{DType, Error, Result, Tensor, recompute};

/// The label of rows that count nothing.
pub const IGNORED: i64 = -100;

/// Bytes of scores that may be there at once on a rank.
const SCORES: usize = 32 << 20;

/// Sum of the losses of `hidden · weightᵀ` (`[batch, sequence, width]` and `[vocabulary, width]`) against labels
/// `[batch, sequence]`; those that are [`IGNORED`] count nothing. The vocabulary may be cut. Collective.
pub fn linear_cross_entropy(hidden: &Tensor, weight: &Tensor, labels: &Tensor) -> Result<Tensor> {
    linear_cross_entropy_within(hidden, weight, labels, SCORES)
}

/// The same with at most `bytes` of scores at once, but always those of one position of the sequence.
pub fn linear_cross_entropy_within(
    hidden: &Tensor,
    weight: &Tensor,
    labels: &Tensor,
    bytes: usize,
) -> Result<Tensor> {
    let [_, length, _] = hidden.shape()[..] else {
        let message = format!("hidden states must be [batch, sequence, width], got {}", hidden.shape());
        return Err(Error::Argument { op: "linear_cross_entropy", message });
    };
    let chunk = (bytes / scores_of_a_position(hidden, weight)?).clamp(1, length.max(1));
    if chunk >= length {
        return summed(hidden, weight, labels);
    }
    let (xs, ys) = (hidden.split(chunk, 1)?, labels.split(chunk, 1)?);
    let mut total: Option<Tensor> = None;
    for (x, y) in xs.iter().zip(ys) {
        let weight = weight.clone();
        let work = move |inputs: &[Tensor]| Ok(vec![summed(&inputs[0], &weight, &y)?]);
        let [sum] = &recompute(&[x], work)?[..] else { return Err(Error::Bug("one sum per chunk")) };
        total = Some(match total {
            Some(before) => before.add(sum)?,
            None => sum.clone(),
        });
    }
    total.ok_or(Error::Bug("a sequence has chunks"))
}

fn summed(hidden: &Tensor, weight: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let options = CrossEntropyOptions {
        reduction: Reduction::Sum,
        ignore_index: Some(IGNORED),
        ..CrossEntropyOptions::default()
    };
    let scores = linear(hidden, weight, None)?;
    cross_entropy(&scores.cast(wide(scores.dtype()))?, labels, &options)
}

/// Bytes of the scores of one position on the rank that has most of them, which every rank knows.
fn scores_of_a_position(hidden: &Tensor, weight: &Tensor) -> Result<usize> {
    let largest = |t: &Tensor| -> Result<usize> {
        let Some(layout) = t.layout() else { return Ok(t.shape()[0]) };
        // Cuts give the first rank of a mesh at least as much as any other.
        let first = layout.mesh().ranks().next().ok_or(Error::Bug("a mesh has ranks"))?;
        Ok(layout.piece(first)?.extents()[0])
    };
    Ok(largest(hidden)?.saturating_mul(largest(weight)?).saturating_mul(wide(hidden.dtype()).size()).max(1))
}

/// Narrow scores are widened, so that losses and probabilities are not rounded.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}
