//! Removes ops whose results nothing reads.

use super::is_pure;
use crate::program::{Block, Op, Program, Region, ValueId};
use std::collections::HashSet;
use std::sync::Arc;

/// Removes ops whose results nothing reads, and says how many. Parameters and inputs stay: files and callers name them.
pub fn remove_dead(program: &mut Program) -> usize {
    let before = program.op_count();
    let mut used = HashSet::new();
    for block in &mut Arc::make_mut(&mut program.body).blocks {
        sweep(block, &mut used);
    }
    before - program.op_count()
}

fn sweep(block: &mut Block, used: &mut HashSet<ValueId>) {
    let mut kept: Vec<Op> = Vec::with_capacity(block.ops.len());
    for mut op in std::mem::take(&mut block.ops).into_iter().rev() {
        let needed = !is_pure(&op) || op.results.iter().any(|value| used.contains(&value.id));
        if !needed {
            continue;
        }
        used.extend(&op.operands);
        for region in &mut op.regions {
            below(region, used);
        }
        kept.push(op);
    }
    kept.reverse();
    block.ops = kept;
}

fn below(region: &mut Region, used: &mut HashSet<ValueId>) {
    region.blocks.iter_mut().for_each(|block| sweep(block, used));
}
