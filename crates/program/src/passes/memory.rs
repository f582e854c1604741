//! Which values share memory over time, and how much of it a run needs, known before it runs.

use crate::native::{DIALECT, tensor_op};
use crate::program::{Op, Program, ValueId};
use crate::types::tensor_type;
use std::collections::{BTreeMap, HashMap};

/// Where in one block of memory each value lies while it lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes of the block.
    pub peak: u64,
    /// Bytes of what the program holds and is given, which lie elsewhere.
    pub held: u64,
    /// Values, in the order they are made.
    pub slots: Vec<Slot>,
}

/// One value in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The value.
    pub value: ValueId,
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The op that makes it, counted in the main block.
    pub from: usize,
    /// The last op that reads it, or what it shows.
    pub to: usize,
}

/// Bytes between the beginnings of values.
const ALIGNED: u64 = 64;

/// Plans a program of known extents: values that do not live at the same time share bytes. Views of values take none.
/// None where an extent is not known.
pub fn plan_memory(program: &Program) -> Option<MemoryPlan> {
    let block = program.block()?;
    let mut roots: HashMap<ValueId, ValueId> = HashMap::new();
    let mut lives: BTreeMap<ValueId, Slot> = BTreeMap::new();
    let mut plan = MemoryPlan::default();
    for (at, op) in block.ops.iter().enumerate() {
        for id in &op.operands {
            let root = roots.get(id).copied().unwrap_or(*id);
            if let Some(slot) = lives.get_mut(&root) {
                slot.to = if op.is("pd_op", "fetch") { block.ops.len() } else { at };
            }
        }
        for value in &op.results {
            let bytes = bytes_of(&value.ty)?;
            let given = op.held().is_some() || op.is("pd_op", "data");
            if let Some(of) = shown(op) {
                roots.insert(value.id, roots.get(&of).copied().unwrap_or(of));
            } else if given {
                plan.held += bytes;
            } else {
                lives.insert(value.id, Slot { value: value.id, offset: 0, bytes, from: at, to: at });
            }
        }
    }
    let mut slots: Vec<Slot> = lives.into_values().collect();
    slots.sort_by_key(|slot| (slot.from, slot.value));
    for at in 0..slots.len() {
        let own = slots[at];
        let beside = slots[..at].iter().filter(|other| other.to >= own.from).copied();
        slots[at].offset = first_gap(beside.collect(), own.bytes);
        plan.peak = plan.peak.max(slots[at].offset + own.bytes);
    }
    plan.slots = slots;
    Some(plan)
}

/// The first place where so many bytes lie beside others.
fn first_gap(mut beside: Vec<Slot>, bytes: u64) -> u64 {
    beside.sort_by_key(|slot| slot.offset);
    let mut at = 0u64;
    for slot in beside {
        if at + bytes <= slot.offset {
            break;
        }
        at = at.max((slot.offset + slot.bytes).next_multiple_of(ALIGNED));
    }
    at
}

fn bytes_of(ty: &crate::node::Node) -> Option<u64> {
    let ty = tensor_type(ty)?;
    ty.numel()?.checked_mul(ty.element.size() as u64)
}

/// The operand whose memory the results of an op show.
fn shown(op: &Op) -> Option<ValueId> {
    let view = match op.parts() {
        (DIALECT, _) => tensor_op(op).is_some_and(|known| known.is_view()),
        ("pd_op", "fetch") => true,
        _ => false,
    };
    op.operands.first().copied().filter(|_| view)
}
