//! Changes of programs that keep what they compute, bit for bit.

mod constants;
mod dead;
mod equal;
mod fuse;
mod memory;
mod propagate;

pub use constants::fold_constants;
pub use dead::{remove_dead, remove_unread};
pub use equal::merge_equal;
pub use fuse::fuse;
pub(crate) use fuse::mark;
pub use memory::{MemoryPlan, Slot, plan_memory};
pub use propagate::{Spread, pieces, propagate};

use crate::native::DIALECT;
use crate::ops::{aliases, signature};
use crate::program::{Op, Program, Region, ValueId};
use std::collections::{HashMap, HashSet};

/// Ops of ours that ranks run together.
pub(crate) const MOVES: [&str; 3] = ["reshard", "to_piece", "as_piece"];

/// Whether an op does nothing but compute its results from its operands.
fn is_pure(op: &Op) -> bool {
    match op.parts() {
        ("builtin", "combine" | "split" | "slice") => true,
        ("pd_op", "fetch" | "data") => false,
        ("pd_op", "if" | "while" | "pylayer") => {
            let ops = op.regions.iter().flat_map(|region| &region.blocks).flat_map(|block| &block.ops);
            ops.into_iter().all(|op| op.is("cf", "yield") || is_pure(op))
        }
        ("pd_op", name) => signature(name).is_some() && !name.ends_with('_'),
        (DIALECT, name) => !MOVES.contains(&name),
        _ => false,
    }
}

/// Whether an op gives the same results for the same operands.
fn is_repeatable(op: &Op) -> bool {
    let random =
        op.is("pd_op", "dropout") && op.attr("is_test").and_then(|node| node.as_bool()) != Some(true);
    is_pure(op) && op.regions.is_empty() && !random
}

/// Values whose memory some op writes to: what is read of them depends on when.
fn overwritten(program: &Program) -> HashSet<ValueId> {
    let mut written = HashSet::new();
    program.visit(&mut |op| {
        let (dialect, name) = op.parts();
        let pairs = if dialect == "pd_op" { aliases(name) } else { Vec::new() };
        for (result, operand) in pairs {
            written.extend(op.results.get(result).map(|value| value.id));
            written.extend(op.operands.get(operand));
        }
    });
    written
}

/// Reads other values in the place of some, in a region and all below it.
fn replace(region: &mut Region, with: &HashMap<ValueId, ValueId>) {
    for op in region.blocks.iter_mut().flat_map(|block| &mut block.ops) {
        for id in &mut op.operands {
            *id = with.get(id).copied().unwrap_or(*id);
        }
        op.regions.iter_mut().for_each(|region| replace(region, with));
    }
}
