//! The layouts that outputs are expected to have, against which every choice is measured.

use super::choice::{Choice, Place, Role};
use super::decide::{Vote, votes};
use super::price::all_reduce;
use super::{FactorId, FactorKind, Operand, Prefer, Rule};
use crate::layout::Layout;
use crate::mesh::{AxisSet, Coords, Mesh};
use crate::placement::{Placement, Reduce};
use crate::shape::Shape;
use smallvec::SmallVec;

/// A cut that an input has.
#[derive(Clone, Copy)]
struct Wish {
    input: usize,
    vote: Vote,
}

/// What axes do when the inputs are asked in turn: each keeps a cut that some input has, as the rule prefers, if the
/// kernel can work with it. Pending reductions go on where that makes them no dearer. All else is whole.
pub(super) fn expected(rule: &Rule, inputs: &[Operand<'_>], outputs: &[(&Shape, usize)]) -> Choice {
    let mesh = inputs[0].layout.mesh();
    let wishes = wishes(rule, inputs);
    let mut choice = Choice::whole(mesh.naxes());
    for axis in turns(rule, &wishes, mesh.naxes()) {
        let mut mine: SmallVec<[Wish; 4]> = wishes.iter().filter(|w| w.vote.axis == axis).copied().collect();
        mine.sort_by_key(|wish| rank_of(rule, wish));
        if rule.prefer == Prefer::Cheapest && !is_unanimous(&mine, inputs.len()) {
            spread(rule, inputs, &mut choice, axis);
        } else {
            let kept = |choice: &mut Choice, w: &Wish| {
                may_cut(rule, mesh, choice, &wishes, w) && grant(rule, mesh, choice, axis, &w.vote)
            };
            let _ = mine.iter().any(|w| kept(&mut choice, w))
                || mine.iter().any(|w| beside(rule, mesh, &mut choice, axis, w.vote.factor));
        }
    }
    for axis in 0..mesh.naxes() {
        if choice.roles[axis] == Role::Whole {
            choice.roles[axis] = passed(rule, inputs, outputs, &choice, axis);
            if !choice.is_sound(rule, mesh) {
                choice.roles[axis] = Role::Whole;
            }
        }
    }
    choice
}

/// The cuts of the inputs in the order of asking; in products, the finer cut of a factor first.
fn wishes(rule: &Rule, inputs: &[Operand<'_>]) -> Vec<Wish> {
    let mesh = inputs[0].layout.mesh();
    let mut wishes: Vec<(usize, Wish)> = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        for dim in 0..input.layout.shape().ndim() {
            let votes = votes(rule, Place::Input(i), input.layout, dim);
            let parts: usize = votes.iter().map(|vote| mesh.axis_size(vote.axis)).product();
            wishes.extend(votes.into_iter().map(|vote| (parts, Wish { input: i, vote })));
        }
    }
    if rule.prefer == Prefer::Shared {
        wishes.sort_by_key(|(parts, _)| std::cmp::Reverse(*parts));
    }
    wishes.into_iter().map(|(_, wish)| wish).collect()
}

/// The axes in the order in which they choose.
fn turns(rule: &Rule, wishes: &[Wish], naxes: usize) -> SmallVec<[usize; 4]> {
    let mut axes: SmallVec<[usize; 4]> = SmallVec::new();
    let named = if rule.prefer == Prefer::Cheapest { &[] } else { wishes };
    for axis in named.iter().map(|wish| wish.vote.axis).chain(0..naxes) {
        if !axes.contains(&axis) {
            axes.push(axis);
        }
    }
    axes
}

fn is_unanimous(mine: &[Wish], inputs: usize) -> bool {
    mine.len() == inputs && mine.windows(2).all(|pair| pair[0].vote.factor == pair[1].vote.factor)
}

/// In products free factors before reduced ones, those of all inputs before others, then larger ones.
fn rank_of(rule: &Rule, wish: &Wish) -> (bool, usize, usize) {
    let factor = wish.vote.factor;
    match rule.prefer {
        Prefer::First | Prefer::Cheapest => (false, 0, 0),
        Prefer::Shared => {
            let reduced = matches!(rule.factors[factor].kind, FactorKind::Reduce(_));
            let lacking = rule.inputs.iter().filter(|dims| !dims.iter().any(|d| d.contains(&factor))).count();
            (reduced, lacking, usize::MAX - rule.factors[factor].size)
        }
    }
}

/// Moves an axis that cannot stay to another factor of the same output dim, the major ones first.
fn beside(rule: &Rule, mesh: &Mesh, choice: &mut Choice, axis: usize, factor: FactorId) -> bool {
    let shared =
        rule.outputs.iter().flatten().filter(|factors| factors.len() > 1 && factors.contains(&factor));
    let others: SmallVec<[FactorId; 4]> = shared.flatten().copied().filter(|&f| f != factor).collect();
    others.iter().any(|&factor| grant(rule, mesh, choice, axis, &Vote { axis, factor, sections: 1 }))
}

/// False for cuts that leave ranks without work, and for a second input's cut of a factor unless cuts add up evenly.
fn may_cut(rule: &Rule, mesh: &Mesh, choice: &Choice, wishes: &[Wish], wish: &Wish) -> bool {
    let factor = wish.vote.factor;
    let size = rule.factors[factor].size;
    let others: SmallVec<[usize; 4]> = choice.axes_on(factor).map(|(axis, _)| axis).collect();
    let parts = others.iter().fold(mesh.axis_size(wish.vote.axis), |all, &a| all * mesh.axis_size(a));
    let own = |axis: usize| {
        wishes.iter().any(|w| w.input == wish.input && w.vote.axis == axis && w.vote.factor == factor)
    };
    match rule.prefer {
        Prefer::Shared => {
            let lone = others.is_empty() && rule.factors[factor].kind == FactorKind::Free;
            size.is_multiple_of(parts) || lone && size >= parts
        }
        _ => (size >= parts || parts == 1) && others.iter().all(|&axis| own(axis)),
    }
}

/// Gives an axis a cut if the kernel can work with it.
fn grant(rule: &Rule, mesh: &Mesh, choice: &mut Choice, axis: usize, vote: &Vote) -> bool {
    choice.roles[axis] = Role::Cut { factor: vote.factor, sections: vote.sections };
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
    let placements = || inputs.iter().map(|input| input.layout.placements()[axis]);
    let is_pending = |p: Placement| matches!(p, Placement::Partial(_));
    if placements().all(|p| p == Placement::Replicate) || placements().all(is_pending) {
        return;
    }
    let price = |factor: FactorId| -> u128 {
        let one = |(i, input): (usize, &Operand<'_>)| match input.layout.placements()[axis] {
            Placement::Replicate => 0,
            Placement::Shard(shard) if rule.inputs[i][shard.dim].contains(&factor) => 0,
            _ => input.layout.shape().numel() as u128 * input.size as u128,
        };
        inputs.iter().enumerate().map(one).sum()
    };
    let shown = |f: FactorId| rule.outputs.first().is_some_and(|dims| dims.iter().any(|d| d[..] == [f]));
    let fits = |f: &FactorId| {
        choice.axes_on(*f).next().is_none() && shown(*f) && rule.factors[*f].size >= mesh.axis_size(axis)
    };
    let mut free: Vec<FactorId> = (0..rule.factors.len()).filter(fits).collect();
    let is_new = |factor: FactorId| {
        let has = |(i, p): (usize, Placement)| matches!(p, Placement::Shard(s) if rule.inputs[i][s.dim].contains(&factor));
        !placements().enumerate().any(has)
    };
    // Of equals the first that some input has, else the longest.
    let length = |factor: FactorId| if is_new(factor) { rule.factors[factor].size } else { usize::MAX };
    free.sort_by_key(|&factor| (price(factor), std::cmp::Reverse(length(factor))));
    let vote = |factor| Vote { axis, factor, sections: 1 };
    let _ = free.into_iter().any(|factor| grant(rule, mesh, choice, axis, &vote(factor)));
}

/// The way for the pending reductions of an axis, if there is one that makes them no dearer.
fn passed(
    rule: &Rule,
    inputs: &[Operand<'_>],
    outputs: &[(&Shape, usize)],
    choice: &Choice,
    axis: usize,
) -> Role {
    let mesh = inputs[0].layout.mesh();
    let origin = Coords::from_elem(0, mesh.naxes());
    let price = |layout: &Layout, size: usize| {
        let numel = layout.piece_at(&origin).numel() as u128;
        all_reduce(mesh, AxisSet::EMPTY.with(axis), numel) * size as u128
    };
    let output = |o: usize| choice.layout(rule, mesh, outputs[o].0, Place::Output(o));
    let pending = |i: usize| inputs[i].layout.reduce(axis);
    let first = (0..inputs.len()).find_map(pending);
    let suits = |group: &super::Through, reduce: Reduce| {
        let fits = |i: usize| match inputs[i].layout.placements()[axis] {
            Placement::Replicate => true,
            Placement::Partial(r) => r == reduce && group.inputs.contains(&i),
            Placement::Shard(_) => false,
        };
        let held = (0..inputs.len()).filter(|&i| pending(i).is_some());
        let now = held.map(|i| price(inputs[i].layout, inputs[i].size));
        let later = group.outputs.iter().map(|&o| price(&output(o), outputs[o].1));
        group.reduces.contains(&reduce) && (0..inputs.len()).all(fits) && later.sum::<u128>() <= now.sum()
    };
    let found = first.and_then(|r| rule.through.iter().position(|t| suits(t, r)).map(|group| (group, r)));
    found.map_or(Role::Whole, |(group, reduce)| Role::Pass { group, reduce })
}
