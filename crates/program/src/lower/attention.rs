//! Attention: scores, what they may see, weights, values.

use super::{Emitter, Extents, Taken};
use crate::builder::{Builder, attribute};
use crate::error::Result;
use crate::node::Node;
use crate::program::ValueId;
use planaria_array::ops::where_;
use planaria_array::{Array, DType};

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
            let dtype = self.dtype(scores)?;
            let added = self.added(mask, dtype)?;
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
        if self.extents == Extents::Fixed {
            return self.constant(&format!("causal.{queries}x{keys}"), || {
                let seen = Array::full(&[queries, keys], true, DType::Bool)?.tril(0)?;
                let (zero, none) =
                    (Array::scalar(0.0, DType::F32)?, Array::scalar(f64::NEG_INFINITY, DType::F32)?);
                where_(&seen, &zero, &none)
            });
        }
        let (rows, columns) = (self.extent(q, 2, 0)?, self.extent(k, 2, 0)?);
        let (rows, columns) = (self.counted(rows)?, self.counted(columns)?);
        let (rows, columns) = (self.reshape(rows, &[queries, 1])?, self.reshape(columns, &[1, keys])?);
        let seen = self.emit("1.less_equal", &[columns, rows], Vec::new())?;
        self.added(seen, DType::F32)
    }

    /// 0, 1, 2 and so on, as many as a program says when it runs.
    fn counted(&mut self, count: ValueId) -> Result<ValueId> {
        let (zero, one) = (self.ints(&[0])?, self.ints(&[1])?);
        self.emit("1.arange", &[zero, count, one], Builder::range_attrs(DType::I64))
    }

    /// What is added to scores for a mask.
    fn added(&mut self, mask: ValueId, dtype: DType) -> Result<ValueId> {
        if self.dtype(mask)? != DType::Bool {
            return Ok(mask);
        }
        let shape = self.shape(mask)?;
        let mut filled = |value: f64| match self.extents {
            Extents::Fixed => self.filled(&shape, value, dtype),
            Extents::Example => {
                let one = self.filled(&vec![1; shape.len()], value, dtype)?;
                self.expand(one, &shape)
            }
        };
        let (zero, none) = (filled(0.0)?, filled(f64::NEG_INFINITY)?);
        self.emit("1.where", &[mask, zero, none], Vec::new())
    }
}
