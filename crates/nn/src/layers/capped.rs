//! Attention whose scores are capped, step by step: the fused kernel knows no such scores.

use super::Dropout;
use crate::parallel::Lanes;
use planaria_array::random::Key;
use planaria_array::{Array, DType, Device};
use planaria_tensor::ops::{Documents, wide};
use planaria_tensor::{Error, Result, Tensor};

/// How scores are made and which of them count.
pub(super) struct Capped<'a> {
    pub(super) scale: f64,
    pub(super) cap: f64,
    /// True where a query sees a key: `[queries, keys]`.
    pub(super) seen: Tensor,
    pub(super) documents: Option<&'a Documents>,
    pub(super) dropout: (Dropout, Option<Key>),
    pub(super) lanes: &'a Lanes,
}

/// Queries `[batch, heads, queries, dim]`, keys and values of as many heads or of a part of them.
pub(super) fn capped_attention([q, k, v]: [&Tensor; 3], how: &Capped<'_>) -> Result<Tensor> {
    let (k, v) = (for_all_heads(k, q.shape()[1])?, for_all_heads(v, q.shape()[1])?);
    let scores =
        q.matmul(&k.transpose(2, 3)?)?.mul_scalar(how.scale / how.cap)?.tanh()?.mul_scalar(how.cap)?;
    let mut hidden = how.seen.logical_not()?;
    if let Some(documents) = how.documents {
        let apart = Tensor::new(same_document(documents, how.seen.local().device())?.logical_not()?);
        hidden = how.lanes.batch(&apart)?.logical_or(&hidden)?;
    }
    let scores = scores.cast(wide(q.dtype()))?.masked_fill(&hidden, f64::NEG_INFINITY)?;
    let weights = scores.softmax(-1)?.cast(q.dtype())?;
    let (dropout, key) = how.dropout;
    dropout.forward(&weights, key)?.matmul(&v)
}

/// Each head of keys or values repeated for the heads of queries that it serves.
fn for_all_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    let [batch, own, length, dim] = x.shape()[..] else {
        let message = format!("expected [batch, heads, sequence, dim], got shape {}", x.shape());
        return Err(Error::Argument { op: "attention", message });
    };
    if own == heads {
        return Ok(x.clone());
    }
    let each = x.unsqueeze(2)?.broadcast_to(&[batch, own, heads / own, length, dim])?;
    each.reshape(&[batch, heads, length, dim])
}

/// True where query and key are in one document: `[rows, 1, length, length]`.
fn same_document(documents: &Documents, device: Device) -> Result<Array> {
    let (rows, length) = (documents.rows(), documents.length());
    let same = Array::full_on(&[rows, 1, length, length], false, DType::Bool, device)?;
    for row in 0..rows {
        for range in documents.of_row(row) {
            let one = same.narrow(0, row, 1)?.narrow(2, range.start, range.len())?;
            one.narrow(3, range.start, range.len())?.fill(true)?;
        }
    }
    Ok(same)
}
