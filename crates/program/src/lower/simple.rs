//! Ops that Paddle has under the same name, and those that differ by an attribute alone.

use super::{Emitter, Taken};
use crate::builder::attribute;
use crate::error::Result;
use crate::node::{Data, Node};
use crate::ops::signature;
use crate::program::ValueId;
use planaria_array::DType;

impl Emitter {
    pub(super) fn simple(&mut self, taken: &Taken<'_>) -> Result<Option<Vec<ValueId>>> {
        let x = taken.operands.first().copied().unwrap_or(ValueId::ABSENT);
        let axis = || attribute("axis", Node::i32(taken.size("axis") as i32));
        let one = match taken.name() {
            "negative" => self.scaled(x, -1.0)?,
            "gelu" => self.emit("1.gelu", &[x], vec![attribute("approximate", Node::bool(false))])?,
            "gelu_tanh" => self.emit("1.gelu", &[x], vec![attribute("approximate", Node::bool(true))])?,
            "softmax" => self.emit("1.softmax", &[x], vec![axis()])?,
            "log_softmax" => self.emit("1.log_softmax", &[x], vec![axis()])?,
            "sum" | "mean" => self.sum(taken, x)?,
            "cumsum" => {
                let along = self.filled(&[1], taken.size("axis") as f64, DType::I32)?;
                let no = |name: &str| attribute(name, Node::bool(false));
                self.emit("1.cumsum", &[x, along], ["flatten", "exclusive", "reverse"].map(no).to_vec())?
            }
            name => {
                let plain = |name: &str| {
                    signature(name).is_some_and(|known| {
                        known.attrs.is_empty()
                            && known.results.len() == 1
                            && known.operands.len() == taken.operands.len()
                    })
                };
                if !plain(name) || taken.op.results.len() != 1 {
                    return Ok(None);
                }
                self.emit(&format!("1.{name}"), &taken.operands, Vec::new())?
            }
        };
        Ok(Some(vec![one]))
    }

    fn sum(&mut self, taken: &Taken<'_>, x: ValueId) -> Result<ValueId> {
        let mut dims: Vec<i64> = taken.sizes("axis").iter().map(|&dim| dim as i64).collect();
        if dims.is_empty() {
            dims = (0..self.shape(x)?.len() as i64).collect();
        }
        let dims = self.ints(&dims)?;
        let keep = attribute("keepdim", Node::bool(taken.truth("keepdim")));
        if taken.name() == "mean" {
            return self.emit("1.mean", &[x, dims], vec![keep]);
        }
        let same = Node::with("1.a_dtype", Data::Text("Undefined(ALL_DTYPE)".into()));
        self.emit("1.sum", &[x, dims], vec![attribute("dtype", same), keep])
    }
}
