//! Runs programs on arrays: every op by its own meaning, results checked against their declared types, memory freed at
//! the last use.

mod call;
mod conv;
mod create;
mod elementwise;
mod grad;
mod indexing;
mod loss;
mod native;
mod nn;
mod optim;
mod order;
mod plan;
mod pool;
mod reduce;
mod resize;
mod shape;
mod state;
mod tensors;
mod update;

pub(crate) use create::whole;
pub use state::ProgramState;
pub use tensors::{Ranks, run_tensors};

use crate::error::{Error, Result};
use crate::node::{Name, Node};
use crate::program::{Block, Op, Program, Region, ValueId};
use crate::types::{Element, is_absent, tensor_type};
use call::{Call, Fault};
use plan::Plan;
use planaria_array::Array;
use std::collections::HashMap;

/// A value while a program runs.
#[derive(Clone, Debug)]
pub enum Datum {
    /// A tensor.
    Array(Array),
    /// A tensor of complex numbers: the last dim has the real and the imaginary part.
    Complex(Array),
    /// Several values.
    List(Vec<Datum>),
    /// A result that nobody computes, or an operand that is left out.
    Absent,
    /// A value that a run without elements cannot know.
    Unknown,
}

impl Datum {
    /// The array, if it is one.
    pub fn array(&self) -> Option<&Array> {
        match self {
            Datum::Array(array) => Some(array),
            _ => None,
        }
    }

    fn is_meta(&self) -> bool {
        match self {
            Datum::Array(array) | Datum::Complex(array) => array.is_meta(),
            Datum::List(items) => items.iter().any(Datum::is_meta),
            Datum::Absent => false,
            Datum::Unknown => true,
        }
    }

    /// Whether it has more elements than a run without elements computes.
    fn is_large(&self) -> bool {
        match self {
            Datum::Array(array) | Datum::Complex(array) => array.numel() > create::REHEARSED,
            Datum::List(items) => items.iter().any(Datum::is_large),
            Datum::Absent | Datum::Unknown => false,
        }
    }

    /// The same without elements.
    pub(crate) fn to_meta(&self) -> Datum {
        match self {
            Datum::Array(array) => Datum::Array(array.to_meta()),
            Datum::Complex(array) => Datum::Complex(array.to_meta()),
            Datum::List(items) => Datum::List(items.iter().map(Datum::to_meta).collect()),
            other => other.clone(),
        }
    }

    fn is_unknown(&self) -> bool {
        match self {
            Datum::Unknown => true,
            Datum::List(items) => items.iter().any(Datum::is_unknown),
            _ => false,
        }
    }
}

/// Runs a program of the newest version: inputs in the order of [`Program::inputs`], results in that of
/// [`Program::outputs`]. What ops overwrite in place is found in the state afterwards.
///
/// # Errors
/// Inputs or state of other types than declared, ops that are not known, and what arrays refuse.
pub fn run(program: &Program, state: &mut ProgramState, inputs: &[Datum]) -> Result<Vec<(Name, Datum)>> {
    Machine::new(program, Mode::Compute)?.run(state, inputs)
}

/// Runs a program without elements, which finds wrong types; unknown extents are `size`.
pub(crate) fn rehearse(program: &Program, size: i64) -> Result<()> {
    let mut machine = Machine::new(program, Mode::Rehearse { size })?;
    machine.run(&mut ProgramState::default(), &[]).map(|_| ())
}

/// The results of one op of known operands.
pub(crate) fn evaluate(op: &Op, args: Vec<Datum>) -> Result<Vec<Datum>> {
    let call = Call { op, exact: args.clone(), args, rehearsed: false };
    call::dispatch(&call).map_err(|fault| fault.at(op))
}

/// The kinds of an op's results, and elements of small constants; operands are those of a run without elements.
pub(crate) fn infer(op: &Op, exact: Vec<Datum>) -> Result<Vec<Datum>> {
    let dry = exact.iter().any(Datum::is_meta);
    let args = if dry { exact.iter().map(Datum::to_meta).collect() } else { exact.clone() };
    call::dispatch(&Call { op, args, exact, rehearsed: true }).map_err(|fault| fault.at(op))
}

/// What a run is for.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Compute,
    Rehearse { size: i64 },
}

struct Machine<'p> {
    program: &'p Program,
    plan: Plan,
    mode: Mode,
    values: HashMap<ValueId, Datum>,
}

impl<'p> Machine<'p> {
    fn new(program: &'p Program, mode: Mode) -> Result<Machine<'p>> {
        Ok(Machine { program, plan: Plan::new(program)?, mode, values: HashMap::new() })
    }

    fn run(&mut self, state: &mut ProgramState, inputs: &[Datum]) -> Result<Vec<(Name, Datum)>> {
        let program = self.program;
        let Some(block) = program.block() else { return Ok(Vec::new()) };
        match self.mode {
            Mode::Compute => self.feed(state, inputs)?,
            Mode::Rehearse { size } => self.stand_in(block, size)?,
        }
        self.block(block)?;
        let outputs = program.outputs().into_iter();
        let outputs = outputs.map(|(name, id)| (name, self.get(id))).collect();
        if self.mode == Mode::Compute {
            for held in program.held() {
                state.insert(held.name.clone(), self.get(held.value.id));
            }
        }
        Ok(outputs)
    }

    fn feed(&mut self, state: &ProgramState, inputs: &[Datum]) -> Result<()> {
        let wanted = self.program.inputs();
        if wanted.len() != inputs.len() {
            let names: Vec<&str> = wanted.iter().map(|input| &*input.name).collect();
            let (want, given) = (wanted.len(), inputs.len());
            let what = format!("the program takes {want} inputs ({}), {given} are given", names.join(", "));
            return Err(Error::State { what });
        }
        for (input, given) in wanted.iter().zip(inputs) {
            if let Some(what) = mismatch(&input.value.ty, given) {
                return Err(Error::State { what: format!("input {}: {what}", input.name) });
            }
            self.set(input.value.id, given.clone());
        }
        for held in self.program.held() {
            let what = format!("parameter {} is not given", held.name);
            let datum = state.get(&held.name).ok_or(Error::State { what })?;
            if let Some(what) = mismatch(&held.value.ty, datum) {
                return Err(Error::State { what: format!("parameter {}: {what}", held.name) });
            }
            self.set(held.value.id, datum.clone());
        }
        Ok(())
    }

    /// Arrays without elements for all that a run is given.
    fn stand_in(&mut self, block: &Block, size: i64) -> Result<()> {
        for op in block.ops.iter().filter(|op| op.parameter.is_some() || op.is("pd_op", "data")) {
            let Some(result) = op.results.first() else { continue };
            let datum = stand_in(&result.ty, size).map_err(|fault| fault.at(op))?;
            self.set(result.id, datum);
        }
        Ok(())
    }

    fn get(&self, id: ValueId) -> Datum {
        self.values.get(&self.plan.root(id)).cloned().unwrap_or(Datum::Absent)
    }

    fn set(&mut self, id: ValueId, datum: Datum) {
        self.values.insert(self.plan.root(id), datum);
    }

    /// Runs a block and answers what its `yield` passes on.
    fn block(&mut self, block: &'p Block) -> Result<Vec<Datum>> {
        for op in &block.ops {
            if op.is("cf", "yield") {
                return Ok(op.operands.iter().map(|id| self.get(*id)).collect());
            }
            let results = self.op(op)?;
            self.keep(op, results)?;
            for id in self.plan.last_uses(op) {
                self.values.remove(&id);
            }
        }
        Ok(Vec::new())
    }

    fn keep(&mut self, op: &Op, results: Option<Vec<Datum>>) -> Result<()> {
        let Some(results) = results else { return Ok(()) };
        if results.len() != op.results.len() {
            let what = format!("{} results were computed, {} are declared", results.len(), op.results.len());
            return Err(Error::Run { place: op.place(), what });
        }
        for (at, (value, datum)) in op.results.iter().zip(results).enumerate() {
            if let Some(what) = mismatch(&value.ty, &datum) {
                return Err(Error::Run { place: op.place(), what: format!("result {at}: {what}") });
            }
            if self.plan.is_used(value.id) {
                self.set(value.id, datum);
            }
        }
        Ok(())
    }

    /// The results of an op; none if they are there already.
    fn op(&mut self, op: &'p Op) -> Result<Option<Vec<Datum>>> {
        match op.parts() {
            ("builtin", "parameter") => Ok(None),
            ("pd_op", "data") => Ok(None),
            ("pd_op", "fetch") => Ok(Some(vec![self.get(op.operands[0])])),
            ("pd_op", "if") => self.branch(op).map(Some),
            ("pd_op", "while") => self.repeat(op).map(Some),
            ("pd_op", "pylayer") => self.layer(op).map(Some),
            _ => self.compute(op).map(Some),
        }
    }

    fn compute(&mut self, op: &Op) -> Result<Vec<Datum>> {
        let mut args: Vec<Datum> = op.operands.iter().map(|id| self.get(*id)).collect();
        if args.iter().any(Datum::is_unknown) {
            return Ok(vec![Datum::Unknown; op.results.len()]);
        }
        let rehearsed = self.mode != Mode::Compute;
        let exact = args.clone();
        let mut dry = args.iter().any(Datum::is_meta);
        if rehearsed && !dry {
            // Elements are made only where there are few of them.
            let args = args.iter().map(Datum::to_meta).collect();
            let shapes = call::dispatch(&Call { op, args, exact: exact.clone(), rehearsed });
            dry = shapes.is_ok_and(|results| results.iter().any(Datum::is_large));
        }
        if dry {
            args = args.iter().map(Datum::to_meta).collect();
        }
        match call::dispatch(&Call { op, args, exact, rehearsed }) {
            Ok(results) => Ok(results),
            Err(Fault::Unknown) if rehearsed => Ok(vec![Datum::Unknown; op.results.len()]),
            // An op that arrays cannot rehearse is not a fault of the program.
            Err(Fault::Array(error)) if dry && needs_elements(&error) => {
                Ok(vec![Datum::Unknown; op.results.len()])
            }
            Err(fault) => Err(fault.at(op)),
        }
    }

    /// Whether a condition holds; none if a run without elements cannot know.
    fn truth(&self, op: &Op, id: ValueId) -> Result<Option<bool>> {
        match self.get(id) {
            Datum::Array(array) if array.numel() == 1 && !array.is_meta() => {
                let value = array.reshape(&[]).and_then(|array| array.item());
                value.map(|value| Some(value.as_bool())).map_err(|error| Fault::from(error).at(op))
            }
            Datum::Array(_) | Datum::Unknown if self.mode != Mode::Compute => Ok(None),
            other => {
                let what = format!("the condition must be one truth value, it is {}", describe(&other));
                Err(Error::Run { place: op.place(), what })
            }
        }
    }

    fn region(&mut self, op: &Op, region: &'p Region, args: Vec<Datum>) -> Result<Vec<Datum>> {
        let Some(block) = region.blocks.first() else { return Ok(Vec::new()) };
        if block.args.len() != args.len() {
            let what = format!("its block takes {} values, {} are given", block.args.len(), args.len());
            return Err(Error::Run { place: op.place(), what });
        }
        for (arg, datum) in block.args.iter().zip(args) {
            self.set(arg.id, datum);
        }
        self.block(block)
    }

    fn branch(&mut self, op: &'p Op) -> Result<Vec<Datum>> {
        let [yes, no] = op.regions.as_slice() else {
            return Err(Error::Run { place: op.place(), what: "an `if` has two regions".to_string() });
        };
        match self.truth(op, op.operands[0])? {
            Some(true) => self.region(op, yes, Vec::new()),
            Some(false) => self.region(op, no, Vec::new()),
            None => {
                // Both are rehearsed; which one gives the result is not known.
                self.region(op, yes, Vec::new())?;
                self.region(op, no, Vec::new())?;
                Ok(vec![Datum::Unknown; op.results.len()])
            }
        }
    }

    /// What a layer of the user's own computes forward; the way back is not in a program.
    fn layer(&mut self, op: &'p Op) -> Result<Vec<Datum>> {
        let [body] = op.regions.as_slice() else {
            return Err(Error::Run { place: op.place(), what: "a `pylayer` has one region".to_string() });
        };
        let takes = body.blocks.first().is_some_and(|block| !block.args.is_empty());
        let given = op.operands.iter().filter(|_| takes).map(|id| self.get(*id)).collect();
        self.region(op, body, given)
    }

    fn repeat(&mut self, op: &'p Op) -> Result<Vec<Datum>> {
        let [body] = op.regions.as_slice() else {
            return Err(Error::Run { place: op.place(), what: "a `while` has one region".to_string() });
        };
        let mut carried: Vec<Datum> = op.operands[1..].iter().map(|id| self.get(*id)).collect();
        let mut go = self.truth(op, op.operands[0])?;
        if self.mode != Mode::Compute {
            self.region(op, body, carried.iter().map(Datum::to_meta).collect())?;
            return Ok(vec![Datum::Unknown; op.results.len()]);
        }
        while go == Some(true) {
            let mut next = self.region(op, body, carried)?;
            if next.is_empty() {
                return Err(Error::Run { place: op.place(), what: "its block yields nothing".to_string() });
            }
            let condition = next.remove(0);
            carried = next;
            self.values.insert(ValueId::ABSENT, condition);
            go = self.truth(op, ValueId::ABSENT)?;
        }
        self.values.remove(&ValueId::ABSENT);
        Ok(carried)
    }
}

/// Whether an op failed for want of elements alone.
fn needs_elements(error: &planaria_array::Error) -> bool {
    use planaria_array::Error as E;
    matches!(error, E::Device { .. } | E::NotOnDevice { .. } | E::MixedDevices { .. })
}

/// What a value is, for messages.
fn describe(datum: &Datum) -> String {
    match datum {
        Datum::Array(array) => format!("{}{}", array.dtype(), array.shape()),
        Datum::Complex(array) => format!("complex {}{}", array.dtype(), array.shape()),
        Datum::List(items) => format!("a list of {}", items.len()),
        Datum::Absent => "absent".to_string(),
        Datum::Unknown => "not known".to_string(),
    }
}

/// How a value differs from its declared type.
fn mismatch(ty: &Node, datum: &Datum) -> Option<String> {
    if is_absent(ty) {
        return None;
    }
    let declared = tensor_type(ty)?;
    let (element, dims): (Element, &[usize]) = match datum {
        Datum::Array(array) => (Element::Plain(array.dtype()), array.shape()),
        Datum::Complex(array) => {
            let element = if array.dtype().size() == 4 { Element::C64 } else { Element::C128 };
            (element, &array.shape()[..array.ndim().saturating_sub(1)])
        }
        Datum::List(_) => return Some(format!("it is {}, the program declares {declared}", describe(datum))),
        Datum::Absent | Datum::Unknown => return None,
    };
    let fits = element == declared.element
        && dims.len() == declared.dims.len()
        && dims.iter().zip(&declared.dims).all(|(found, want)| *want == -1 || *found as i64 == *want);
    (!fits).then(|| format!("it is {}, the program declares {declared}", describe(datum)))
}

/// An array without elements of a declared type.
fn stand_in(ty: &Node, size: i64) -> call::Answer<Datum> {
    let Some(declared) = tensor_type(ty) else { return Ok(Datum::Unknown) };
    let mut dims: Vec<usize> =
        declared.dims.iter().map(|d| if *d < 0 { size } else { *d } as usize).collect();
    Ok(match declared.element {
        Element::Plain(dtype) => Datum::Array(Array::meta(&dims, dtype)?),
        Element::C64 | Element::C128 => {
            dims.push(2);
            let wide = declared.element == Element::C128;
            let part = if wide { planaria_array::DType::F64 } else { planaria_array::DType::F32 };
            Datum::Complex(Array::meta(&dims, part)?)
        }
    })
}
