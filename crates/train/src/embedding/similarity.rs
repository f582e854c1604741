//! How alike two vectors are.

use crate::error::Result;
use planaria_array::ops::Keep;
use planaria_tensor::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The square of the least length that a vector is divided by.
const LEAST: f64 = 1e-24;

/// Similarity of two vectors; larger is more similar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Similarity {
    /// The product of vectors of length 1.
    #[default]
    Cos,
    /// The product.
    Dot,
    /// The negative distance.
    Euclidean,
    /// The negative sum of the distances of all elements.
    Manhattan,
}

/// Vectors of length 1 along the last dim; one of zeros stays.
pub fn normalized(x: &Tensor) -> Result<Tensor> {
    let length = x.sum_squares(&[-1], Keep::Yes)?.clip(Some(LEAST), None)?.sqrt()?;
    Ok(x.div(&length)?)
}

/// Every row of `a`, `[n, width]`, with every row of `b`, `[m, width]`.
pub fn similarities(a: &Tensor, b: &Tensor, kind: Similarity) -> Result<Tensor> {
    let apart = || a.unsqueeze(1)?.sub(&b.unsqueeze(0)?);
    Ok(match kind {
        Similarity::Cos => normalized(a)?.matmul(&normalized(b)?.transpose(0, 1)?)?,
        Similarity::Dot => a.matmul(&b.transpose(0, 1)?)?,
        Similarity::Euclidean => apart()?.sum_squares(&[-1], Keep::No)?.sqrt()?.neg()?,
        Similarity::Manhattan => apart()?.abs()?.sum(&[-1], Keep::No)?.neg()?,
    })
}
