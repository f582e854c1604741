//! Attention: scores, what they may see, weights, values.

use super::{Emitter, Extents, Taken};
use crate::builder::attribute;
use crate::error::Result;
use crate::node::Node;
use crate::program::ValueId;
use planaria_array::ops::where_;
use planaria_array::{Array, DType};

/// The longest sequence that a program of any length takes.
const LONGEST: usize = 1024;

impl Emitter {
    pub(super) fn attention(&mut self, taken: &Taken<'_>) -> Result<Option<Vec<ValueId>>> {
        if taken.name() != "flash_attention" {
            return Ok(None);
        }
        if taken.op.attr("p").is_some() || taken.op.attr("documents").is_some() {
            return self.refuse(taken.op, "attention with dropout or documents cannot be written for Paddle");
        }
        let (q, shape) = (taken.operands[0], self.shape(taken.operands[0])?);
        let [_, heads, queries, dim] = shape[..] else {
            return self
                .refuse(taken.op, "it attends to something that is not [batch, heads, sequence, dim]");
        };
        let (k, v) = (self.for_heads(taken.operands[1], heads)?, self.for_heads(taken.operands[2], heads)?);
        let keys = self.shape(k)?[2];
        let scale = taken.real("scale").unwrap_or((dim as f64).powf(-0.5));
        let scaled = self.scaled(q, scale)?;
        let mut scores = self.matmul(scaled, k, true)?;
        if taken.truth("causal") {
            let seen = self.causal(queries, keys, (q, k))?;
            scores = self.add(scores, seen)?;
        }
        if let Some(mask) = taken.operands.get(3).copied() {
            let added = self.added(mask, scores)?;
            scores = self.add(scores, added)?;
        }
        let weights = self.emit("1.softmax", &[scores], vec![attribute("axis", Node::i32(-1))])?;
        Ok(Some(vec![self.matmul(weights, v, false)?]))
    }

    /// Heads of keys or values repeated for the heads of queries that they serve.
    fn for_heads(&mut self, x: ValueId, heads: usize) -> Result<ValueId> {
        let shape = self.shape(x)?;
        let [batch, own, length, dim] = shape[..] else { return Ok(x) };
        if own == heads || own == 0 {
            return Ok(x);
        }
        let apart = self.reshape(x, &[batch, own, 1, length, dim])?;
        let all = self.expand(apart, &[batch, own, heads / own, length, dim])?;
        self.reshape(all, &[batch, heads, length, dim])
    }

    /// What is added to scores: nothing where a key is not behind its query.
    fn causal(&mut self, queries: usize, keys: usize, (q, k): (ValueId, ValueId)) -> Result<ValueId> {
        let table = |rows: usize, columns: usize| {
            let seen = Array::full(&[rows, columns], true, DType::Bool)?.tril(0)?;
            let (zero, none) =
                (Array::scalar(0.0, DType::F32)?, Array::scalar(f64::NEG_INFINITY, DType::F32)?);
            where_(&seen, &zero, &none)
        };
        if self.extents == Extents::Fixed {
            return self.constant(&format!("causal.{queries}x{keys}"), || table(queries, keys));
        }
        let largest = LONGEST.max(queries).max(keys);
        let all = self.constant(&format!("causal.{largest}"), || table(largest, largest))?;
        let (rows, columns) = (self.extent(q, 2, 0)?, self.extent(k, 2, 0)?);
        let ends = self.concat(&[rows, columns], 0)?;
        self.window(all, &[0, 1], &[0, 0], ends)
    }

    /// What is added to scores for a mask.
    fn added(&mut self, mask: ValueId, scores: ValueId) -> Result<ValueId> {
        if self.dtype(mask)? != DType::Bool {
            return Ok(mask);
        }
        let (shape, dtype) = (self.shape(mask)?, self.dtype(scores)?);
        let (zero, none) = (self.filled(&shape, 0.0, dtype)?, self.filled(&shape, f64::NEG_INFINITY, dtype)?);
        self.emit("1.where", &[mask, zero, none], Vec::new())
    }
}
