//! Ops of ours again, from the ops of Paddle that they were taken apart into.

use super::remove_dead;
use crate::native::COMPOSITE;
use crate::node::Node;
use crate::program::{Attr, Op, Program, Value, ValueId};
use crate::run::{Datum, infer};
use crate::types::{Element, TensorType, tensor_type};
use planaria_array::Array;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What is remembered of an op of ours on an op that gives results of it.
struct Mark {
    name: String,
    instance: i64,
    /// For each result of the op that is marked, which one of ours it is.
    results: Vec<Option<usize>>,
    operands: Vec<ValueId>,
    attrs: Vec<Attr>,
}

impl Mark {
    fn of(op: &Op) -> Option<Mark> {
        let parts = op.attr(COMPOSITE)?.items()?;
        let [name, instance, results, operands, attrs] = parts.as_slice() else { return None };
        let results = results.as_int().map(|one| vec![one]).or_else(|| results.as_ints())?;
        let attr = |pair: &Arc<Node>| match pair.items()?.as_slice() {
            [name, value] => Some(Attr { name: name.as_text()?.into(), value: (*value).clone() }),
            _ => None,
        };
        Some(Mark {
            name: name.as_text()?.to_string(),
            instance: instance.as_int()?,
            results: results.into_iter().map(|result| usize::try_from(result).ok()).collect(),
            operands: operands.as_ints()?.into_iter().map(ValueId).collect(),
            attrs: attrs.items()?.into_iter().map(attr).collect::<Option<_>>()?,
        })
    }
}

/// What an op says of the composite that its results are `results` of: one number, or a list with -1 for what only the
/// op itself has.
pub(crate) fn mark(
    op: &Op,
    instance: i64,
    results: impl Iterator<Item = Option<usize>>,
    operands: &[ValueId],
) -> Node {
    let mut results: Vec<Node> = results.map(|at| Node::i64(at.map_or(-1, |at| at as i64))).collect();
    let results = if results.len() == 1 { results.remove(0) } else { Node::array(results) };
    let own = op.attrs.iter().filter(|attr| !crate::ops::ANYWHERE.contains(&&*attr.name));
    let attrs = own.map(|attr| Node::array([Node::text(&attr.name), (*attr.value).clone()]));
    Node::array([
        Node::text(&op.full_name()),
        Node::i64(instance),
        results,
        Node::array(operands.iter().map(|id| Node::i64(id.0))),
        Node::array(attrs),
    ])
}

/// Puts ops of ours in the place of what they were taken apart into, and says how many. One of whose parts something else
/// reads stays apart, and so does one whose operands are gone.
pub fn fuse(program: &mut Program) -> usize {
    let mut types: HashMap<ValueId, TensorType> = HashMap::new();
    let mut last = 0;
    program.visit(&mut |op| {
        types.extend(op.results.iter().filter_map(|value| Some((value.id, tensor_type(&value.ty)?))));
        last = op.results.iter().map(|value| value.id.0).fold(last, i64::max);
    });
    let Some(block) = program.block_mut() else { return 0 };
    let mut groups: HashMap<i64, Vec<(usize, Mark)>> = HashMap::new();
    for (at, op) in block.ops.iter().enumerate() {
        if let Some(mark) = Mark::of(op) {
            groups.entry(mark.instance).or_default().push((at, mark));
        }
    }
    let mut put: HashMap<usize, Op> = HashMap::new();
    let (mut gone, mut fused) = (HashSet::new(), 0);
    for parts in groups.values() {
        let Some((first, op)) = whole(parts, &block.ops, &types, &mut last) else { continue };
        put.insert(first, op);
        gone.extend(parts.iter().map(|(at, _)| *at));
        fused += 1;
    }
    let mut ops = Vec::with_capacity(block.ops.len());
    for (at, op) in std::mem::take(&mut block.ops).into_iter().enumerate() {
        match put.remove(&at) {
            Some(whole) => ops.push(whole),
            None if gone.contains(&at) => {}
            None => ops.push(op),
        }
    }
    block.ops = ops;
    remove_dead(program);
    fused
}

/// The op that parts come from, where the first of them stands.
fn whole(
    parts: &[(usize, Mark)],
    ops: &[Op],
    types: &HashMap<ValueId, TensorType>,
    last: &mut i64,
) -> Option<(usize, Op)> {
    let (_, mark) = parts.first()?;
    let first = parts.iter().map(|(at, _)| *at).min()?;
    let before: HashSet<ValueId> =
        ops[..first].iter().flat_map(|op| &op.results).map(|value| value.id).collect();
    if !mark.operands.iter().all(|id| before.contains(id)) {
        return None;
    }
    let name = crate::node::spelled(&mark.name);
    let mut op = crate::builder::Builder::bare(&name, &mark.operands, mark.attrs.clone());
    let kinds = mark.operands.iter().map(|id| {
        let ty = types.get(id)?;
        let dims = ty.dims.iter().map(|d| usize::try_from(*d).ok()).collect::<Option<Vec<_>>>()?;
        let Element::Plain(dtype) = ty.element else { return None };
        Array::meta(&dims, dtype).ok().map(Datum::Array)
    });
    let results = infer(&op, kinds.collect::<Option<Vec<_>>>()?).ok()?;
    let mut known: HashMap<usize, Value> = HashMap::new();
    for (at, mark) in parts {
        // A result that only this op has would be lost.
        let places = mark.results.iter().copied().collect::<Option<Vec<_>>>()?;
        if places.len() != ops[*at].results.len() {
            return None;
        }
        known.extend(places.into_iter().zip(ops[*at].results.iter().cloned()));
    }
    for (at, datum) in results.iter().enumerate() {
        let fresh = |last: &mut i64| {
            *last += 1;
            let array = datum.array()?;
            let dims = array.shape().iter().map(|&n| n as i64).collect();
            let ty = TensorType { element: Element::Plain(array.dtype()), dims }.node()?;
            Some(Value { id: ValueId(*last), ty: Arc::new(ty) })
        };
        op.results.push(match known.remove(&at) {
            Some(value) => value,
            None => fresh(last)?,
        });
    }
    Some((first, op))
}
