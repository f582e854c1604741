//! Merges ops that compute the same from the same.

use super::{is_repeatable, overwritten, replace};
use crate::node::{Name, Node, Type};
use crate::ops::ANYWHERE;
use crate::program::{Op, Program, ValueId};
use std::collections::HashMap;
use std::sync::Arc;

/// What an op computes: its name, what it reads, its attributes and the types it gives.
type Meaning = (Name, Vec<ValueId>, Vec<(Name, Arc<Node>)>, Vec<Type>);

/// Merges ops of the main block that compute the same from the same, and says how many went. Where an op came from
/// (`struct_name` and its like) does not matter; the first one's stays.
pub fn merge_equal(program: &mut Program) -> usize {
    let written = overwritten(program);
    let Some(block) = program.block() else { return 0 };
    let mut known: HashMap<Meaning, Vec<ValueId>> = HashMap::new();
    let mut with: HashMap<ValueId, ValueId> = HashMap::new();
    for op in &block.ops {
        let read = |id: &ValueId| with.get(id).copied().unwrap_or(*id);
        let operands: Vec<ValueId> = op.operands.iter().map(read).collect();
        let results: Vec<ValueId> = op.results.iter().map(|value| value.id).collect();
        let fixed = operands.iter().chain(&results).all(|id| !written.contains(id));
        if !is_repeatable(op) || !fixed {
            continue;
        }
        match known.entry(meaning(op, operands)) {
            std::collections::hash_map::Entry::Occupied(first) => {
                with.extend(results.into_iter().zip(first.get().iter().copied()));
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(results);
            }
        }
    }
    let body = Arc::make_mut(&mut program.body);
    replace(body, &with);
    let mut gone = 0;
    for block in body.blocks.iter_mut().take(1) {
        let before = block.ops.len();
        block.ops.retain(|op| {
            op.results.is_empty() || op.results.iter().any(|value| !with.contains_key(&value.id))
        });
        gone = before - block.ops.len();
    }
    gone
}

fn meaning(op: &Op, operands: Vec<ValueId>) -> Meaning {
    let attrs = op.attrs.iter().filter(|attr| !ANYWHERE.contains(&&*attr.name));
    let attrs = attrs.map(|attr| (attr.name.clone(), attr.value.clone())).collect();
    (op.name.clone(), operands, attrs, op.results.iter().map(|value| value.ty.clone()).collect())
}
