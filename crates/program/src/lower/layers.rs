//! Layers: linear maps, norms, gates, rotations.

use super::{Emitter, Extents, Taken};
use crate::builder::attribute;
use crate::error::Result;
use crate::node::Node;
use crate::program::ValueId;

impl Emitter {
    pub(super) fn layer(&mut self, taken: &Taken<'_>) -> Result<Option<Vec<ValueId>>> {
        let one = match taken.name() {
            "linear" => {
                let product = self.matmul(taken.operands[0], taken.operands[1], true)?;
                match taken.operands.get(2) {
                    Some(bias) => self.add(product, *bias)?,
                    None => product,
                }
            }
            "matmul" => self.matmul(taken.operands[0], taken.operands[1], false)?,
            "rms_norm" => self.rms_norm(taken)?,
            "layer_norm" => self.layer_norm(taken)?,
            "swiglu" | "geglu" | "geglu_tanh" => self.gated(taken)?,
            "rotary" => self.rotary(taken)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![one]))
    }

    fn rms_norm(&mut self, taken: &Taken<'_>) -> Result<ValueId> {
        let x = taken.operands[0];
        let (ndim, normalized) = (self.shape(x)?.len(), taken.sizes("normalized_shape").len());
        let dims: Vec<i64> = (ndim - normalized.min(ndim)..ndim).map(|dim| dim as i64).collect();
        let squares = self.multiply(x, x)?;
        let dims = self.ints(&dims)?;
        let mean = self.emit("1.mean", &[squares, dims], vec![attribute("keepdim", Node::bool(true))])?;
        let dtype = self.dtype(x)?;
        let eps = self.number(taken.real("epsilon").unwrap_or(0.0), dtype)?;
        let sum = self.add(mean, eps)?;
        let factor = self.emit("1.rsqrt", &[sum], Vec::new())?;
        let normed = self.multiply(x, factor)?;
        match (taken.truth("weight"), taken.operands.get(1)) {
            (true, Some(weight)) => self.multiply(normed, *weight),
            _ => Ok(normed),
        }
    }

    fn layer_norm(&mut self, taken: &Taken<'_>) -> Result<ValueId> {
        let x = taken.operands[0];
        let first = self.shape(x)?.len() - taken.sizes("normalized_shape").len();
        let mut given = taken.operands[1..].iter().copied();
        let mut next =
            |wanted: bool| if wanted { given.next().unwrap_or(ValueId::ABSENT) } else { ValueId::ABSENT };
        let (weight, bias) = (next(taken.truth("weight")), next(taken.truth("bias")));
        let attrs = vec![
            attribute("epsilon", Node::f32(taken.real("epsilon").unwrap_or(0.0) as f32)),
            attribute("begin_norm_axis", Node::i32(first as i32)),
        ];
        Ok(self.emit_all("1.layer_norm", &[x, weight, bias], attrs, 3)?[0])
    }

    fn gated(&mut self, taken: &Taken<'_>) -> Result<ValueId> {
        let (gate, up) = match taken.operands[..] {
            [x] => {
                let shape = self.shape(x)?;
                let (dim, half) = (shape.len() - 1, shape[shape.len() - 1] / 2);
                (self.part(x, dim, 0, half)?, self.part(x, dim, half, half)?)
            }
            _ => (taken.operands[0], taken.operands[1]),
        };
        let tanh = || vec![attribute("approximate", Node::bool(taken.name() == "geglu_tanh"))];
        let act = match taken.name() {
            "swiglu" => self.emit("1.silu", &[gate], Vec::new())?,
            _ => self.emit("1.gelu", &[gate], tanh())?,
        };
        self.multiply(act, up)
    }

    /// Pairs of the two halves of the last dim, turned by the angles of their positions.
    fn rotary(&mut self, taken: &Taken<'_>) -> Result<ValueId> {
        if taken.truth("interleaved") || taken.truth("heads_first") {
            return self
                .refuse(taken.op, "only halves of heads after the sequence can be written for Paddle");
        }
        let x = taken.operands[0];
        let shape = self.shape(x)?;
        let [.., length, _, dim] = shape[..] else {
            return self.refuse(taken.op, "it rotates something that is not [batch, sequence, heads, dim]");
        };
        let (half, sequence) = (dim / 2, shape.len() - 3);
        let first = taken.size("first");
        let ids = taken.operands.get(3).copied();
        let mut angles = |table: ValueId| match ids {
            Some(ids) => {
                let attrs =
                    vec![attribute("padding_idx", Node::i64(-1)), attribute("sparse", Node::bool(false))];
                let rows = self.emit("1.embedding", &[ids, table], attrs)?;
                let rows_shape = self.shape(rows)?;
                let batch = if rows_shape.len() == 3 { rows_shape[0] } else { 1 };
                self.reshape(rows, &[batch, length, 1, half])
            }
            None => {
                let rows = match self.extents {
                    Extents::Fixed => self.part(table, 0, first, length)?,
                    Extents::Example => {
                        let end = self.extent(x, sequence, first)?;
                        self.window(table, &[0], &[first], end)?
                    }
                };
                self.reshape(rows, &[1, length, 1, half])
            }
        };
        let (cos, sin) = (angles(taken.operands[1])?, angles(taken.operands[2])?);
        let sin = if taken.truth("inverse") { self.scaled(sin, -1.0)? } else { sin };
        let dtype = self.dtype(x)?;
        let (cos, sin) = (self.cast(cos, dtype)?, self.cast(sin, dtype)?);
        let last = shape.len() - 1;
        let (a, b) = (self.part(x, last, 0, half)?, self.part(x, last, half, half)?);
        let (ac, bs) = (self.multiply(a, cos)?, self.multiply(b, sin)?);
        let (bc, as_) = (self.multiply(b, cos)?, self.multiply(a, sin)?);
        let turned = self.emit("1.subtract", &[ac, bs], Vec::new())?;
        let other = self.add(bc, as_)?;
        self.concat(&[turned, other], last)
    }
}
