//! A program of Paddle's ops as an ONNX model.

use super::proto::{self, Dim, Graph, Model, OperatorSet, TensorShape, ValueInfo};
use super::tensor::{external, inline, number};
use super::{IR_VERSION, OPSET};
use crate::capture::Origin;
use crate::error::{Error, Result};
use crate::program::{Op, Program, ValueId};
use crate::run::{Datum, ProgramState, infer};
use crate::types::{Element, TensorType, tensor_type};
use planaria_array::Array;
use prost::Message;
use std::collections::HashMap;

/// Where parameters are aligned in the file beside the model, so that it can be mapped.
const ALIGNED: usize = 4096;

/// A file beside a model: its name, and where its bytes go.
pub type FileBeside<'a> = (&'a str, &'a mut dyn std::io::Write);

/// Writes a program of Paddle's ops as an ONNX model and gives the bytes of its file. With `beside`, parameters of more than a
/// few bytes go to a file of that name, one after the other. Extents that are not known get names from `names`, by input and
/// dim, or names of their own.
///
/// # Errors
/// An op that has no form in ONNX here, by name and with what it was made from; what is written to.
pub fn export(
    program: &Program,
    state: &ProgramState,
    mut beside: Option<FileBeside<'_>>,
    names: &dyn Fn(&str, usize) -> Option<String>,
) -> Result<Vec<u8>> {
    let mut writer = Writer {
        graph: Graph { name: Some("program".to_string()), ..Graph::default() },
        values: HashMap::new(),
        lists: HashMap::new(),
        known: HashMap::new(),
        types: HashMap::new(),
        fresh: 0,
        origin: String::new(),
    };
    let mut length = 0;
    for held in program.held() {
        let missing = || Error::State { what: format!("parameter {} is not given", held.name) };
        let array = state.get(&held.name).and_then(Datum::array).ok_or_else(missing)?;
        let small = array.numel() * array.dtype().size() <= 64;
        let tensor = match beside.as_mut().filter(|_| !small) {
            None => inline(&held.name, array)?,
            Some((file, out)) => {
                let offset = put(&held.name, array, &mut length, *out)?;
                external(&held.name, array, file, offset)
            }
        };
        writer.graph.initializer.push(tensor);
        writer.values.insert(held.value.id, held.name.to_string());
        writer.types.extend(tensor_type(&held.value.ty).map(|ty| (held.value.id, ty)));
    }
    for op in program.block().into_iter().flat_map(|block| &block.ops).filter(|op| op.held().is_none()) {
        writer.op(op, names)?;
    }
    let opset = OperatorSet { domain: Some(String::new()), version: Some(OPSET) };
    let model = Model {
        ir_version: Some(IR_VERSION),
        producer_name: Some("planaria".to_string()),
        producer_version: Some(env!("CARGO_PKG_VERSION").to_string()),
        graph: Some(writer.graph),
        opset_import: vec![opset],
        functions: Vec::new(),
    };
    Ok(model.encode_to_vec())
}

/// Puts elements behind what a file has so far, aligned, and says where they are.
fn put(name: &str, array: &Array, length: &mut usize, out: &mut dyn std::io::Write) -> Result<u64> {
    let failed = |source| Error::Array { place: name.to_string(), source };
    let array = array.contiguous().map_err(failed)?;
    let bytes = array.bytes().map_err(failed)?;
    let offset = length.next_multiple_of(ALIGNED);
    let wrote = out.write_all(&vec![0; offset - *length]).and_then(|()| out.write_all(&bytes));
    wrote.map_err(|error| Error::State { what: format!("{name}: {error}") })?;
    *length = offset + bytes.len();
    Ok(offset as u64)
}

pub(super) struct Writer {
    graph: Graph,
    /// Names of values.
    values: HashMap<ValueId, String>,
    /// Parts of values that are lists.
    pub(super) lists: HashMap<ValueId, Vec<ValueId>>,
    /// Small constants.
    known: HashMap<ValueId, Array>,
    types: HashMap<ValueId, TensorType>,
    fresh: usize,
    /// The op of ours that is being written, for messages and in the file.
    origin: String,
}

impl Writer {
    fn op(&mut self, op: &Op, names: &dyn Fn(&str, usize) -> Option<String>) -> Result<()> {
        self.origin = Origin::of(op).to_string();
        self.types.extend(op.results.iter().filter_map(|value| Some((value.id, tensor_type(&value.ty)?))));
        match op.parts() {
            ("pd_op", "data") => return self.input(op, names),
            ("pd_op", "fetch") => return self.output(op, names),
            ("builtin", "combine") => {
                self.lists.insert(op.results[0].id, op.operands.clone());
                return Ok(());
            }
            ("pd_op", "full_int_array" | "full" | "assign_value") => {
                if let Ok(found) = infer(op, Vec::new())
                    && let [Datum::Array(array)] = &found[..]
                    && !array.is_meta()
                {
                    self.known.insert(op.results[0].id, array.clone());
                    return Ok(());
                }
            }
            _ => {}
        }
        self.nodes(op)
    }

    /// The op and what it comes from, for messages.
    pub(super) fn refuse<T>(&self, op: &Op, what: &str) -> Result<T> {
        let of = if self.origin.is_empty() { String::new() } else { format!(" of {}", self.origin) };
        Err(Error::Onnx { place: format!("{}{of}", op.place()), what: what.to_string() })
    }

    fn info(&self, name: &str, id: ValueId, names: &dyn Fn(&str, usize) -> Option<String>) -> ValueInfo {
        let ty = self.types.get(&id);
        let dim = |(at, extent): (usize, &i64)| match extent {
            -1 => Dim { value: None, param: Some(names(name, at).unwrap_or(format!("{name}_{at}"))) },
            extent => Dim { value: Some(*extent), param: None },
        };
        let tensor = ty.map(|ty| proto::TensorType {
            elem_type: match ty.element {
                Element::Plain(dtype) => Some(number(dtype)),
                _ => None,
            },
            shape: Some(TensorShape { dim: ty.dims.iter().enumerate().map(dim).collect() }),
        });
        ValueInfo { name: Some(name.to_string()), ty: Some(proto::Type { tensor }) }
    }

    fn input(&mut self, op: &Op, names: &dyn Fn(&str, usize) -> Option<String>) -> Result<()> {
        let name = op.attr("name").and_then(|name| name.as_text()).unwrap_or_default().to_string();
        let id = op.results[0].id;
        let info = self.info(&name, id, names);
        self.graph.input.push(info);
        self.values.insert(id, name);
        Ok(())
    }

    fn output(&mut self, op: &Op, names: &dyn Fn(&str, usize) -> Option<String>) -> Result<()> {
        let name = op.attr("name").and_then(|name| name.as_text()).unwrap_or_default().to_string();
        let from = self.name(op.operands[0])?;
        self.node("Identity", &[&from], std::slice::from_ref(&name), Vec::new());
        let info = self.info(&name, op.operands[0], names);
        self.graph.output.push(info);
        Ok(())
    }

    /// The name of a value; a constant is written down when it is first asked for.
    pub(super) fn name(&mut self, id: ValueId) -> Result<String> {
        if id.is_absent() {
            return Ok(String::new());
        }
        if let Some(name) = self.values.get(&id) {
            return Ok(name.clone());
        }
        let name = format!("v{}", id.0);
        if let Some(array) = self.known.get(&id) {
            self.graph.initializer.push(inline(&name, &array.clone())?);
        }
        self.values.insert(id, name.clone());
        Ok(name)
    }

    pub(super) fn names(&mut self, ids: &[ValueId]) -> Result<Vec<String>> {
        ids.iter().map(|id| self.name(*id)).collect()
    }

    /// The elements of a small constant.
    pub(super) fn constant(&self, id: ValueId) -> Option<&Array> {
        self.known.get(&id)
    }

    pub(super) fn ty(&self, id: ValueId) -> Option<&TensorType> {
        self.types.get(&id)
    }

    /// A constant of its own.
    pub(super) fn held(&mut self, array: &Array) -> Result<String> {
        self.fresh += 1;
        let name = format!("c{}", self.fresh);
        self.graph.initializer.push(inline(&name, array)?);
        Ok(name)
    }

    pub(super) fn ints(&mut self, values: &[i64]) -> Result<String> {
        let array = Array::from_slice(values, &[values.len()]);
        self.held(&array.map_err(|source| Error::Array { place: "constant".to_string(), source })?)
    }

    /// A value between two nodes.
    pub(super) fn between(&mut self, op: &str, inputs: &[&str], attrs: Vec<proto::Attribute>) -> String {
        self.fresh += 1;
        let name = format!("t{}", self.fresh);
        self.node(op, inputs, std::slice::from_ref(&name), attrs);
        name
    }

    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: &[&str],
        outputs: &[String],
        attribute: Vec<proto::Attribute>,
    ) {
        let from = |origin: &String| proto::Entry {
            key: Some("planaria.comp_op_name".to_string()),
            value: Some(origin.clone()),
        };
        self.graph.node.push(proto::Node {
            input: inputs.iter().map(ToString::to_string).collect(),
            output: outputs.to_vec(),
            name: Some(format!("n{}_{op}", self.graph.node.len())),
            op_type: Some(op.to_string()),
            attribute,
            domain: None,
            metadata_props: Some(&self.origin)
                .filter(|origin| !origin.is_empty())
                .map(from)
                .into_iter()
                .collect(),
        });
    }
}
