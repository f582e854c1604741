//! An ONNX model as a program of Paddle's ops.

use super::READ;
use super::proto::{Graph, Model, ValueInfo};
use super::read::Read;
use super::tensor::{Beside, array, dtype};
use crate::builder::attribute;
use crate::error::{Error, Result};
use crate::lower::Emitter;
use crate::node::Node;
use crate::program::{Program, ValueId};
use crate::run::{Datum, ProgramState};
use crate::types::{Element, TensorType};
use planaria_array::{Array, DType};
use prost::Message;
use std::collections::HashMap;

/// Elements of an initializer that stands in the program itself instead of beside it.
const SMALL: usize = 64;

/// The extents of an input, by its number and name.
pub type InputExtents<'a> = dyn Fn(usize, &str) -> Option<Vec<usize>> + 'a;

/// Reads an ONNX model. Elements that are not in it are asked for from `beside` by file, offset and length. Extents that it
/// leaves open are those that `extents` gives for an input.
///
/// # Errors
/// Bytes that are not a model, a node that has no form here, by operator and name, and elements that are not there.
pub fn import(
    bytes: &[u8],
    extents: &InputExtents<'_>,
    beside: &Beside<'_>,
) -> Result<(Program, ProgramState)> {
    Parsed::read(bytes, beside)?.program(extents, beside)
}

/// A model with the elements of what it holds.
pub(super) struct Parsed {
    graph: Graph,
    held: HashMap<String, Array>,
}

impl Parsed {
    pub(super) fn read(bytes: &[u8], beside: &Beside<'_>) -> Result<Parsed> {
        let refuse = |what: String| Error::Onnx { place: "model".to_string(), what };
        let model =
            Model::decode(bytes).map_err(|error| refuse(format!("this is not an ONNX model: {error}")))?;
        let Some(mut graph) = model.graph else { return Err(refuse("it has no graph".to_string())) };
        let main = |domain: &Option<String>| domain.as_deref().is_none_or(|d| d.is_empty() || d == "ai.onnx");
        let opset = model.opset_import.iter().find(|set| main(&set.domain)).and_then(|set| set.version);
        if !opset.is_some_and(|version| READ.contains(&version)) {
            let found = opset.map_or("no operators".to_string(), |version| format!("operator set {version}"));
            let (oldest, newest) = (READ.start(), READ.end());
            return Err(refuse(format!(
                "it names {found}, and {oldest} to {newest} are supported; write it with one of these"
            )));
        }
        if !graph.sparse_initializer.is_empty() || !model.functions.is_empty() {
            return Err(refuse(
                "it has sparse tensors or functions of its own, which are not read".to_string(),
            ));
        }
        let mut held = HashMap::new();
        for tensor in std::mem::take(&mut graph.initializer) {
            held.insert(tensor.name.clone().unwrap_or_default(), array(&tensor, beside)?);
        }
        Ok(Parsed { graph, held })
    }

    /// What a run is given.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &ValueInfo> {
        let given = |input: &&ValueInfo| !self.held.contains_key(input.name.as_deref().unwrap_or_default());
        self.graph.input.iter().filter(given)
    }

    pub(super) fn program(
        &self,
        extents: &InputExtents<'_>,
        beside: &Beside<'_>,
    ) -> Result<(Program, ProgramState)> {
        let mut reader =
            Reader { emitter: Emitter::default(), values: HashMap::new(), constants: self.held.clone() };
        for (at, input) in self.inputs().enumerate() {
            reader.input(input, extents(at, input.name.as_deref().unwrap_or_default()))?;
        }
        reader.graph(&self.graph, beside)?;
        Ok((reader.emitter.builder.finish(), reader.emitter.state))
    }
}

pub(super) struct Reader {
    pub(super) emitter: Emitter,
    values: HashMap<String, ValueId>,
    /// Elements of constants.
    constants: HashMap<String, Array>,
}

impl Reader {
    fn graph(&mut self, graph: &Graph, beside: &Beside<'_>) -> Result<()> {
        for node in &graph.node {
            let read = Read::new(node);
            if node.domain.as_deref().is_some_and(|domain| !domain.is_empty() && domain != "ai.onnx") {
                return read.refuse(format!(
                    "operators of {} are not supported",
                    node.domain.as_deref().unwrap_or("")
                ));
            }
            self.node(&read, beside)?;
        }
        for output in &graph.output {
            let name = output.name.as_deref().unwrap_or_default();
            let id = self.value(name)?;
            let ty = self.emitter.type_of(id)?;
            self.emitter.builder.output(name, id, ty);
        }
        Ok(())
    }

    fn input(&mut self, input: &ValueInfo, given: Option<Vec<usize>>) -> Result<()> {
        let name = input.name.as_deref().unwrap_or_default();
        let place = format!("input {name}");
        let refuse = |what: &str| Error::Onnx { place: place.clone(), what: what.to_string() };
        let ty = input.ty.as_ref().and_then(|ty| ty.tensor.as_ref());
        let ty = ty.ok_or_else(|| refuse("it is not a tensor"))?;
        let shape = ty.shape.as_ref().ok_or_else(|| refuse("its number of dims is not known"))?;
        let element = Element::Plain(dtype(&place, ty.elem_type.unwrap_or(0))?);
        let given = given.unwrap_or_default();
        if !given.is_empty() && given.len() != shape.dim.len() {
            let (own, found) = (shape.dim.len(), given.len());
            return Err(refuse(&format!("it has {own} dims, and a tensor of {found} is given for it")));
        }
        let dim = |(at, dim): (usize, &super::proto::Dim)| match (dim.value, given.get(at)) {
            (Some(value), _) => Ok(value),
            (None, Some(&size)) => Ok(size as i64),
            (None, None) => {
                let open = dim.param.as_deref().unwrap_or("an extent");
                Err(refuse(&format!("it leaves {open} open; say how large it is")))
            }
        };
        let dims = shape.dim.iter().enumerate().map(dim).collect::<Result<Vec<i64>>>()?;
        let ty = TensorType { element, dims };
        let id = self
            .emitter
            .builder
            .input(name, &ty)
            .ok_or_else(|| refuse("its element type is not supported"))?;
        let node = ty.node().map(std::sync::Arc::new).ok_or_else(|| refuse("its type is not supported"))?;
        self.emitter.know(id, &node);
        self.values.insert(name.to_string(), id);
        Ok(())
    }

    fn node(&mut self, read: &Read<'_>, beside: &Beside<'_>) -> Result<()> {
        let output = read.node.output.first().cloned().unwrap_or_default();
        if read.op == "Constant" {
            let made = match (read.tensor("value"), read.int("value_int"), read.ints("value_ints")) {
                (Some(tensor), ..) => array(tensor, beside)?,
                (_, Some(value), _) => listed(&read.place(), &[value], &[])?,
                (_, _, Some(values)) => listed(&read.place(), &values, &[values.len()])?,
                _ => return read.refuse("only constants that are tensors or whole numbers are read"),
            };
            self.constants.insert(output, made);
            return Ok(());
        }
        let made = self.made(read)?;
        for (name, id) in read.node.output.iter().zip(made) {
            // Shapes and what is computed from them are known here.
            if let Some(Datum::Array(array)) = self.emitter.data.get(&id)
                && !array.is_meta()
            {
                self.constants.insert(name.clone(), array.clone());
            }
            self.values.insert(name.clone(), id);
        }
        Ok(())
    }

    /// The value of a name; an initializer becomes a constant of the program when it is first asked for.
    pub(super) fn value(&mut self, name: &str) -> Result<ValueId> {
        if let Some(id) = self.values.get(name) {
            return Ok(*id);
        }
        let Some(array) = self.constants.get(name).cloned() else {
            return Err(Error::Onnx {
                place: format!("value {name}"),
                what: "nothing makes it before it is used".to_string(),
            });
        };
        let id = match small(&array) {
            Some(values) if array.ndim() == 1 => self.emitter.ints(&values)?,
            // Sizes are computed from single numbers, whose values are kept in sight.
            Some(values) => {
                let flat = self.emitter.ints(&values)?;
                self.emitter.reshape(flat, array.shape())?
            }
            _ => self.emitter.named_constant(name, array)?,
        };
        self.values.insert(name.to_string(), id);
        Ok(id)
    }

    pub(super) fn operand(&mut self, read: &Read<'_>, at: usize) -> Result<ValueId> {
        match read.input(at) {
            Some(name) => self.value(name),
            None => read.refuse(format!("input {at} is missing")),
        }
    }

    pub(super) fn operands(&mut self, read: &Read<'_>) -> Result<Vec<ValueId>> {
        (0..read.node.input.len()).map(|at| self.operand(read, at)).collect()
    }

    /// Whole numbers that a node must know: an input that is a constant.
    pub(super) fn known(&self, read: &Read<'_>, at: usize) -> Result<Option<Vec<i64>>> {
        let Some(name) = read.input(at) else { return Ok(None) };
        match self
            .constants
            .get(name)
            .map(|array| array.cast(DType::I64).and_then(|array| array.to_vec::<i64>()))
        {
            Some(Ok(values)) => Ok(Some(values)),
            _ => read.refuse(format!("input {at} ({name}) must be a constant here")),
        }
    }

    pub(super) fn axis(&self, read: &Read<'_>, default: i64) -> crate::program::Attr {
        attribute("axis", Node::i32(read.int("axis").unwrap_or(default) as i32))
    }
}

fn listed(place: &str, values: &[i64], shape: &[usize]) -> Result<Array> {
    Array::from_slice(values, shape).map_err(|source| Error::Array { place: place.to_string(), source })
}

/// Few integers of 64 bits.
fn small(array: &Array) -> Option<Vec<i64>> {
    (array.dtype() == DType::I64 && array.numel() <= SMALL).then(|| array.to_vec::<i64>().ok()).flatten()
}
