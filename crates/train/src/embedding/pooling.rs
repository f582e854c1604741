//! One vector of the hidden states of a text.

use crate::error::{Error, Result};
use planaria_array::ops::Keep;
use planaria_nn::models::States;
use planaria_tensor::{Tensor, ops};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Which vector, by the names that sentence-transformers has for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Pooling {
    /// That of the last token.
    #[default]
    #[serde(rename = "lasttoken")]
    LastToken,
    /// That of the first token.
    #[serde(rename = "cls")]
    Cls,
    /// The mean.
    #[serde(rename = "mean")]
    Mean,
    /// The sum over the root of the number of tokens.
    #[serde(rename = "mean_sqrt_len_tokens")]
    MeanSqrtLength,
    /// The mean, in which the first token of a text counts once, the second twice, and so on.
    #[serde(rename = "weightedmean")]
    WeightedMean,
    /// The largest value of each element.
    #[serde(rename = "max")]
    Max,
}

/// Where a text stands in its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSpan {
    /// Its tokens.
    pub tokens: Range<usize>,
    /// The first that counts; those before it are of a prompt.
    pub counted: usize,
}

impl Pooling {
    /// What each token of a text counts.
    fn weights(self, span: &TextSpan) -> Vec<(usize, f64)> {
        let counted = span.counted..span.tokens.end;
        let all = |weight: &dyn Fn(usize) -> f64| counted.clone().map(|at| (at, weight(at))).collect();
        let count = counted.len() as f64;
        match self {
            Pooling::LastToken => vec![(span.tokens.end - 1, 1.0)],
            Pooling::Cls => vec![(span.counted, 1.0)],
            Pooling::Mean | Pooling::Max => all(&|_| 1.0 / count),
            Pooling::MeanSqrtLength => all(&|_| 1.0 / count.sqrt()),
            Pooling::WeightedMean => {
                let place = |at: usize| (at - span.tokens.start + 1) as f64;
                let sum: f64 = counted.clone().map(place).sum();
                all(&|at| place(at) / sum)
            }
        }
    }
}

/// The vectors of all texts, `[rows, texts, width]`, from states `[rows, sequence, width]`, in f32 or wider; several ways of
/// pooling stand one after the other. A row may have fewer texts than others: what stands for those that it lacks means
/// nothing. Collective over the inner mesh.
pub fn pool(last: &States, texts: &[Vec<TextSpan>], ways: &[Pooling]) -> Result<Tensor> {
    let states = &last.states;
    let states = states.cast(ops::wide(states.dtype()))?;
    let [rows, length, _] = states.shape()[..] else {
        return Err(Error::Bug { what: format!("hidden states of shape {}", states.shape()) });
    };
    let columns = texts.iter().map(Vec::len).max().unwrap_or(0);
    for span in texts.iter().flatten() {
        let sound =
            span.tokens.start <= span.counted && span.counted < span.tokens.end && span.tokens.end <= length;
        if texts.len() != rows || !sound {
            return Err(Error::Run {
                what: format!("a text at {span:?} has no token that counts in rows of {length}"),
            });
        }
    }
    let placed = |values: &[f64], shape: &[usize]| -> Result<Tensor> {
        let plain = Tensor::from_slice(values, shape)?.cast(states.dtype())?.to(states.local().device())?;
        Ok(last.lanes.batch(&plain)?)
    };
    let mut found = Vec::new();
    for way in ways {
        let mut weights = vec![0.0; rows * columns * length];
        for (row, spans) in texts.iter().enumerate() {
            for (column, span) in spans.iter().enumerate() {
                let first = (row * columns + column) * length;
                way.weights(span).into_iter().for_each(|(at, weight)| weights[first + at] = weight);
            }
        }
        found.push(match way {
            Pooling::Max => {
                let mut largest = Vec::new();
                for column in 0..columns {
                    let of = |row: usize| &weights[(row * columns + column) * length..][..length];
                    // Minus infinity would stay where a row has no such text.
                    let hidden = |weight: &f64| if *weight > 0.0 { 0.0 } else { f64::from(f32::MIN) / 2.0 };
                    let hidden: Vec<f64> = (0..rows).flat_map(of).map(hidden).collect();
                    let seen = states.add(&placed(&hidden, &[rows, length, 1])?)?;
                    largest.push(seen.max(1, Keep::Yes)?.0);
                }
                ops::concat(&largest.iter().collect::<Vec<_>>(), 1)?
            }
            _ => placed(&weights, &[rows, columns, length])?.matmul(&states)?,
        });
    }
    Ok(match &found[..] {
        [one] => one.clone(),
        all => ops::concat(&all.iter().collect::<Vec<_>>(), 2)?,
    })
}
