//! Nodes of ONNX that make tensors from sizes and numbers: shapes, ranges, filled ones, triangles.

use super::import::Reader;
use super::read::Read;
use crate::builder::{Builder, attribute};
use crate::error::Result;
use crate::node::Node;
use crate::program::ValueId;
use planaria_array::DType;

impl Reader {
    pub(super) fn created(&mut self, read: &Read<'_>) -> Result<Option<ValueId>> {
        Ok(Some(match read.op {
            "Shape" => self.shape(read)?,
            "Range" => {
                let bounds = self.operands(read)?;
                let Some(&first) = bounds.first() else { return read.refuse("it has no bounds") };
                let dtype = self.emitter.dtype(first)?;
                self.emitter.emit("1.arange", &bounds, Builder::range_attrs(dtype))?
            }
            "ConstantOfShape" => self.filled(read)?,
            "Trilu" => {
                let x = self.operand(read, 0)?;
                let diagonal = self.known(read, 1)?.and_then(|k| k.first().copied()).unwrap_or(0);
                let name = if read.int("upper").unwrap_or(1) != 0 { "1.triu" } else { "1.tril" };
                self.emitter.emit(name, &[x], vec![attribute("diagonal", Node::i32(diagonal as i32))])?
            }
            "IsInf" => {
                if read.int("detect_negative") == Some(0) || read.int("detect_positive") == Some(0) {
                    return read.refuse("only infinities of both signs at once are found here");
                }
                let x = self.operand(read, 0)?;
                self.emitter.emit("1.isinf", &[x], Vec::new())?
            }
            _ => return Ok(None),
        }))
    }

    /// All extents, or those from `start` to `end`.
    fn shape(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let x = self.operand(read, 0)?;
        let ndim = self.emitter.shape(x)?.len();
        let all = self.emitter.emit("1.shape64", &[x], Vec::new())?;
        let place = |at: i64| if at < 0 { at + ndim as i64 } else { at }.clamp(0, ndim as i64) as usize;
        let (start, end) = (place(read.int("start").unwrap_or(0)), read.int("end").map_or(ndim, place));
        match (start, end) {
            (0, end) if end == ndim => Ok(all),
            _ => self.emitter.part(all, 0, start, end.saturating_sub(start)),
        }
    }

    fn filled(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let shape = self.known(read, 0)?.unwrap_or_default();
        let value = read.tensor("value");
        let none = |_: &str, _: u64, _: u64| Err(std::io::ErrorKind::NotFound.into());
        let array = value.map(|tensor| super::tensor::array(tensor, &none)).transpose()?;
        let dtype = array.as_ref().map_or(DType::F32, |array| array.dtype());
        let value = array.and_then(|array| array.reshape(&[]).ok()?.item().ok());
        let shape: Vec<usize> = shape.into_iter().map(|n| n.max(0) as usize).collect();
        self.emitter.filled(&shape, value.map_or(0.0, |value| value.as_f64()), dtype)
    }
}
