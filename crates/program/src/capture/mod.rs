//! Programs captured from functions of tensors: the function runs once, and the ops that it ran are the program.

mod cache;
mod key;
mod values;

pub use cache::{Captures, Why};
pub use key::ProgramKey;

use crate::builder::{Builder, attribute};
use crate::error::{Error, Result};
use crate::native::{ORIGIN, attributes, op_name, tensor_op};
use crate::node::{Node, Type};
use crate::program::{Attr, Op, Program, ValueId};
use crate::run::{Datum, ProgramState};
use crate::types::{Element, TensorType};
use planaria_array::Array;
use planaria_tensor::steps::{self, Call, Step};
use planaria_tensor::{GradOptions, Tensor, grad};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use values::Values;

/// What a function is given, by name, and what else decides the program it becomes.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// What differs from call to call.
    pub inputs: Vec<(String, Tensor)>,
    /// What stays: parameters by structured name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub parameters: Vec<(String, Tensor)>,
    /// Flags and constants that the function reads, by name.
    pub settings: Vec<(String, String)>,
}

/// A program, and the values of what it holds.
#[derive(Clone, Debug)]
pub struct Captured {
    /// The program: ops of our own table.
    pub program: Program,
    /// Parameters by structured name, and constants of the function as `constant.N`.
    pub state: ProgramState,
    /// What it depends on.
    pub key: ProgramKey,
}

/// Which composite op, and which instance of it, an op comes from, innermost last: `planaria.rms_norm_grad#12`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin(pub Vec<(String, i64)>);

impl Origin {
    /// That of an op of a program; empty for one that comes from no other.
    pub fn of(op: &Op) -> Origin {
        let text = op.attr(ORIGIN).and_then(Node::as_text).unwrap_or_default();
        let part = |part: &str| {
            let (name, instance) = part.rsplit_once('#')?;
            Some((name.to_string(), instance.parse().ok()?))
        };
        Origin(text.split('/').filter_map(part).collect())
    }

    /// That of what `op` becomes when it is taken apart.
    pub fn within(op: &Op) -> Origin {
        let mut origin = Origin::of(op);
        origin.0.push((op.full_name(), op.results.first().map_or(0, |value| value.id.0)));
        origin
    }

    pub(crate) fn attr(&self) -> Option<Attr> {
        (!self.0.is_empty()).then(|| attribute(ORIGIN, Node::text(&self.to_string())))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |(name, instance): &(String, i64)| format!("{name}#{instance}");
        f.write_str(&self.0.iter().map(part).collect::<Vec<_>>().join("/"))
    }
}

/// Runs `work` on the inputs of `function` and gives the program of all ops that it ran, with what `work` answers as
/// outputs. Values that are neither inputs nor parameters are constants of the program.
///
/// # Errors
/// What `work` says; an op that cannot be written down; a value that was computed or written to without ops.
pub fn capture<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    function: &Function,
    work: impl FnOnce(&[Tensor]) -> Result<Vec<(String, Tensor)>, E>,
) -> Result<Captured> {
    let inputs: Vec<Tensor> = function.inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
    let key = ProgramKey::of(function);
    let versions = |list: &[(String, Tensor)]| list.iter().map(|(_, t)| t.local().version()).collect();
    let (held, given): (Vec<u64>, Vec<u64>) = (versions(&function.parameters), versions(&function.inputs));
    let (outputs, steps) = steps::list(|| work(&inputs));
    let outputs = outputs.map_err(|error| Error::Captured(error.into()))?;
    let mut recorder = Recorder::default();
    for ((name, tensor), version) in function.parameters.iter().zip(held) {
        recorder.parameter(name, tensor, version)?;
    }
    for ((name, tensor), version) in function.inputs.iter().zip(given) {
        recorder.input(name, tensor, version)?;
    }
    for (at, step) in steps.iter().enumerate() {
        recorder.step(at, step)?;
    }
    for (name, tensor) in &outputs {
        recorder.output(name, tensor)?;
    }
    Ok(Captured { program: recorder.builder.finish(), state: recorder.state, key })
}

/// Gradients of a single element with respect to tensors, as outputs `NAME.grad` beside it: what a joint program of
/// forward and backward answers. Those that nothing flows to are left out.
///
/// # Errors
/// A loss without history.
pub fn gradients(
    loss: &Tensor,
    of: &[(String, Tensor)],
    options: GradOptions,
) -> planaria_tensor::Result<Vec<(String, Tensor)>> {
    let tensors: Vec<&Tensor> = of.iter().map(|(_, tensor)| tensor).collect();
    let found = grad(&[loss], &[None], &tensors, options)?;
    let named = of.iter().zip(found).filter_map(|((name, _), grad)| Some((format!("{name}.grad"), grad?)));
    Ok(named.collect())
}

/// Turns what ran into a program.
#[derive(Default)]
struct Recorder {
    builder: Builder,
    state: ProgramState,
    values: Values,
    constants: usize,
    /// Numbers of ops in the history, with the first result of each and what it came from itself.
    numbers: HashMap<u64, (ValueId, Origin)>,
}

/// The type of a tensor's global value.
fn type_of(place: &str, tensor: &Tensor) -> Result<(TensorType, Type)> {
    let dims = tensor.shape().iter().map(|&n| n as i64).collect();
    let ty = TensorType { element: Element::Plain(tensor.dtype()), dims };
    match ty.node() {
        Some(node) => Ok((ty, Arc::new(node))),
        None => {
            let what = format!("programs have no tensors of {}; cast it", tensor.dtype());
            Err(Error::Capture { place: place.to_string(), what })
        }
    }
}

impl Recorder {
    fn parameter(&mut self, name: &str, tensor: &Tensor, version: u64) -> Result<()> {
        let (_, ty) = type_of(name, tensor)?;
        let id = self.builder.parameter(name, ty, tensor.has_history());
        layouts(std::slice::from_ref(tensor)).into_iter().for_each(|attr| self.builder.lay(true, attr));
        self.values.define(tensor, version, id);
        self.state.insert(name.into(), Datum::Array(tensor.local().clone()));
        Ok(())
    }

    fn input(&mut self, name: &str, tensor: &Tensor, version: u64) -> Result<()> {
        let (ty, _) = type_of(name, tensor)?;
        let id = self.builder.input(name, &ty).ok_or_else(|| untyped(name))?;
        layouts(std::slice::from_ref(tensor)).into_iter().for_each(|attr| self.builder.lay(false, attr));
        self.values.define(tensor, version, id);
        Ok(())
    }

    fn output(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let version = tensor.local().version();
        let id = self.find(&format!("output {name}"), tensor, version)?;
        let (_, ty) = type_of(name, tensor)?;
        self.builder.output(name, id, ty);
        Ok(())
    }

    fn step(&mut self, at: usize, step: &Step) -> Result<()> {
        match step {
            Step::Ran(call) => self.call(&format!("op {at} ({})", call.op.name()), call),
            Step::Wrote { target, value, version } => {
                let missing = || Error::Capture {
                    place: format!("write {at}"),
                    what: "what was written was made by no op".to_string(),
                };
                let id = self.values.latest(value).ok_or_else(missing)?;
                self.values.define(target, *version, id);
                Ok(())
            }
        }
    }

    fn call(&mut self, place: &str, call: &Call) -> Result<()> {
        let mut operands = Vec::with_capacity(call.inputs.len());
        let attrs = attributes(call.op.as_ref());
        for (at, (tensor, version)) in call.inputs.iter().zip(&call.versions).enumerate() {
            let operand = match at == 0 && fills_zeros(&attrs) {
                true => self.zeros(place, tensor)?,
                false => self.find(&format!("{place}, input {at}"), tensor, *version)?,
            };
            operands.push(operand);
        }
        if call.op.name() == "alias" {
            let made = call.outputs.iter().zip(&call.made);
            made.for_each(|(output, version)| self.values.define(output, *version, operands[0]));
            return Ok(());
        }
        let types = call.outputs.iter().map(|output| Ok(type_of(place, output)?.1));
        let types = types.collect::<Result<Vec<Type>>>()?;
        let mut attrs = out_of_place(attrs);
        attrs.extend(layouts(&call.outputs));
        let origin = self.origin(call);
        attrs.extend(origin.attr());
        let ids = self.builder.op(&op_name(call.op.name()), &operands, attrs, types);
        if !self.builder.last().is_some_and(|op| is_move(op) || tensor_op(op).is_some()) {
            let what = "this op holds more than attributes, so no program can say what it is".to_string();
            return Err(Error::Capture { place: place.to_string(), what });
        }
        if let (Some(number), Some(first)) = (call.number, ids.first()) {
            self.numbers.insert(number, (*first, origin));
        }
        let made = call.outputs.iter().zip(&call.made).zip(ids);
        made.for_each(|((output, version), id)| self.values.define(output, *version, id));
        Ok(())
    }

    /// The op whose gradient is computed, with the value it made, inside of what that op came from: the gradient of a gradient
    /// names both.
    fn origin(&self, call: &Call) -> Origin {
        let Some((number, name)) = call.gradient_of else { return Origin::default() };
        let known = self.numbers.get(&number);
        let mut chain = known.map_or(Vec::new(), |(_, origin)| origin.0.clone());
        let instance = known.map_or(0, |(id, _)| id.0);
        chain.push((op_name(&format!("{name}_grad")).to_string(), instance));
        Origin(chain)
    }

    fn zeros(&mut self, place: &str, tensor: &Tensor) -> Result<ValueId> {
        let (ty, _) = type_of(place, tensor)?;
        self.builder.full(&ty, 0.0).ok_or_else(|| untyped(place))
    }

    /// The value that a tensor stands for; a constant if no op made it.
    fn find(&mut self, place: &str, tensor: &Tensor, version: u64) -> Result<ValueId> {
        if let Some(id) = self.values.find(place, tensor, version)? {
            return Ok(id);
        }
        let array = tensor.local();
        if array.is_meta() {
            let what = "a value without elements was made by no op; capture with real inputs, or make the value by an op \
                        of an input"
                .to_string();
            return Err(Error::Capture { place: place.to_string(), what });
        }
        if array.version() != version {
            let what = "a constant was written to after it was used; make it by an op".to_string();
            return Err(Error::Capture { place: place.to_string(), what });
        }
        let (ty, node) = type_of(place, tensor)?;
        let id = match uniform(array)? {
            Some(value) => self.builder.full(&ty, value).ok_or_else(|| untyped(place))?,
            None => {
                let name = format!("constant.{}", self.constants);
                self.constants += 1;
                self.state.insert(name.as_str().into(), Datum::Array(array.contiguous().map_err(failed)?));
                self.builder.parameter(&name, node, false)
            }
        };
        self.values.define(tensor, version, id);
        Ok(id)
    }
}

fn untyped(place: &str) -> Error {
    Error::Capture { place: place.to_string(), what: "its type cannot be written down".to_string() }
}

fn failed(source: planaria_array::Error) -> Error {
    Error::Array { place: "constant".to_string(), source }
}

/// The one value that all elements have, where a program can write it down exactly.
fn uniform(array: &Array) -> Result<Option<f64>> {
    if array.numel() == 0 {
        return Ok(None);
    }
    let array = array.contiguous().map_err(failed)?;
    let bytes = array.bytes().map_err(failed)?;
    let size = array.dtype().size();
    let first = &bytes[..size];
    if !bytes.chunks_exact(size).all(|element| element == first) {
        return Ok(None);
    }
    let one = Array::from_bytes(first, &[], array.dtype()).map_err(failed)?;
    let value = one.item().map_err(failed)?.as_f64();
    let again = Array::full(&[], crate::run::whole(value.into(), array.dtype()), array.dtype());
    let again = again.map_err(failed)?;
    Ok((again.bytes().map_err(failed)?[..] == *first && !value.is_nan()).then_some(value))
}

/// Whether an op writes into zeros of its own.
fn fills_zeros(attrs: &[Attr]) -> bool {
    attrs.iter().any(|attr| &*attr.name == "onto" && attr.value.as_text() == Some("zeros"))
}

/// Values of a program do not change, so what is written goes into a copy.
fn out_of_place(mut attrs: Vec<Attr>) -> Vec<Attr> {
    for attr in attrs.iter_mut().filter(|attr| &*attr.name == "onto") {
        attr.value = Arc::new(Node::text("copy"));
    }
    attrs
}

/// How values lie, of those on a mesh.
fn layouts(outputs: &[Tensor]) -> Option<Attr> {
    let text = |tensor: &Tensor| {
        tensor.layout().map(|layout| Node::text(&layout.to_spec(tensor.dtype()).to_string()))
    };
    let texts: Option<Vec<Node>> = outputs.iter().map(text).collect();
    texts.filter(|texts| !texts.is_empty()).map(|texts| attribute("layouts", Node::array(texts)))
}

/// Whether an op moves values between ranks.
pub(crate) fn is_move(op: &Op) -> bool {
    let (dialect, name) = op.parts();
    dialect == crate::native::DIALECT && crate::passes::MOVES.contains(&name)
}
