//! Removes ops whose results nothing reads.

use super::is_pure;
use crate::program::{Block, Op, Program, Region, ValueId};
use crate::run::ProgramState;
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

/// Removes parameters that nothing reads, from a program and from what it holds, and says how many: those of parts of a model
/// that the program is not about.
pub fn remove_unread(program: &mut Program, state: &mut ProgramState) -> usize {
    let mut used = HashSet::new();
    program.visit(&mut |op| used.extend(op.operands.iter().copied()));
    let mut removed = 0;
    for block in &mut Arc::make_mut(&mut program.body).blocks {
        block.ops.retain(|op| match &op.parameter {
            Some(parameter) if op.results.iter().all(|value| !used.contains(&value.id)) => {
                state.remove(&parameter.name);
                removed += 1;
                false
            }
            _ => true,
        });
    }
    removed
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
