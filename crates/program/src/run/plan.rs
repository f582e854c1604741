//! Which values share memory, and where each is used last.

use crate::error::{Error, Result};
use crate::ops::aliases;
use crate::program::{Block, Op, Program, Region, ValueId};
use std::collections::{HashMap, HashSet};

/// What is known of a program's values before it runs.
pub(super) struct Plan {
    /// The value whose memory a result of an in-place op is written to.
    roots: HashMap<ValueId, ValueId>,
    /// Values that are read after an op for the last time, by the op's first result or address.
    last: HashMap<*const Op, Vec<ValueId>>,
    used: HashSet<ValueId>,
}

impl Plan {
    pub(super) fn new(program: &Program) -> Result<Plan> {
        let mut plan = Plan { roots: HashMap::new(), last: HashMap::new(), used: HashSet::new() };
        let mut failed = None;
        program.visit(&mut |op| {
            if let Some(place) = plan.share(op) {
                failed.get_or_insert(place);
            }
        });
        if let Some(place) = failed {
            let what = "an operand is missing that it writes to".to_string();
            return Err(Error::Run { place, what });
        }
        for held in program.held() {
            plan.used.insert(plan.root(held.value.id));
        }
        // What outlives the run is never freed.
        let kept: HashSet<ValueId> = plan.used.clone();
        program.body.blocks.iter().for_each(|block| plan.block(block, &kept));
        Ok(plan)
    }

    fn share(&mut self, op: &Op) -> Option<String> {
        let (dialect, name) = op.parts();
        if dialect != "pd_op" {
            return None;
        }
        for (result, operand) in aliases(name) {
            let (Some(result), Some(operand)) = (op.results.get(result), op.operands.get(operand)) else {
                return Some(op.place());
            };
            if !operand.is_absent() {
                let root = self.root(*operand);
                self.roots.insert(result.id, root);
            }
        }
        None
    }

    /// The value under whose id the memory is kept.
    pub(super) fn root(&self, id: ValueId) -> ValueId {
        self.roots.get(&id).copied().unwrap_or(id)
    }

    /// Whether anything reads the value.
    pub(super) fn is_used(&self, id: ValueId) -> bool {
        self.used.contains(&self.root(id))
    }

    /// Values that nothing reads after this op.
    pub(super) fn last_uses(&self, op: &Op) -> Vec<ValueId> {
        self.last.get(&std::ptr::from_ref(op)).cloned().unwrap_or_default()
    }

    fn block(&mut self, block: &Block, kept: &HashSet<ValueId>) {
        let mut own: HashSet<ValueId> = block.args.iter().map(|arg| arg.id).collect();
        own.extend(block.ops.iter().flat_map(|op| &op.results).map(|value| self.root(value.id)));
        let mut seen: HashSet<ValueId> = kept.clone();
        for op in block.ops.iter().rev() {
            let mut read = Vec::new();
            reads(op, &mut read);
            let mut last = Vec::new();
            let fetched = op.is("pd_op", "fetch") || op.is("cf", "yield");
            for id in read {
                let id = self.root(id);
                self.used.insert(id);
                // What a program answers is asked for after its last op.
                if seen.insert(id) && own.contains(&id) && !fetched {
                    last.push(id);
                }
            }
            if !last.is_empty() {
                self.last.insert(op, last);
            }
            for region in &op.regions {
                region.blocks.iter().for_each(|block| self.block(block, kept));
            }
        }
    }
}

/// Values that an op and its regions read.
fn reads(op: &Op, into: &mut Vec<ValueId>) {
    into.extend(op.operands.iter().filter(|id| !id.is_absent()));
    for region in &op.regions {
        inside(region, into);
    }
}

fn inside(region: &Region, into: &mut Vec<ValueId>) {
    region.blocks.iter().flat_map(|block| &block.ops).for_each(|op| reads(op, into));
}
