//! Each node of ONNX as ops of Paddle.

use super::import::Reader;
use super::read::Read;
use super::tensor::dtype;
use crate::builder::attribute;
use crate::error::Result;
use crate::node::Node;
use crate::ops::signature;
use crate::program::ValueId;
use planaria_array::DType;

/// Nodes that are one op of the same operands.
const SAME: [(&str, &str); 43] = [
    ("Add", "add"),
    ("Sub", "subtract"),
    ("Mul", "multiply"),
    ("Pow", "elementwise_pow"),
    ("Max", "maximum"),
    ("Min", "minimum"),
    ("Equal", "equal"),
    ("Less", "less_than"),
    ("LessOrEqual", "less_equal"),
    ("Greater", "greater_than"),
    ("GreaterOrEqual", "greater_equal"),
    ("And", "logical_and"),
    ("Or", "logical_or"),
    ("Xor", "logical_xor"),
    ("Not", "logical_not"),
    ("Abs", "abs"),
    ("Exp", "exp"),
    ("Log", "log"),
    ("Sqrt", "sqrt"),
    ("Reciprocal", "reciprocal"),
    ("Sin", "sin"),
    ("Cos", "cos"),
    ("Tan", "tan"),
    ("Asin", "asin"),
    ("Acos", "acos"),
    ("Atan", "atan"),
    ("Sinh", "sinh"),
    ("Cosh", "cosh"),
    ("Tanh", "tanh"),
    ("Asinh", "asinh"),
    ("Acosh", "acosh"),
    ("Atanh", "atanh"),
    ("Erf", "erf"),
    ("Sigmoid", "sigmoid"),
    ("Relu", "relu"),
    ("Floor", "floor"),
    ("Ceil", "ceil"),
    ("Sign", "sign"),
    ("IsNaN", "isnan"),
    ("Identity", "assign"),
    ("Round", "round"),
    ("Tile", "tile"),
    ("Reshape", "reshape"),
];

impl Reader {
    /// The results of a node.
    pub(super) fn made(&mut self, read: &Read<'_>) -> Result<Vec<ValueId>> {
        if let Some((_, name)) = SAME.iter().find(|row| row.0 == read.op) {
            if read.int("allowzero").unwrap_or(0) != 0 {
                return read.refuse("extents of 0 that are meant as such are not read");
            }
            let operands = self.operands(read)?;
            let wanted = signature(name).map_or(operands.len(), |known| known.operands.len());
            if operands.len() != wanted {
                return read.refuse(format!("{} inputs, expected {wanted} here", operands.len()));
            }
            return Ok(vec![self.emitter.emit(&format!("1.{name}"), &operands, Vec::new())?]);
        }
        if let Some(made) = self.moved(read)? {
            return Ok(made);
        }
        if let Some(one) = self.created(read)? {
            return Ok(vec![one]);
        }
        match self.computed(read)? {
            Some(one) => Ok(vec![one]),
            None => read.refuse("this operator is not supported"),
        }
    }

    /// Nodes that move elements.
    fn moved(&mut self, read: &Read<'_>) -> Result<Option<Vec<ValueId>>> {
        let one = match read.op {
            "Transpose" => {
                let x = self.operand(read, 0)?;
                let ndim = self.emitter.shape(x)?.len() as i64;
                let perm = read.ints("perm").unwrap_or((0..ndim).rev().collect());
                let perm = Node::array(perm.into_iter().map(|dim| Node::i32(dim as i32)));
                self.emitter.emit("1.transpose", &[x], vec![attribute("perm", perm)])?
            }
            "Expand" => {
                let x = self.operand(read, 0)?;
                let Some(wanted) = self.known(read, 1)? else { return read.refuse("a shape is missing") };
                let wanted: Vec<usize> = wanted.into_iter().map(|n| n.max(0) as usize).collect();
                let shape = both_ways(&self.emitter.shape(x)?, &wanted);
                self.emitter.expand(x, &shape)?
            }
            "Unsqueeze" | "Squeeze" => self.squeezed(read)?,
            "Cast" => {
                let x = self.operand(read, 0)?;
                self.emitter.cast(x, dtype(&read.place(), read.int("to").unwrap_or(0) as i32)?)?
            }
            "Gather" => self.gathered(read)?,
            "GatherElements" => {
                let operands = self.operands(read)?;
                let axis = self.axis(read, 0);
                self.emitter.emit("1.take_along_axis", &operands, vec![axis])?
            }
            "Concat" => {
                let parts = self.operands(read)?;
                let Some(&first) = parts.first() else { return read.refuse("it joins nothing") };
                let ndim = self.emitter.shape(first)?.len() as i64;
                let axis = read.int("axis").unwrap_or(0);
                self.emitter.concat(&parts, if axis < 0 { axis + ndim } else { axis }.max(0) as usize)?
            }
            "Slice" => self.cut(read)?,
            "Where" => {
                let operands = self.operands(read)?;
                let shapes = operands.iter().map(|id| self.emitter.shape(*id)).collect::<Result<Vec<_>>>()?;
                let shape = shapes.iter().fold(Vec::new(), |all, one| both_ways(&all, one));
                let parts = operands.iter().map(|id| self.emitter.expand(*id, &shape));
                let parts = parts.collect::<Result<Vec<_>>>()?;
                self.emitter.emit("1.where", &parts, Vec::new())?
            }
            "Split" => return self.parts(read).map(Some),
            "GatherND" if read.int("batch_dims").unwrap_or(0) == 0 => {
                let operands = self.operands(read)?;
                self.emitter.emit("1.gather_nd", &operands, Vec::new())?
            }
            "TopK" => return self.largest(read).map(Some),
            _ => return Ok(None),
        };
        Ok(Some(vec![one]))
    }

    /// Dims of one element that come or go; without a list, all of them go.
    fn squeezed(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let x = self.operand(read, 0)?;
        let axes = match read.input(1) {
            Some(_) => self.operand(read, 1)?,
            None => {
                let single = self.emitter.shape(x)?.into_iter().enumerate().filter(|(_, n)| *n == 1);
                self.emitter.ints(&single.map(|(dim, _)| dim as i64).collect::<Vec<_>>())?
            }
        };
        let name = if read.op == "Squeeze" { "1.squeeze" } else { "1.unsqueeze" };
        self.emitter.emit(name, &[x, axes], Vec::new())
    }

    /// Parts of given sizes, or as many as there are outputs, all equal but the last.
    fn parts(&mut self, read: &Read<'_>) -> Result<Vec<ValueId>> {
        let x = self.operand(read, 0)?;
        let shape = self.emitter.shape(x)?;
        let axis = read.int("axis").unwrap_or(0);
        let axis = if axis < 0 { axis + shape.len() as i64 } else { axis } as usize;
        let Some(&total) = shape.get(axis) else { return read.refuse(format!("it has no dim {axis}")) };
        let count = read.node.output.len().max(1);
        let each = total.div_ceil(count);
        let even = (0..count).map(|at| each.min(total.saturating_sub(at * each)) as i64).collect();
        let sizes = read.ints("split").or(self.known(read, 1)?).unwrap_or(even);
        let (mut parts, mut start) = (Vec::new(), 0);
        for size in sizes {
            let size = size.max(0) as usize;
            parts.push(self.emitter.part(x, axis, start, size)?);
            start += size;
        }
        match start == total && parts.len() == count {
            true => Ok(parts),
            false => read.refuse(format!("{count} parts of {start} in all are cut out of {total}")),
        }
    }

    fn largest(&mut self, read: &Read<'_>) -> Result<Vec<ValueId>> {
        let x = self.operand(read, 0)?;
        let k = self.known(read, 1)?.and_then(|k| k.first().copied()).unwrap_or(0);
        let k = self.emitter.number(k as f64, DType::I32)?;
        let flag = |name: &str| Node::bool(read.int(name).unwrap_or(1) != 0);
        let axis = self.axis(read, -1);
        let attrs = vec![axis, attribute("largest", flag("largest")), attribute("sorted", flag("sorted"))];
        self.emitter.emit_all("1.topk", &[x, k], attrs, 2)
    }

    /// Nodes that compute.
    fn computed(&mut self, read: &Read<'_>) -> Result<Option<ValueId>> {
        let one = match read.op {
            "Mod" => {
                if read.int("fmod").unwrap_or(0) != 0 {
                    return read.refuse("only remainders with the sign of the divisor are computed here");
                }
                let operands = self.operands(read)?;
                self.emitter.emit("1.remainder", &operands, Vec::new())?
            }
            "Div" => self.divided(read)?,
            "CumSum" => self.running(read)?,
            "MatMul" => {
                let (x, y) = (self.operand(read, 0)?, self.operand(read, 1)?);
                self.emitter.matmul(x, y, false)?
            }
            "Gelu" => {
                let x = self.operand(read, 0)?;
                let tanh = read.text("approximate") == Some("tanh");
                self.emitter.emit("1.gelu", &[x], vec![attribute("approximate", Node::bool(tanh))])?
            }
            "Neg" => {
                let x = self.operand(read, 0)?;
                self.emitter.scaled(x, -1.0)?
            }
            "Softmax" | "LogSoftmax" => {
                let (x, axis) = (self.operand(read, 0)?, self.axis(read, -1));
                let name = if read.op == "Softmax" { "1.softmax" } else { "1.log_softmax" };
                self.emitter.emit(name, &[x], vec![axis])?
            }
            "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" => self.reduced(read)?,
            "OneHot" => self.one_hot(read)?,
            "LayerNormalization" => {
                let x = self.operand(read, 0)?;
                let scale = self.operand(read, 1)?;
                let bias = if read.input(2).is_some() { self.operand(read, 2)? } else { ValueId::ABSENT };
                let ndim = self.emitter.shape(x)?.len() as i64;
                let axis = read.int("axis").unwrap_or(-1);
                let first = if axis < 0 { axis + ndim } else { axis };
                let attrs = vec![
                    attribute("epsilon", Node::f32(read.float("epsilon").unwrap_or(1e-5))),
                    attribute("begin_norm_axis", Node::i32(first as i32)),
                ];
                self.emitter.emit_all("1.layer_norm", &[x, scale, bias], attrs, 3)?[0]
            }
            _ => return Ok(None),
        };
        Ok(Some(one))
    }

    /// Quotients; those of whole numbers are rounded towards zero, by their sizes and then their signs.
    fn divided(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let (x, y) = (self.operand(read, 0)?, self.operand(read, 1)?);
        if !self.emitter.dtype(x)?.is_int() {
            return self.emitter.emit("1.divide", &[x, y], Vec::new());
        }
        let mut both = |name: &str| -> Result<[ValueId; 2]> {
            Ok([self.emitter.emit(name, &[x], Vec::new())?, self.emitter.emit(name, &[y], Vec::new())?])
        };
        let (sizes, signs) = (both("1.abs")?, both("1.sign")?);
        let size = self.emitter.emit("1.floor_divide", &sizes, Vec::new())?;
        let sign = self.emitter.multiply(signs[0], signs[1])?;
        self.emitter.multiply(size, sign)
    }

    /// Sums up to each place of a dim.
    fn running(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let x = self.operand(read, 0)?;
        let Some(along) = self.known(read, 1)?.and_then(|axis| axis.first().copied()) else {
            return read.refuse("its axis is missing");
        };
        let along = self.emitter.filled(&[1], along as f64, DType::I32)?;
        let flag = |name: &str| attribute(name, Node::bool(read.int(name).unwrap_or(0) != 0));
        let attrs = vec![attribute("flatten", Node::bool(false)), flag("exclusive"), flag("reverse")];
        self.emitter.emit("1.cumsum", &[x, along], attrs)
    }

    fn gathered(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let (x, index) = (self.operand(read, 0)?, self.operand(read, 1)?);
        let axis = read.int("axis").unwrap_or(0);
        let (ndim, at) = (self.emitter.shape(x)?.len(), self.emitter.shape(index)?.len());
        if axis == 0 && ndim == 2 {
            let attrs = vec![attribute("padding_idx", Node::i64(-1)), attribute("sparse", Node::bool(false))];
            return self.emitter.emit("1.embedding", &[index, x], attrs);
        }
        let attr = self.axis(read, 0);
        if at == 1 {
            return self.emitter.emit("1.index_select", &[x, index], vec![attr]);
        }
        // The dims of the index take the place of the dim that is gathered from.
        let axis = if axis < 0 { axis + ndim as i64 } else { axis } as usize;
        let (from, wanted) = (self.emitter.shape(x)?, self.emitter.shape(index)?);
        let (Some(before), Some(after)) = (from.get(..axis), from.get(axis + 1..)) else {
            return read.refuse(format!("it has no dim {axis}"));
        };
        let shape = [before, &wanted, after].concat();
        let flat = self.emitter.reshape(index, &[wanted.iter().product()])?;
        let picked = self.emitter.emit("1.index_select", &[x, flat], vec![attr])?;
        self.emitter.reshape(picked, &shape)
    }

    fn cut(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let x = self.operand(read, 0)?;
        let strided = self.known(read, 4)?.is_some_and(|steps| steps.iter().any(|step| *step != 1));
        let ndim = self.emitter.shape(x)?.len() as i64;
        let axes = self.known(read, 3)?.unwrap_or((0..ndim).collect());
        let axes: Vec<i64> = axes.into_iter().map(|axis| if axis < 0 { axis + ndim } else { axis }).collect();
        let array = |values: Vec<i64>| Node::array(values.into_iter().map(Node::i64));
        let (starts, ends) = (self.operand(read, 1)?, self.operand(read, 2)?);
        if strided {
            let steps = self.operand(read, 4)?;
            let axes = Node::array(axes.into_iter().map(|axis| Node::i32(axis as i32)));
            let attrs = vec![attribute("axes", axes)];
            return self.emitter.emit("1.strided_slice", &[x, starts, ends, steps], attrs);
        }
        let attrs = vec![
            attribute("axes", array(axes.clone())),
            attribute("infer_flags", array(vec![1; axes.len()])),
            attribute("decrease_axis", array(Vec::new())),
        ];
        self.emitter.emit("1.slice", &[x, starts, ends], attrs)
    }

    fn reduced(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let x = self.operand(read, 0)?;
        let ndim = self.emitter.shape(x)?.len() as i64;
        // Axes were an attribute of most of these before set 18.
        let axes = read.ints("axes").or(self.known(read, 1)?).filter(|axes| !axes.is_empty());
        if axes.is_none() && read.int("noop_with_empty_axes").unwrap_or(0) != 0 {
            return self.emitter.emit("1.assign", &[x], Vec::new());
        }
        let axes = self.emitter.ints(&axes.unwrap_or((0..ndim).collect()))?;
        let keep = attribute("keepdim", Node::bool(read.int("keepdims").unwrap_or(1) != 0));
        let name = match read.op {
            "ReduceMean" => "1.mean",
            "ReduceMax" => "1.max",
            "ReduceMin" => "1.min",
            _ => {
                let same = Node::with("1.a_dtype", crate::node::Data::Text("Undefined(ALL_DTYPE)".into()));
                return self.emitter.emit("1.sum", &[x, axes], vec![attribute("dtype", same), keep]);
            }
        };
        self.emitter.emit(name, &[x, axes], vec![keep])
    }

    fn one_hot(&mut self, read: &Read<'_>) -> Result<ValueId> {
        let x = self.operand(read, 0)?;
        let classes = self.known(read, 1)?.and_then(|depth| depth.first().copied()).unwrap_or(0);
        let values = self.known(read, 2)?;
        if read.int("axis").unwrap_or(-1) != -1 || values != Some(vec![0, 1]) {
            return read.refuse("only ones in a new last dim are read");
        }
        let classes = self.emitter.number(classes as f64, DType::I32)?;
        self.emitter.emit("1.one_hot", &[x, classes], Vec::new())
    }
}

/// The shape that two shapes are broadcast to.
fn both_ways(a: &[usize], b: &[usize]) -> Vec<usize> {
    let ndim = a.len().max(b.len());
    let at = |shape: &[usize], dim: usize| (dim + shape.len()).checked_sub(ndim).map_or(1, |dim| shape[dim]);
    (0..ndim).map(|dim| if at(a, dim) == 1 { at(b, dim) } else { at(a, dim) }).collect()
}
