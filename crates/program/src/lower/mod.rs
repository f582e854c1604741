//! Our ops taken apart into Paddle's: a captured program becomes one that Paddle reads and runs. Every op that is made
//! remembers which op of ours, and which instance of it, it comes from.

mod attention;
mod emitter;
mod generalize;
mod layers;
mod shapes;
mod simple;
mod sizes;

pub(crate) use emitter::{Emitter, Made};
pub use generalize::generalize;

use crate::builder::attribute;
use crate::capture::Origin;
use crate::error::{Error, Result};
use crate::native::{COMPOSITE, DIALECT};
use crate::node::{Node, Type};
use crate::passes::mark;
use crate::program::{Op, Program, ValueId};
use crate::run::{ProgramState, infer};
use crate::types::{Element, tensor_type};
use crate::verify::check;
use planaria_array::DType;

/// What the sizes of a captured program are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extents {
    /// Those of every call.
    #[default]
    Fixed,
    /// An example: ops take sizes from their operands where they can, for [`generalize`](crate::generalize).
    Example,
}

/// Takes all ops of ours apart into Paddle's; others stay as they are. What was `NAME` in the state is `NAME` in the new
/// one, beside constants of the ops.
///
/// # Errors
/// A program that is not well formed; an op that Paddle has no form for, by name and with what it was captured from.
pub fn lower(program: &Program, state: &ProgramState, extents: Extents) -> Result<(Program, ProgramState)> {
    check(program)?;
    let mut lowering = Emitter { state: state.clone(), extents, ..Emitter::default() };
    for op in program.block().into_iter().flat_map(|block| &block.ops) {
        lowering.op(op)?;
    }
    let mut lowered = lowering.builder.finish();
    lowered.trainable = program.trainable;
    Ok((lowered, lowering.state))
}

/// One op of ours on its way to ops of Paddle.
struct Taken<'a> {
    op: &'a Op,
    /// Its operands in the new program.
    operands: Vec<ValueId>,
}

impl Emitter {
    fn op(&mut self, op: &Op) -> Result<()> {
        let found = |id: &ValueId| match self.map.get(id) {
            Some(new) => Ok(*new),
            None if id.is_absent() => Ok(ValueId::ABSENT),
            None => {
                let what = format!("{id} is a result that only our own form of its op has");
                Err(Error::Run { place: self.place(op), what })
            }
        };
        let operands = op.operands.iter().map(found).collect::<Result<Vec<_>>>()?;
        self.origin = Origin::within(op);
        let ids = match op.parts() {
            (DIALECT, _) => {
                let ids = self.taken(&Taken { op, operands: operands.clone() })?;
                self.remember(op, &operands, &ids);
                ids
            }
            _ => self.copied(op, &operands)?,
        };
        self.map.extend(op.results.iter().map(|value| value.id).zip(ids));
        Ok(())
    }

    /// Writes down what was taken apart on the ops that give its results.
    fn remember(&mut self, op: &Op, operands: &[ValueId], ids: &[ValueId]) {
        let instance = op.results.first().map_or(0, |value| value.id.0);
        let mut marked: Vec<ValueId> = Vec::new();
        for id in ids.iter().filter(|id| !operands.contains(id)) {
            if marked.contains(id) {
                continue;
            }
            let given = self.builder.given_with(*id);
            let results = given.iter().map(|given| ids.iter().position(|id| id == given));
            let mark = mark(op, instance, results, operands);
            self.builder.annotate(*id, attribute(COMPOSITE, mark));
            marked.extend(given);
        }
    }

    fn copied(&mut self, op: &Op, operands: &[ValueId]) -> Made {
        let types: Vec<Type> = op.results.iter().map(|value| value.ty.clone()).collect();
        if let Some(parameter) = &op.parameter {
            let trainable = parameter.state.is_some_and(|[_, _, trainable]| trainable);
            let Some(ty) = types.first() else { return Ok(Vec::new()) };
            let id = self.builder.parameter(&parameter.name, ty.clone(), trainable);
            self.know(id, ty);
            return Ok(vec![id]);
        }
        let small = op.operands.is_empty() && !op.is("pd_op", "data");
        let data = if small { infer(op, Vec::new()).ok() } else { None };
        let ids = self.builder.copy(op, operands);
        for (at, (id, ty)) in ids.iter().zip(&types).enumerate() {
            match data.as_ref().and_then(|data| data.get(at)) {
                Some(datum) => drop(self.data.insert(*id, datum.clone())),
                None => self.know(*id, ty),
            }
        }
        Ok(ids)
    }

    fn taken(&mut self, taken: &Taken<'_>) -> Made {
        let families = [Emitter::shape_op, Emitter::layer, Emitter::attention, Emitter::simple];
        for family in families {
            if let Some(made) = family(self, taken)? {
                return Ok(made);
            }
        }
        self.refuse(taken.op, "this op cannot be written for Paddle or ONNX")
    }
}

/// Attributes of an op of ours, as they must be.
impl Taken<'_> {
    fn name(&self) -> &str {
        self.op.parts().1
    }

    fn truth(&self, name: &str) -> bool {
        self.op.attr(name).and_then(Node::as_bool).unwrap_or(false)
    }

    fn size(&self, name: &str) -> usize {
        self.op.attr(name).and_then(Node::as_int).and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
    }

    fn real(&self, name: &str) -> Option<f64> {
        self.op.attr(name).and_then(Node::as_real)
    }

    fn sizes(&self, name: &str) -> Vec<usize> {
        let ints = self.op.attr(name).and_then(Node::as_ints).unwrap_or_default();
        ints.into_iter().filter_map(|n| usize::try_from(n).ok()).collect()
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        match Element::of_name(self.op.attr(name)?.as_text()?)? {
            Element::Plain(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// Extents of a result as the program declares it.
    fn result_shape(&self, at: usize) -> Vec<usize> {
        let ty = self.op.results.get(at).and_then(|value| tensor_type(&value.ty));
        ty.map_or(Vec::new(), |ty| ty.dims.iter().map(|d| (*d).max(0) as usize).collect())
    }
}
