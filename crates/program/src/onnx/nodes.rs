//! Each op of Paddle as nodes of ONNX.

use super::export::Writer;
use super::proto::{Attribute, kind};
use super::tensor::{inline, number};
use crate::error::Result;
use crate::node::Node;
use crate::program::Op;
use crate::types::{Element, TensorType};
use planaria_array::{Array, DType};

/// Ops that are one node of the same operands.
const SAME: [(&str, &str); 47] = [
    ("add", "Add"),
    ("subtract", "Sub"),
    ("multiply", "Mul"),
    ("divide", "Div"),
    ("elementwise_pow", "Pow"),
    ("maximum", "Max"),
    ("minimum", "Min"),
    ("equal", "Equal"),
    ("less_than", "Less"),
    ("less_equal", "LessOrEqual"),
    ("greater_than", "Greater"),
    ("greater_equal", "GreaterOrEqual"),
    ("logical_and", "And"),
    ("logical_or", "Or"),
    ("logical_xor", "Xor"),
    ("logical_not", "Not"),
    ("where", "Where"),
    ("abs", "Abs"),
    ("exp", "Exp"),
    ("log", "Log"),
    ("sqrt", "Sqrt"),
    ("reciprocal", "Reciprocal"),
    ("sin", "Sin"),
    ("cos", "Cos"),
    ("tan", "Tan"),
    ("asin", "Asin"),
    ("acos", "Acos"),
    ("atan", "Atan"),
    ("sinh", "Sinh"),
    ("cosh", "Cosh"),
    ("tanh", "Tanh"),
    ("asinh", "Asinh"),
    ("acosh", "Acosh"),
    ("atanh", "Atanh"),
    ("erf", "Erf"),
    ("sigmoid", "Sigmoid"),
    ("relu", "Relu"),
    ("floor", "Floor"),
    ("ceil", "Ceil"),
    ("round", "Round"),
    ("sign", "Sign"),
    ("isnan", "IsNaN"),
    ("isinf", "IsInf"),
    ("reshape", "Reshape"),
    ("assign", "Identity"),
    ("shape64", "Shape"),
    ("tile", "Tile"),
];

pub(super) fn int(name: &str, value: i64) -> Attribute {
    Attribute { name: Some(name.into()), i: Some(value), kind: Some(kind::INT), ..Attribute::default() }
}

fn float(name: &str, value: f64) -> Attribute {
    Attribute {
        name: Some(name.into()),
        f: Some(value as f32),
        kind: Some(kind::FLOAT),
        ..Attribute::default()
    }
}

fn ints(name: &str, values: Vec<i64>) -> Attribute {
    Attribute { name: Some(name.into()), ints: values, kind: Some(kind::INTS), ..Attribute::default() }
}

fn text(name: &str, value: &str) -> Attribute {
    let s = Some(value.as_bytes().to_vec());
    Attribute { name: Some(name.into()), s, kind: Some(kind::STRING), ..Attribute::default() }
}

fn truth(op: &Op, name: &str) -> bool {
    op.attr(name).and_then(Node::as_bool).unwrap_or(false)
}

fn whole(op: &Op, name: &str) -> i64 {
    op.attr(name).and_then(Node::as_int).unwrap_or(0)
}

fn list(op: &Op, name: &str) -> Vec<i64> {
    op.attr(name).and_then(Node::as_ints).unwrap_or_default()
}

fn named_type(op: &Op, name: &str) -> Option<DType> {
    match Element::of_name(op.attr(name)?.as_text()?)? {
        Element::Plain(dtype) => Some(dtype),
        _ => None,
    }
}

impl Writer {
    pub(super) fn nodes(&mut self, op: &Op) -> Result<()> {
        let (dialect, name) = op.parts();
        if dialect != "pd_op" || op.results.is_empty() {
            return self.refuse(op, "it cannot be written as ONNX");
        }
        let outputs: Vec<String> =
            op.results.iter().map(|value| self.name(value.id)).collect::<Result<_>>()?;
        let out = &outputs[..1];
        if let Some((_, node)) = SAME.iter().find(|row| row.0 == name) {
            let inputs = self.names(&op.operands)?;
            self.node(node, &refs(&inputs), out, Vec::new());
            return Ok(());
        }
        if self.movement(op, name, out)?
            || self.lookup(op, name, &outputs)?
            || self.computation(op, name, out)?
        {
            return Ok(());
        }
        self.refuse(op, "it cannot be written as ONNX")
    }

    /// Ops that move elements.
    fn movement(&mut self, op: &Op, name: &str, out: &[String]) -> Result<bool> {
        let x = op.operands.first().map(|id| self.name(*id)).transpose()?.unwrap_or_default();
        match name {
            "transpose" => self.node("Transpose", &[&x], out, vec![ints("perm", list(op, "perm"))]),
            "expand" => {
                // An extent of -1 stays as it is, which 1 says there.
                let shape = match self.constant(op.operands[1]).map(|array| array.to_vec::<i64>()) {
                    Some(Ok(shape)) => {
                        let shape: Vec<i64> =
                            shape.into_iter().map(|n| if n == -1 { 1 } else { n }).collect();
                        self.ints(&shape)?
                    }
                    _ => self.name(op.operands[1])?,
                };
                self.node("Expand", &[&x, &shape], out, Vec::new());
            }
            "unsqueeze" | "squeeze" => {
                let axes = self.name(op.operands[1])?;
                self.node(
                    if name == "squeeze" { "Squeeze" } else { "Unsqueeze" },
                    &[&x, &axes],
                    out,
                    Vec::new(),
                );
            }
            "cast" => match named_type(op, "dtype") {
                Some(dtype) => self.node("Cast", &[&x], out, vec![int("to", number(dtype).into())]),
                None => return self.refuse(op, "its element type cannot be written as ONNX"),
            },
            "concat" => {
                let Some(parts) = self.lists.get(&op.operands[0]).cloned() else {
                    return self.refuse(op, "its parts are not a list of values");
                };
                let axis = self
                    .constant(op.operands[1])
                    .and_then(|axis| axis.cast(DType::I64).ok()?.to_vec::<i64>().ok());
                let Some(axis) = axis.and_then(|axis| axis.first().copied()) else {
                    return self.refuse(op, "its axis is not a constant");
                };
                let parts = self.names(&parts)?;
                self.node("Concat", &refs(&parts), out, vec![int("axis", axis)]);
            }
            "slice" => self.slice(op, &x, out)?,
            "full" => self.filled(op, out)?,
            "arange" => self.range(op, out)?,
            "tril" | "triu" => {
                let diagonal = self.held(&scalar(whole(op, "diagonal") as f64, DType::I64)?)?;
                self.node("Trilu", &[&x, &diagonal], out, vec![int("upper", (name == "triu").into())]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Ops that pick elements by index or order.
    fn lookup(&mut self, op: &Op, name: &str, outputs: &[String]) -> Result<bool> {
        let out = &outputs[..1];
        let x = op.operands.first().map(|id| self.name(*id)).transpose()?.unwrap_or_default();
        match name {
            "embedding" => {
                let table = self.name(op.operands[1])?;
                self.node("Gather", &[&table, &x], out, vec![int("axis", 0)]);
            }
            "take_along_axis" => {
                let index = self.name(op.operands[1])?;
                self.node("GatherElements", &[&x, &index], out, vec![int("axis", whole(op, "axis"))]);
            }
            "index_select" => {
                let index = self.name(op.operands[1])?;
                self.node("Gather", &[&x, &index], out, vec![int("axis", whole(op, "axis"))]);
            }
            "topk" => {
                let known = self.constant(op.operands[1]).and_then(|k| k.reshape(&[]).ok()?.item().ok());
                let k = match known {
                    Some(k) => self.ints(&[k.as_f64() as i64])?,
                    None => {
                        let (k, one) = (self.name(op.operands[1])?, self.ints(&[1])?);
                        let wide = self.between("Cast", &[&k], vec![int("to", 7)]);
                        self.between("Reshape", &[&wide, &one], Vec::new())
                    }
                };
                let attrs = vec![
                    int("axis", whole(op, "axis")),
                    int("largest", truth(op, "largest").into()),
                    int("sorted", truth(op, "sorted").into()),
                ];
                self.node("TopK", &[&x, &k], outputs, attrs);
            }
            "one_hot" => {
                let depth = self.name(op.operands[1])?;
                let values = self.held(&numbers(&[0.0, 1.0])?)?;
                self.node("OneHot", &[&x, &depth, &values], out, vec![int("axis", -1)]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Ops that compute.
    fn computation(&mut self, op: &Op, name: &str, out: &[String]) -> Result<bool> {
        let x = op.operands.first().map(|id| self.name(*id)).transpose()?.unwrap_or_default();
        match name {
            "matmul" => {
                let y = self.name(op.operands[1])?;
                let x = self.turned(op, 0, x, truth(op, "transpose_x"))?;
                let y = self.turned(op, 1, y, truth(op, "transpose_y"))?;
                self.node("MatMul", &[&x, &y], out, Vec::new());
            }
            "scale" => self.scale(op, &x, out)?,
            "rsqrt" => {
                let root = self.between("Sqrt", &[&x], Vec::new());
                self.node("Reciprocal", &[&root], out, Vec::new());
            }
            "square" => self.node("Mul", &[&x, &x], out, Vec::new()),
            "silu" => {
                let gate = self.between("Sigmoid", &[&x], Vec::new());
                self.node("Mul", &[&x, &gate], out, Vec::new());
            }
            "gelu" => {
                let how = if truth(op, "approximate") { "tanh" } else { "none" };
                self.node("Gelu", &[&x], out, vec![text("approximate", how)]);
            }
            "softmax" => self.node("Softmax", &[&x], out, vec![int("axis", whole(op, "axis"))]),
            "log_softmax" => self.node("LogSoftmax", &[&x], out, vec![int("axis", whole(op, "axis"))]),
            "sum" | "mean" | "max" | "min" => {
                let axes = self.name(op.operands[1])?;
                let node = match name {
                    "sum" => "ReduceSum",
                    "mean" => "ReduceMean",
                    "max" => "ReduceMax",
                    _ => "ReduceMin",
                };
                self.node(node, &[&x, &axes], out, vec![int("keepdims", truth(op, "keepdim").into())]);
            }
            "cumsum" => self.running(op, &x, out)?,
            "remainder" | "floor_divide" => self.divided(op, &x, out)?,
            "not_equal" => {
                let y = self.name(op.operands[1])?;
                let same = self.between("Equal", &[&x, &y], Vec::new());
                self.node("Not", &[&same], out, Vec::new());
            }
            "layer_norm" => {
                let inputs = self.names(&op.operands)?;
                let inputs = if inputs[2].is_empty() { &inputs[..2] } else { &inputs[..] };
                if inputs[1].is_empty() {
                    return self.refuse(op, "a layer norm of ONNX has a weight");
                }
                let eps = op.attr("epsilon").and_then(Node::as_real).unwrap_or(1e-5);
                let attrs = vec![int("axis", whole(op, "begin_norm_axis")), float("epsilon", eps)];
                self.node("LayerNormalization", &refs(inputs), out, attrs);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sums up to each place of a dim.
    fn running(&mut self, op: &Op, x: &str, out: &[String]) -> Result<()> {
        let along = self.constant(op.operands[1]).and_then(|axis| axis.reshape(&[]).ok()?.item().ok());
        let Some(along) = along.filter(|_| !truth(op, "flatten")) else {
            return self.refuse(op, "only sums along a dim that is a constant can be written as ONNX");
        };
        let along = self.held(&scalar(along.as_f64(), DType::I64)?)?;
        let attrs = ["exclusive", "reverse"].map(|name| int(name, truth(op, name).into()));
        self.node("CumSum", &[x, &along], out, attrs.to_vec());
        Ok(())
    }

    /// Remainders with the sign of the divisor, and quotients rounded down: what is left is taken away before, because ONNX
    /// rounds quotients of whole numbers towards zero.
    fn divided(&mut self, op: &Op, x: &str, out: &[String]) -> Result<()> {
        let whole = |ty: &TensorType| matches!(ty.element, Element::Plain(dtype) if dtype.is_int());
        if !self.ty(op.operands[0]).is_some_and(whole) {
            return self.refuse(op, "it can be written as ONNX for whole numbers alone");
        }
        let y = self.name(op.operands[1])?;
        if op.parts().1 == "remainder" {
            self.node("Mod", &[x, &y], out, Vec::new());
            return Ok(());
        }
        let rest = self.between("Mod", &[x, &y], Vec::new());
        let even = self.between("Sub", &[x, &rest], Vec::new());
        self.node("Div", &[&even, &y], out, Vec::new());
        Ok(())
    }

    /// An operand of a product with its last two dims the other way round.
    fn turned(&mut self, op: &Op, at: usize, x: String, turn: bool) -> Result<String> {
        if !turn {
            return Ok(x);
        }
        let Some(ndim) = self.ty(op.operands[at]).map(|ty| ty.dims.len() as i64).filter(|n| *n >= 2) else {
            return Ok(x);
        };
        let mut perm: Vec<i64> = (0..ndim).collect();
        perm.swap(ndim as usize - 1, ndim as usize - 2);
        Ok(self.between("Transpose", &[&x], vec![ints("perm", perm)]))
    }

    /// `x * scale + bias`, or `(x + bias) * scale`.
    fn scale(&mut self, op: &Op, x: &str, out: &[String]) -> Result<()> {
        let to = self.ty(op.operands[0]).and_then(|ty| match ty.element {
            Element::Plain(dtype) => Some(dtype),
            _ => None,
        });
        let Some(dtype) = to else { return self.refuse(op, "its elements are not known") };
        let factor = match self.constant(op.operands[1]).cloned() {
            Some(factor) => {
                let failed = |source| crate::Error::Array { place: op.place(), source };
                let factor = factor.cast(dtype).map_err(failed)?;
                self.held(&factor)?
            }
            None => {
                let factor = self.name(op.operands[1])?;
                self.between("Cast", &[&factor], vec![int("to", number(dtype).into())])
            }
        };
        let bias = op.attr("bias").and_then(Node::as_real).unwrap_or(0.0);
        if bias == 0.0 {
            self.node("Mul", &[x, &factor], out, Vec::new());
            return Ok(());
        }
        let bias = self.held(&scalar(bias, dtype)?)?;
        if truth(op, "bias_after_scale") {
            let product = self.between("Mul", &[x, &factor], Vec::new());
            self.node("Add", &[&product, &bias], out, Vec::new());
        } else {
            let sum = self.between("Add", &[x, &bias], Vec::new());
            self.node("Mul", &[&sum, &factor], out, Vec::new());
        }
        Ok(())
    }

    fn slice(&mut self, op: &Op, x: &str, out: &[String]) -> Result<()> {
        let (starts, ends) = (self.name(op.operands[1])?, self.name(op.operands[2])?);
        let axes = self.ints(&list(op, "axes"))?;
        let gone = list(op, "decrease_axis");
        if gone.is_empty() {
            self.node("Slice", &[x, &starts, &ends, &axes], out, Vec::new());
        } else {
            let cut = self.between("Slice", &[x, &starts, &ends, &axes], Vec::new());
            let gone = self.ints(&gone)?;
            self.node("Squeeze", &[&cut, &gone], out, Vec::new());
        }
        Ok(())
    }

    /// Bounds are single numbers of the type of the result there.
    fn range(&mut self, op: &Op, out: &[String]) -> Result<()> {
        let Some(dtype) = named_type(op, "dtype") else {
            return self.refuse(op, "its element type cannot be written as ONNX");
        };
        let single = self.ints(&[])?;
        let mut bounds = Vec::new();
        for id in &op.operands {
            let bound = self.name(*id)?;
            let bound = self.between("Reshape", &[&bound, &single], Vec::new());
            bounds.push(self.between("Cast", &[&bound], vec![int("to", number(dtype).into())]));
        }
        self.node("Range", &refs(&bounds), out, Vec::new());
        Ok(())
    }

    /// A large tensor of one value.
    fn filled(&mut self, op: &Op, out: &[String]) -> Result<()> {
        let value = op.attr("value").and_then(Node::as_real).unwrap_or(0.0);
        let Some(dtype) = named_type(op, "dtype") else {
            return self.refuse(op, "its element type cannot be written as ONNX");
        };
        let shape = self.ints(&list(op, "shape"))?;
        let one = scalar(value, dtype)?.reshape(&[1]);
        let one = one.map_err(|source| crate::Error::Array { place: op.place(), source })?;
        let t = Some(inline("", &one)?);
        let attr =
            Attribute { name: Some("value".into()), t, kind: Some(kind::TENSOR), ..Attribute::default() };
        self.node("ConstantOfShape", &[&shape], out, vec![attr]);
        Ok(())
    }
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

fn scalar(value: f64, dtype: DType) -> Result<Array> {
    let made = Array::scalar(crate::run::whole(value.into(), dtype), dtype);
    made.map_err(|source| crate::Error::Array { place: "constant".to_string(), source })
}

fn numbers(values: &[f32]) -> Result<Array> {
    let made = Array::from_slice(values, &[values.len()]);
    made.map_err(|source| crate::Error::Array { place: "constant".to_string(), source })
}
