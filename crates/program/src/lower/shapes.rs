//! Ops that move elements: reshapes, slices, joins, lookups.

use super::{Emitter, Taken};
use crate::builder::attribute;
use crate::error::Result;
use crate::node::Node;
use crate::program::ValueId;
use planaria_array::DType;

impl Emitter {
    pub(super) fn shape_op(&mut self, taken: &Taken<'_>) -> Result<Option<Vec<ValueId>>> {
        let x = taken.operands.first().copied().unwrap_or(ValueId::ABSENT);
        let one = match taken.name() {
            "reshape" => self.reshape(x, &taken.sizes("shape"))?,
            "expand" => self.expand(x, &taken.sizes("shape"))?,
            "transpose" => {
                let perm = Node::array(taken.sizes("perm").iter().map(|&dim| Node::i32(dim as i32)));
                self.emit("1.transpose", &[x], vec![attribute("perm", perm)])?
            }
            "concat" => self.concat(&taken.operands, taken.size("axis"))?,
            "split" => return self.split(taken, x).map(Some),
            "slice" => self.sliced(taken, x)?,
            "cast" => match taken.dtype("dtype") {
                Some(dtype) => self.cast(x, dtype)?,
                None => return self.refuse(taken.op, "its dtype is not known"),
            },
            "assign" => self.emit("1.assign", &[x], Vec::new())?,
            "embedding" => {
                let attrs =
                    vec![attribute("padding_idx", Node::i64(-1)), attribute("sparse", Node::bool(false))];
                self.emit("1.embedding", &[taken.operands[1], x], attrs)?
            }
            "gather" => {
                let axis = attribute("axis", Node::i32(taken.size("axis") as i32));
                self.emit("1.take_along_axis", &[x, taken.operands[1]], vec![axis])?
            }
            "index_select" => {
                let axis = attribute("axis", Node::i32(taken.size("axis") as i32));
                self.emit("1.index_select", &[x, taken.operands[1]], vec![axis])?
            }
            "topk" => return self.topk(taken, x).map(Some),
            "one_hot" => {
                let classes = self.number(taken.size("num_classes") as f64, DType::I32)?;
                let hot = self.emit("1.one_hot", &[x, classes], Vec::new())?;
                self.cast(hot, taken.dtype("dtype").unwrap_or(DType::F32))?
            }
            "where" => {
                let shape = taken.result_shape(0);
                let parts: Result<Vec<ValueId>> =
                    taken.operands.iter().map(|&operand| self.expand(operand, &shape)).collect();
                self.emit("1.where", &parts?, Vec::new())?
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![one]))
    }

    fn split(&mut self, taken: &Taken<'_>, x: ValueId) -> Result<Vec<ValueId>> {
        let (dim, mut start) = (taken.size("axis"), 0);
        let mut parts = Vec::new();
        for len in taken.sizes("sections") {
            parts.push(self.part(x, dim, start, len)?);
            start += len;
        }
        Ok(parts)
    }

    fn topk(&mut self, taken: &Taken<'_>, x: ValueId) -> Result<Vec<ValueId>> {
        let k = self.number(taken.size("k") as f64, DType::I32)?;
        let attrs = vec![
            attribute("axis", Node::i32(taken.size("axis") as i32)),
            attribute("largest", Node::bool(taken.truth("largest"))),
            attribute("sorted", Node::bool(true)),
        ];
        self.emit_all("1.topk", &[x, k], attrs, 2)
    }

    /// Positions and ranges of dims, then new dims of one element.
    fn sliced(&mut self, taken: &Taken<'_>, x: ValueId) -> Result<ValueId> {
        let entries = taken.op.attr("index").and_then(|index| index.items()).unwrap_or_default();
        let shape = self.shape(x)?;
        let (mut windows, mut gone, mut shown, mut dim) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for entry in entries {
            let size = |n: i64| usize::try_from(n).unwrap_or(0);
            match (entry.as_int(), entry.as_ints().as_deref()) {
                (Some(at), _) => {
                    windows.push((dim, size(at), size(at) + 1));
                    gone.push(dim);
                    dim += 1;
                }
                (None, Some([start, len, 1])) => {
                    if (*start, size(*len)) != (0, shape[dim]) {
                        windows.push((dim, size(*start), size(start + len)));
                    }
                    shown.push(size(*len));
                    dim += 1;
                }
                (None, Some([])) => shown.push(1),
                _ => return self.refuse(taken.op, "only slices of steps of 1 can be written for Paddle"),
            }
        }
        let cut = if windows.is_empty() { x } else { self.slice(x, &windows, &gone)? };
        if self.shape(cut)? == shown { Ok(cut) } else { self.reshape(cut, &shown) }
    }
}
