//! Adds ops of Paddle to a program under construction, with kinds of results that follow from their operands.

use super::Extents;
use crate::builder::{Builder, attribute};
use crate::capture::Origin;
use crate::error::{Error, Result};
use crate::node::{Data, Node, Type};
use crate::program::{Attr, Op, ValueId};
use crate::run::{Datum, ProgramState, infer};
use crate::types::{Element, TensorType, tensor_type};
use planaria_array::{Array, DType};
use std::collections::HashMap;
use std::sync::Arc;

/// A program of Paddle's ops under construction.
#[derive(Default)]
pub(crate) struct Emitter {
    pub(crate) builder: Builder,
    pub(crate) state: ProgramState,
    /// What is known of the values that were made: kinds, and elements of small constants.
    pub(crate) data: HashMap<ValueId, Datum>,
    /// From values of the old program.
    pub(crate) map: HashMap<ValueId, ValueId>,
    pub(crate) origin: Origin,
    /// Constants by what they are.
    pub(crate) shared: HashMap<String, ValueId>,
    /// What the sizes are.
    pub(crate) extents: Extents,
}

pub(crate) type Made = Result<Vec<ValueId>>;

impl Emitter {
    /// The op and where it comes from, for messages.
    pub(crate) fn place(&self, op: &Op) -> String {
        let origin = Origin::of(op);
        if origin.0.is_empty() { op.place() } else { format!("{} of {origin}", op.place()) }
    }

    pub(crate) fn refuse<T>(&self, op: &Op, what: &str) -> Result<T> {
        Err(Error::Run { place: self.place(op), what: what.to_string() })
    }

    pub(crate) fn know(&mut self, id: ValueId, ty: &Type) {
        let dims =
            |ty: &TensorType| ty.dims.iter().map(|d| usize::try_from(*d).ok()).collect::<Option<Vec<_>>>();
        let known = tensor_type(ty).and_then(|ty| match ty.element {
            Element::Plain(dtype) => Array::meta(&dims(&ty)?, dtype).ok(),
            _ => None,
        });
        self.data.insert(id, known.map_or(Datum::Unknown, Datum::Array));
    }

    /// Adds an op of Paddle; its one result.
    pub(crate) fn emit(&mut self, name: &str, operands: &[ValueId], attrs: Vec<Attr>) -> Result<ValueId> {
        let made = self.emit_all(name, operands, attrs, 1)?;
        Ok(made[0])
    }

    pub(crate) fn emit_all(
        &mut self,
        name: &str,
        operands: &[ValueId],
        mut attrs: Vec<Attr>,
        count: usize,
    ) -> Made {
        attrs.extend(self.origin.attr());
        let known = |id: &ValueId| self.data.get(id).cloned().unwrap_or(Datum::Absent);
        let mut op = Builder::bare(name, operands, attrs);
        let data = infer(&op, operands.iter().map(known).collect())?;
        let types = data.iter().map(|datum| type_of(&op, datum)).collect::<Result<Vec<Type>>>()?;
        if types.len() != count {
            return self.refuse(&op, "it gives another number of results than it should");
        }
        let ids = self.builder.op(name, operands, std::mem::take(&mut op.attrs), types);
        self.data.extend(ids.iter().copied().zip(data));
        Ok(ids)
    }

    pub(crate) fn ints(&mut self, values: &[i64]) -> Result<ValueId> {
        let attrs = Builder::ints_attrs(values);
        self.emit("1.full_int_array", &[], attrs)
    }

    pub(crate) fn number(&mut self, value: f64, dtype: DType) -> Result<ValueId> {
        self.filled(&[], value, dtype)
    }

    pub(crate) fn filled(&mut self, shape: &[usize], value: f64, dtype: DType) -> Result<ValueId> {
        let dims = shape.iter().map(|&n| n as i64).collect();
        let ty = TensorType { element: Element::Plain(dtype), dims };
        self.emit("1.full", &[], Builder::full_attrs(&ty, value))
    }

    /// A constant that the program holds under a name.
    pub(crate) fn named_constant(&mut self, name: &str, array: Array) -> Result<ValueId> {
        let datum = Datum::Array(array);
        let ty = type_of(&Builder::bare(name, &[], Vec::new()), &datum)?;
        let id = self.builder.parameter(name, ty, false);
        self.data.insert(id, datum.to_meta());
        self.state.insert(name.into(), datum);
        Ok(id)
    }

    /// The type of a value.
    pub(crate) fn type_of(&self, id: ValueId) -> Result<Type> {
        let datum = self.data.get(&id).cloned().unwrap_or(Datum::Unknown);
        type_of(&Builder::bare(&id.to_string(), &[], Vec::new()), &datum)
    }

    /// A constant that the program holds, made once for each `what`.
    pub(crate) fn constant(
        &mut self,
        what: &str,
        make: impl FnOnce() -> planaria_array::Result<Array>,
    ) -> Result<ValueId> {
        if let Some(id) = self.shared.get(what) {
            return Ok(*id);
        }
        let place = || what.to_string();
        let array = make().map_err(|source| Error::Array { place: place(), source })?;
        let id = self.named_constant(&format!("constant.{what}"), array)?;
        self.shared.insert(what.to_string(), id);
        Ok(id)
    }

    /// Extents of a value.
    pub(crate) fn shape(&self, id: ValueId) -> Result<Vec<usize>> {
        match self.data.get(&id) {
            Some(Datum::Array(array)) => Ok(array.shape().to_vec()),
            _ => Err(Error::Run { place: id.to_string(), what: "its extents are not known".to_string() }),
        }
    }

    pub(crate) fn dtype(&self, id: ValueId) -> Result<DType> {
        match self.data.get(&id) {
            Some(Datum::Array(array)) => Ok(array.dtype()),
            _ => Err(Error::Run { place: id.to_string(), what: "its elements are not known".to_string() }),
        }
    }

    // What several families are made of.

    pub(crate) fn add(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.emit("1.add", &[x, y], Vec::new())
    }

    pub(crate) fn multiply(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.emit("1.multiply", &[x, y], Vec::new())
    }

    pub(crate) fn matmul(&mut self, x: ValueId, y: ValueId, transpose_y: bool) -> Result<ValueId> {
        let attrs = vec![
            attribute("transpose_x", Node::bool(false)),
            attribute("transpose_y", Node::bool(transpose_y)),
        ];
        self.emit("1.matmul", &[x, y], attrs)
    }

    pub(crate) fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        let dims: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let shape = self.ints(&dims)?;
        self.emit("1.reshape", &[x, shape], Vec::new())
    }

    pub(crate) fn expand(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        if self.shape(x)? == shape {
            return Ok(x);
        }
        let dims: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
        let shape = self.ints(&dims)?;
        self.emit("1.expand", &[x, shape], Vec::new())
    }

    pub(crate) fn part(&mut self, x: ValueId, dim: usize, start: usize, len: usize) -> Result<ValueId> {
        self.slice(x, &[(dim, start, start + len)], &[])
    }

    /// Windows of some dims; those in `gone` disappear.
    pub(crate) fn slice(
        &mut self,
        x: ValueId,
        windows: &[(usize, usize, usize)],
        gone: &[usize],
    ) -> Result<ValueId> {
        let list = |pick: fn(&(usize, usize, usize)) -> usize| {
            windows.iter().map(|window| pick(window) as i64).collect::<Vec<i64>>()
        };
        let (axes, starts, ends) = (list(|w| w.0), list(|w| w.1), list(|w| w.2));
        let (starts, ends) = (self.ints(&starts)?, self.ints(&ends)?);
        let array = |values: &[i64]| Node::array(values.iter().map(|value| Node::i64(*value)));
        let gone: Vec<i64> = gone.iter().map(|&dim| dim as i64).collect();
        let attrs = vec![
            attribute("axes", array(&axes)),
            attribute("infer_flags", array(&vec![1; axes.len()])),
            attribute("decrease_axis", array(&gone)),
        ];
        self.emit("1.slice", &[x, starts, ends], attrs)
    }

    /// One extent of a value when the program runs, with `more` added: one integer in one dim.
    pub(crate) fn extent(&mut self, x: ValueId, dim: usize, more: usize) -> Result<ValueId> {
        let all = self.emit("1.shape64", &[x], Vec::new())?;
        let one = self.part(all, 0, dim, 1)?;
        if more == 0 {
            return Ok(one);
        }
        let more = self.ints(&[more as i64])?;
        self.add(one, more)
    }

    /// From `starts` to ends that are known when the program runs.
    pub(crate) fn window(
        &mut self,
        x: ValueId,
        dims: &[usize],
        starts: &[usize],
        ends: ValueId,
    ) -> Result<ValueId> {
        let signed = |values: &[usize]| values.iter().map(|&n| n as i64).collect::<Vec<i64>>();
        let array = |values: &[i64]| Node::array(values.iter().map(|value| Node::i64(*value)));
        let starts = self.ints(&signed(starts))?;
        let attrs = vec![
            attribute("axes", array(&signed(dims))),
            attribute("infer_flags", array(&vec![-1; dims.len()])),
            attribute("decrease_axis", array(&[])),
        ];
        self.emit("1.slice", &[x, starts, ends], attrs)
    }

    pub(crate) fn cast(&mut self, x: ValueId, dtype: DType) -> Result<ValueId> {
        if self.dtype(x)? == dtype {
            return Ok(x);
        }
        self.emit("1.cast", &[x], vec![crate::builder::dtype_attribute("dtype", dtype)])
    }

    pub(crate) fn concat(&mut self, parts: &[ValueId], dim: usize) -> Result<ValueId> {
        let list = self.emit("0.combine", parts, Vec::new())?;
        let axis = self.number(dim as f64, DType::I32)?;
        self.emit("1.concat", &[list, axis], Vec::new())
    }

    pub(crate) fn scaled(&mut self, x: ValueId, factor: f64) -> Result<ValueId> {
        let scale = self.number(factor, DType::F32)?;
        let attrs = vec![attribute("bias", Node::f32(0.0)), attribute("bias_after_scale", Node::bool(true))];
        self.emit("1.scale", &[x, scale], attrs)
    }
}

pub(crate) fn type_of(op: &Op, datum: &Datum) -> Result<Type> {
    let failed = || {
        let what = "its type cannot be written down".to_string();
        Error::Run { place: op.full_name(), what }
    };
    match datum {
        Datum::Array(array) => {
            let dims = array.shape().iter().map(|&n| n as i64).collect();
            let ty = TensorType { element: Element::Plain(array.dtype()), dims };
            ty.node().map(Arc::new).ok_or_else(failed)
        }
        Datum::List(items) => {
            let types = items.iter().map(|item| Ok(Data::Node(type_of(op, item)?))).collect::<Result<_>>()?;
            Ok(Arc::new(Node::with("0.t_vec", Data::List(types))))
        }
        _ => Err(failed()),
    }
}
