//! A program for any size, from several that were captured with different sizes.

use super::Emitter;
use super::sizes::{Size, Sizes};
use crate::builder::attribute;
use crate::capture::Origin;
use crate::error::{Error, Result};
use crate::native::COMPOSITE;
use crate::node::{Data, Node, Type};
use crate::program::{Attr, Op, Program, ValueId};
use crate::run::{Datum, ProgramState};
use crate::types::{Element, TensorType, tensor_type, vector_types};
use planaria_array::Array;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The first of several programs that differ in sizes alone, with extents that are not known where they differ. Sizes that
/// ops are given are those of their operand, or are computed from extents of the inputs when the program runs; what does
/// not follow from these in all of the programs is refused.
///
/// # Errors
/// Programs that differ in more than sizes, and an op whose sizes cannot be left open, by name.
pub fn generalize(examples: &[(&Program, &ProgramState)]) -> Result<Program> {
    let Some((first, state)) = examples.first() else {
        return Err(Error::State { what: "no program is given to be left open".to_string() });
    };
    let blocks: Vec<&[Op]> = examples.iter().map(|(program, _)| ops(program)).collect();
    if blocks.iter().any(|block| block.len() != blocks[0].len()) {
        let what = "with other sizes other ops run; export it with fixed sizes".to_string();
        return Err(Error::State { what });
    }
    let mut opening = Opening {
        emitter: Emitter { state: (*state).clone(), ..Emitter::default() },
        sizes: Sizes::of(examples.iter().map(|(program, _)| *program)),
        types: examples.iter().map(|(program, _)| types_of(program)).collect(),
        users: users(first),
        extents: HashMap::new(),
        computed: HashSet::new(),
    };
    for at in 0..blocks[0].len() {
        let alike: Vec<&Op> = blocks.iter().map(|block| &block[at]).collect();
        opening.op(&alike, examples)?;
    }
    let mut program = opening.emitter.builder.finish();
    (program.version, program.trainable, program.readable) = (first.version, first.trainable, first.readable);
    Ok(program)
}

fn ops(program: &Program) -> &[Op] {
    program.block().map_or(&[], |block| &block.ops)
}

type Types = HashMap<ValueId, Vec<i64>>;

struct Opening {
    /// The new program.
    emitter: Emitter,
    /// The extents of inputs that differ.
    sizes: Sizes,
    /// Extents of all values, of each program.
    types: Vec<Types>,
    /// The op that reads each value first.
    users: HashMap<ValueId, Op>,
    /// Extents of inputs that ops of the new program give.
    extents: HashMap<(ValueId, usize), ValueId>,
    /// Sizes, by their old values, that are computed when the program runs.
    computed: HashSet<ValueId>,
}

impl Opening {
    /// One op, as all programs have it.
    fn op(&mut self, alike: &[&Op], examples: &[(&Program, &ProgramState)]) -> Result<()> {
        let op = alike[0];
        let refuse = |what: &str| Error::Run { place: op.place(), what: what.to_string() };
        let same = |other: &&Op| {
            op.name == other.name
                && op.operands == other.operands
                && op.results.len() == other.results.len()
                && op.attrs.len() == other.attrs.len()
        };
        if !alike.iter().all(same) {
            return Err(refuse("with other sizes another op runs; export it with fixed sizes"));
        }
        if let Some(held) = op.held()
            && !examples.iter().all(|(_, state)| equal(state, examples[0].1, &held.name))
        {
            return Err(refuse("a constant of the program depends on sizes; export it with fixed sizes"));
        }
        self.emitter.origin = Origin::of(op);
        let types = self.open_types(alike).ok_or_else(|| refuse("its results differ in more than sizes"))?;
        let ids = match self.opened(alike, &types)? {
            Some(ids) => ids,
            None => {
                return Err(refuse(
                    "its attributes depend on sizes in a way that cannot be left open; export it with fixed sizes",
                ));
            }
        };
        self.emitter.map.extend(op.results.iter().map(|value| value.id).zip(ids));
        Ok(())
    }

    fn open_types(&self, alike: &[&Op]) -> Option<Vec<Type>> {
        let open = |at: usize| {
            let first = alike[0].results[at].ty.clone();
            alike[1..].iter().try_fold(first, |ty, other| open_type(&ty, &other.results[at].ty))
        };
        (0..alike[0].results.len()).map(open).collect()
    }

    /// The op with open types and attributes, or ops in its place; none where an attribute cannot be left open.
    fn opened(&mut self, alike: &[&Op], types: &[Type]) -> Result<Option<Vec<ValueId>>> {
        let differs = |attr: usize| alike.iter().any(|op| op.attrs[attr].value != alike[0].attrs[attr].value);
        let differing: Vec<usize> = (0..alike[0].attrs.len())
            .filter(|attr| differs(*attr) && &*alike[0].attrs[*attr].name != COMPOSITE)
            .collect();
        let mut op = alike[0].clone();
        // What was taken apart had fixed sizes.
        op.attrs.retain(|attr| &*attr.name != COMPOSITE);
        if let [attr] = differing[..] {
            let name = alike[0].attrs[attr].name.clone();
            let Some(values) = values(alike, attr) else { return Ok(None) };
            let node = match &*op.name {
                "1.data" => Some(Node::int_array(&unknown(&values))),
                "1.full_int_array" => match self.by_operand(&op, &values) {
                    Some(sizes) => Some(Node::array(sizes.into_iter().map(Node::i64))),
                    None => return self.shape_of(&op, &values),
                },
                "1.full" => return self.filled(&op, &values, &types[0]),
                _ => None,
            };
            let Some(node) = node else { return Ok(None) };
            replace(&mut op.attrs, &name, node);
        } else if !differing.is_empty() {
            return Ok(None);
        }
        if op.is("pd_op", "slice") && op.operands.iter().any(|id| self.computed.contains(id)) {
            let count = op.attr("axes").and_then(Node::items).map_or(0, |axes| axes.len());
            replace(&mut op.attrs, "infer_flags", Node::array(vec![Node::i64(-1); count]));
        }
        Ok(Some(self.copied(op, alike[0], types)))
    }

    fn copied(&mut self, mut op: Op, example: &Op, types: &[Type]) -> Vec<ValueId> {
        op.results.iter_mut().zip(types).for_each(|(value, ty)| value.ty = ty.clone());
        let operands: Vec<ValueId> =
            op.operands.iter().map(|id| self.emitter.map.get(id).copied().unwrap_or(*id)).collect();
        let ids = self.emitter.builder.copy_any(&op, &operands);
        for (id, value) in ids.iter().zip(&example.results) {
            self.emitter.know(*id, &value.ty);
        }
        ids
    }

    /// Sizes of a shape that say themselves what they are: an extent of the operand that is reshaped or expanded, or what
    /// is left of it.
    fn by_operand(&self, op: &Op, values: &[Vec<i64>]) -> Option<Vec<i64>> {
        let user = self.users.get(&op.results.first()?.id)?;
        let x = user.operands.first()?;
        let from: Vec<&Vec<i64>> = self.types.iter().map(|types| types.get(x)).collect::<Option<Vec<_>>>()?;
        let ndim = values[0].len();
        let copied =
            |at: usize| from.iter().zip(values).all(|(from, values)| from.get(at) == Some(&values[at]));
        let mut sizes = Vec::new();
        for at in 0..ndim {
            let equal = values.iter().all(|other| other[at] == values[0][at]);
            sizes.push(match user.parts() {
                ("pd_op", "reshape" | "expand") if equal => values[0][at],
                ("pd_op", "reshape") if copied(at) => 0,
                ("pd_op", "reshape") => -1,
                ("pd_op", "expand") if copied(at) && from[0].len() == ndim => -1,
                _ => return None,
            });
        }
        let left = sizes.iter().filter(|size| **size == -1).count();
        (left < 2 || user.is("pd_op", "expand")).then_some(sizes)
    }

    /// A list of sizes, computed when the program runs.
    fn shape_of(&mut self, op: &Op, values: &[Vec<i64>]) -> Result<Option<Vec<ValueId>>> {
        let Some(shape) = self.shape(values)? else { return Ok(None) };
        self.computed.extend(op.results.iter().map(|value| value.id));
        Ok(Some(vec![shape]))
    }

    fn shape(&mut self, values: &[Vec<i64>]) -> Result<Option<ValueId>> {
        let mut parts = Vec::new();
        for at in 0..values[0].len() {
            let sizes: Vec<i64> = values.iter().map(|values| values[at]).collect();
            let Some(size) = self.sizes.solve(&sizes) else { return Ok(None) };
            parts.push(self.size(&size)?);
        }
        match parts[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            _ => self.emitter.concat(&parts, 0).map(Some),
        }
    }

    /// One size in a dim of its own.
    fn size(&mut self, size: &Size) -> Result<ValueId> {
        match *size {
            Size::Is(value) => self.emitter.ints(&[value]),
            Size::Product { of, times, plus } => {
                let mut product = self.extent(of[0])?;
                if let Some(other) = of[1] {
                    let other = self.extent(Some(other))?;
                    product = self.emitter.multiply(product, other)?;
                }
                if times != 1 {
                    let times = self.emitter.ints(&[times])?;
                    product = self.emitter.multiply(product, times)?;
                }
                if plus != 0 {
                    let plus = self.emitter.ints(&[plus])?;
                    product = self.emitter.add(product, plus)?;
                }
                Ok(product)
            }
        }
    }

    /// An extent of an input when the program runs.
    fn extent(&mut self, of: Option<(ValueId, usize)>) -> Result<ValueId> {
        let Some((input, dim)) = of else { return self.emitter.ints(&[1]) };
        if let Some(known) = self.extents.get(&(input, dim)) {
            return Ok(*known);
        }
        let made = self.emitter.extent(self.emitter.map.get(&input).copied().unwrap_or(input), dim, 0)?;
        self.extents.insert((input, dim), made);
        Ok(made)
    }

    /// A tensor of one value and of sizes that are computed.
    fn filled(&mut self, op: &Op, values: &[Vec<i64>], ty: &Type) -> Result<Option<Vec<ValueId>>> {
        let Some(shape) = self.shape(values)? else { return Ok(None) };
        let mut one = op.clone();
        replace(&mut one.attrs, "shape", Node::int_array(&[1]));
        let Some(TensorType { element, .. }) = tensor_type(ty) else { return Ok(None) };
        let Some(node) = (TensorType { element, dims: vec![1] }).node() else { return Ok(None) };
        one.results[0].ty = Arc::new(node);
        let example = one.clone();
        let types = [one.results[0].ty.clone()];
        let one = self.copied(one, &example, &types)[0];
        let all = self.emitter.emit("1.expand", &[one, shape], Vec::new())?;
        self.emitter.builder.retype(all, ty);
        Ok(Some(vec![all]))
    }
}

/// Whether two states hold the same under a name.
fn equal(a: &ProgramState, b: &ProgramState, name: &str) -> bool {
    let (Some(a), Some(b)) = (a.get(name).and_then(Datum::array), b.get(name).and_then(Datum::array)) else {
        return false;
    };
    let kind = |array: &Array| (array.shape().to_vec(), array.dtype());
    let bytes = |array: &Array| Some(array.contiguous().ok()?.bytes().ok()?.to_vec());
    let shared = a.shares_storage(b) && a.strides() == b.strides() && a.offset() == b.offset();
    kind(a) == kind(b) && (shared || bytes(a) == bytes(b))
}

/// The numbers of an attribute, of each op; none unless there are as many of them everywhere.
fn values(alike: &[&Op], attr: usize) -> Option<Vec<Vec<i64>>> {
    let values = alike.iter().map(|op| op.attrs[attr].value.as_ints()).collect::<Option<Vec<_>>>()?;
    values.iter().all(|other| other.len() == values[0].len()).then_some(values)
}

/// -1 where sizes differ.
fn unknown(values: &[Vec<i64>]) -> Vec<i64> {
    let at = |at: usize| match values.iter().all(|other| other[at] == values[0][at]) {
        true => values[0][at],
        false => -1,
    };
    (0..values[0].len()).map(at).collect()
}

fn replace(attrs: &mut [Attr], name: &str, node: Node) {
    attrs
        .iter_mut()
        .filter(|attr| &*attr.name == name)
        .for_each(|attr| *attr = attribute(name, node.clone()));
}

fn types_of(program: &Program) -> Types {
    let mut types = Types::new();
    program.visit(&mut |op| {
        let dims = |value: &crate::program::Value| Some((value.id, tensor_type(&value.ty)?.dims));
        types.extend(op.results.iter().filter_map(dims));
    });
    types
}

/// The op that reads each value first.
fn users(program: &Program) -> HashMap<ValueId, Op> {
    let mut users: HashMap<ValueId, Op> = HashMap::new();
    program.visit(&mut |op| {
        for id in &op.operands {
            users.entry(*id).or_insert_with(|| op.clone());
        }
    });
    users
}

/// A type whose extents are not known where two differ.
fn open_type(a: &Type, b: &Type) -> Option<Type> {
    if a == b {
        return Some(a.clone());
    }
    if let (Some(inner), Some(other)) = (vector_types(a), vector_types(b)) {
        let open = |(a, b): (&Type, &Type)| Some(Data::Node(open_type(a, b)?));
        let types = inner.iter().zip(&other).map(open).collect::<Option<Vec<_>>>()?;
        return Some(Arc::new(Node::with("0.t_vec", Data::List(types))));
    }
    let (mut x, y) = (tensor_type(a)?, tensor_type(b)?);
    if x.element != y.element || x.dims.len() != y.dims.len() || !matches!(x.element, Element::Plain(_)) {
        return None;
    }
    x.dims.iter_mut().zip(&y.dims).filter(|(a, b)| a != b).for_each(|(a, _)| *a = -1);
    x.node().map(Arc::new)
}
