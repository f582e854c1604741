//! The layouts that outputs are expected to have, against which every choice is measured.

use super::choice::{Choice, Role};
use super::decide::{Vote, votes};
use super::{FactorId, Kind, Operand, Prefer, Rule};
use crate::mesh::Mesh;
use crate::placement::Placement;
use smallvec::SmallVec;

/// What axes do when the inputs are asked in turn: each keeps a cut that some input has, as the rule prefers, if the
/// kernel can work with it; the others do nothing.
pub(super) fn expected(rule: &Rule, inputs: &[Operand<'_>]) -> Choice {
    let mesh = inputs[0].layout.mesh();
    let asked = if rule.prefer == Prefer::Lead { 1 } else { inputs.len() };
    let mut wishes: Vec<(usize, Vote)> = Vec::new();
    for (i, input) in inputs.iter().enumerate().take(asked) {
        for dim in 0..input.layout.shape().ndim() {
            wishes.extend(votes(rule, i, input.layout, dim).into_iter().map(|vote| (i, vote)));
        }
    }
    if rule.prefer == Prefer::Shared {
        wishes.sort_by_key(|(_, vote)| std::cmp::Reverse(mesh.axis_size(vote.axis)));
    }
    let mut axes: SmallVec<[usize; 4]> = SmallVec::new();
    for axis in wishes.iter().map(|(_, vote)| vote.axis).chain(0..mesh.naxes()) {
        if !axes.contains(&axis) {
            axes.push(axis);
        }
    }
    let mut choice = Choice::whole(mesh.naxes());
    for axis in axes {
        let mut mine: Vec<Vote> = wishes.iter().map(|w| w.1).filter(|vote| vote.axis == axis).collect();
        mine.sort_by_key(|vote| rank_of(rule, vote.factor));
        let kept = mine.iter().any(|v| grant(rule, mesh, &mut choice, axis, (v.factor, v.sections)));
        if rule.prefer == Prefer::Cheapest && (!kept || !agree(&mine)) {
            choice.roles[axis] = Role::Whole;
            choice.order.retain(|other| *other != axis);
            spread(rule, inputs, &mut choice, axis);
        }
    }
    choice
}

fn agree(votes: &[Vote]) -> bool {
    votes.windows(2).all(|pair| pair[0].factor == pair[1].factor)
}

/// Free factors before reduced ones; in products those of all inputs first, then larger ones.
fn rank_of(rule: &Rule, factor: FactorId) -> (bool, usize, usize) {
    let reduced = matches!(rule.factors[factor].kind, Kind::Reduce(_));
    if rule.prefer != Prefer::Shared {
        return (reduced, 0, 0);
    }
    let lacking = rule.inputs.iter().filter(|dims| !dims.iter().any(|d| d.contains(&factor))).count();
    (reduced, lacking, usize::MAX - rule.factors[factor].size)
}

/// Gives an axis a cut if the kernel can work with it.
fn grant(rule: &Rule, mesh: &Mesh, choice: &mut Choice, axis: usize, cut: (FactorId, usize)) -> bool {
    choice.roles[axis] = Role::Cut { factor: cut.0, sections: cut.1 };
    choice.order.push(axis);
    let sound = choice.is_sound(rule, mesh);
    if !sound {
        choice.roles[axis] = Role::Whole;
        choice.order.pop();
    }
    sound
}

/// Finds an axis the unused factor on which the inputs have to move least.
fn spread(rule: &Rule, inputs: &[Operand<'_>], choice: &mut Choice, axis: usize) {
    let mesh = inputs[0].layout.mesh();
    let is_pending = |input: &Operand<'_>| matches!(input.layout.placements()[axis], Placement::Partial(_));
    if inputs.iter().all(|input| input.layout.placements()[axis] == Placement::Replicate)
        || inputs.iter().all(is_pending)
    {
        return;
    }
    let used = |factor: FactorId| {
        choice.roles.iter().any(|r| matches!(r, Role::Cut { factor: f, .. } if *f == factor))
    };
    let price = |factor: FactorId| -> u128 {
        let one = |(i, input): (usize, &Operand<'_>)| {
            let has = |dim: usize| rule.inputs[i][dim].contains(&factor);
            match input.layout.placements()[axis] {
                Placement::Replicate => 0,
                Placement::Shard(shard) if has(shard.dim) => 0,
                _ => input.layout.shape().numel() as u128 * input.size as u128,
            }
        };
        inputs.iter().enumerate().map(one).sum()
    };
    let shown = |f: FactorId| rule.outputs.first().is_some_and(|dims| dims.iter().any(|d| d.contains(&f)));
    let fits = |f: &FactorId| !used(*f) && shown(*f) && rule.factors[*f].size >= mesh.axis_size(axis);
    let mut free: Vec<FactorId> = (0..rule.factors.len()).filter(fits).collect();
    free.sort_by_key(|&factor| price(factor));
    let _ = free.into_iter().any(|factor| grant(rule, mesh, choice, axis, (factor, 1)));
}
