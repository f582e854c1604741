//! A program for any size, from two that were captured with different sizes.

use crate::error::{Error, Result};
use crate::native::COMPOSITE;
use crate::node::{Data, Node, Type};
use crate::program::{Attr, Op, Program, ValueId};
use crate::run::ProgramState;
use crate::types::{tensor_type, vector_types};
use std::collections::HashMap;
use std::sync::Arc;

/// The first of two programs that differ in sizes alone, with extents that are not known where they differ. Shapes that
/// ops are given take the extents of their operand, or one that follows from the rest.
///
/// # Errors
/// Programs that differ in more than sizes, and an op whose sizes cannot be left open, by name.
pub fn generalize(
    (first, state): (&Program, &ProgramState),
    (second, other): (&Program, &ProgramState),
) -> Result<Program> {
    let mut program = first.clone();
    let types = (types_of(first), types_of(second));
    let (ops, others) = (first.block(), second.block());
    let (Some(ops), Some(others)) = (ops, others) else { return Ok(program) };
    if ops.ops.len() != others.ops.len() {
        let what = "with other sizes other ops run; export it with fixed sizes".to_string();
        return Err(Error::State { what });
    }
    let users = users(first);
    let Some(block) = program.block_mut() else { return Ok(program) };
    for (op, other_op) in block.ops.iter_mut().zip(&others.ops) {
        let place = op.place();
        let refuse = |what: &str| Error::Run { place: place.clone(), what: what.to_string() };
        if op.name != other_op.name
            || op.operands != other_op.operands
            || op.results.len() != other_op.results.len()
        {
            return Err(refuse("with other sizes another op runs; export it with fixed sizes"));
        }
        if let Some(held) = op.held() {
            let bytes = |state: &ProgramState| {
                let array = state.get(&held.name)?.array()?.contiguous().ok()?;
                Some((array.shape().to_vec(), array.bytes().ok()?.to_vec()))
            };
            if bytes(state) != bytes(other) {
                return Err(refuse("a constant of the program depends on sizes; export it with fixed sizes"));
            }
        }
        for (value, other) in op.results.iter_mut().zip(&other_op.results) {
            value.ty = open_type(&value.ty, &other.ty)
                .ok_or_else(|| refuse("its results differ in more than sizes"))?;
        }
        // What was taken apart had fixed sizes.
        op.attrs.retain(|attr| &*attr.name != COMPOSITE);
        for (attr, other) in op.attrs.iter_mut().zip(&other_op.attrs) {
            if attr.value == other.value {
                continue;
            }
            let user = op.results.first().and_then(|value| users.get(&value.id));
            open_attr(&op.name, attr, other, user, &types).ok_or_else(|| {
                refuse("its attributes depend on sizes in a way that cannot be left open; export it with fixed sizes")
            })?;
        }
    }
    Ok(program)
}

type Types = HashMap<ValueId, Vec<i64>>;

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
    if x.element != y.element || x.dims.len() != y.dims.len() {
        return None;
    }
    x.dims.iter_mut().zip(&y.dims).filter(|(a, b)| a != b).for_each(|(a, _)| *a = -1);
    x.node().map(Arc::new)
}

/// Leaves open the sizes of an attribute where two differ: the shape of an input, or the shape that another op is given.
fn open_attr(
    op: &str,
    attr: &mut Attr,
    other: &Attr,
    user: Option<&Op>,
    types: &(Types, Types),
) -> Option<()> {
    let (a, b) = (attr.value.as_ints()?, other.value.as_ints()?);
    if a.len() != b.len() {
        return None;
    }
    let values = match op {
        "1.data" => a.iter().zip(&b).map(|(a, b)| if a == b { *a } else { -1 }).collect(),
        "1.full_int_array" => {
            let user = user?;
            let x = user.operands.first()?;
            let (from, from_other) = (types.0.get(x)?, types.1.get(x)?);
            let copied = |at: usize| from.get(at) == Some(&a[at]) && from_other.get(at) == Some(&b[at]);
            let mut open = Vec::new();
            for at in 0..a.len() {
                open.push(match (a[at] == b[at], user.parts().1) {
                    (true, _) => a[at],
                    (false, "reshape") if copied(at) => 0,
                    (false, "reshape") => -1,
                    (false, "expand") if copied(at) && from.len() == a.len() => -1,
                    _ => return None,
                });
            }
            if user.is("pd_op", "reshape") && open.iter().filter(|n| **n == -1).count() > 1 {
                return None;
            }
            open
        }
        _ => return None,
    };
    let node = match op {
        "1.data" => Node::int_array(&values),
        _ => Node::array(values.into_iter().map(Node::i64)),
    };
    attr.value = Arc::new(node);
    Some(())
}
