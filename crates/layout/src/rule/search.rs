//! Search for the cheapest choice when the inputs do not agree.

use super::choice::{Choice, Place, Role};
use super::decide::votes;
use super::expect::expected;
use super::price::{Priced, price};
use super::{FactorId, Operand, Rule};
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::placement::Placement;
use crate::shape::Shape;
use smallvec::SmallVec;

/// Combinations of roles that are all tried; beyond this, one axis is improved after the other.
const MAX_COMBINATIONS: usize = 160;

/// Times that all axes are gone through.
const MAX_ROUNDS: usize = 4;

type Roles = SmallVec<[Role; 4]>;

/// The op to decide.
struct Search<'a> {
    rule: &'a Rule,
    inputs: &'a [Operand<'a>],
    outputs: &'a [(&'a Shape, usize)],
    /// Per axis, what it may do, the preferred first.
    candidates: Vec<Vec<Role>>,
    /// Orders of cutting axes that some input has, completed with the others.
    orders: Vec<SmallVec<[usize; 4]>>,
    /// Per axis, what it does in some input.
    held: Vec<Vec<Role>>,
    /// What the outputs should have.
    expected: Vec<Layout>,
    wished: Roles,
}

/// The cheapest choice found, and the expected one if it is sound, with what follows from them.
pub(super) fn cheapest(
    rule: &Rule,
    inputs: &[Operand<'_>],
    outputs: &[(&Shape, usize)],
) -> Option<(Priced, Option<Priced>)> {
    let naxes = inputs[0].layout.mesh().naxes();
    let wish = expected(rule, inputs, outputs);
    let candidates: Vec<Vec<Role>> =
        (0..naxes).map(|axis| candidates(rule, inputs, axis, wish.roles[axis])).collect();
    let mut orders = orders(inputs, naxes);
    orders.insert(0, completed(wish.order.iter().copied(), naxes));
    orders.dedup();
    let search = Search {
        rule,
        inputs,
        outputs,
        candidates,
        orders,
        held: (0..naxes).map(|axis| held(rule, inputs, axis)).collect(),
        expected: expected_outputs(rule, &wish, inputs[0].layout.mesh(), outputs),
        wished: wish.roles.clone(),
    };
    let mesh = inputs[0].layout.mesh();
    let wished = wish.is_sound(rule, mesh).then(|| price(rule, &wish, inputs, outputs, &search.expected));
    let all = search.candidates.iter().try_fold(1usize, |all, list| all.checked_mul(list.len()));
    let found =
        if all.is_some_and(|all| all <= MAX_COMBINATIONS) { search.every() } else { search.descend() };
    found.map(|best| (best, wished))
}

impl Search<'_> {
    /// Tries every combination.
    fn every(&self) -> Option<Priced> {
        let counts: SmallVec<[usize; 6]> = self.candidates.iter().map(Vec::len).collect();
        let mut best = None;
        crate::layout::each_index(&counts, |index| {
            let roles = index.iter().zip(&self.candidates).map(|(&i, list)| list[i]).collect();
            self.consider(&roles, &mut best);
        });
        best
    }

    /// Improves one axis after the other, from everything whole and from what the inputs want most.
    fn descend(&self) -> Option<Priced> {
        let whole: Roles = self.candidates.iter().map(|_| Role::Whole).collect();
        let mut best = None;
        for start in [self.wished.clone(), whole] {
            let mut roles = start;
            let mut here = None;
            self.consider(&roles, &mut here);
            for _ in 0..MAX_ROUNDS {
                if !self.improve(&mut roles, &mut here) {
                    break;
                }
            }
            keep(&mut best, here);
        }
        best
    }

    fn improve(&self, roles: &mut Roles, here: &mut Option<Priced>) -> bool {
        let mut improved = false;
        for axis in 0..roles.len() {
            for &role in &self.candidates[axis] {
                let before = std::mem::replace(&mut roles[axis], role);
                if before == role || !self.consider(roles, here) {
                    roles[axis] = before;
                } else {
                    improved = true;
                }
            }
        }
        improved
    }

    /// Prices a combination under every useful order; true when it is the best so far.
    fn consider(&self, roles: &Roles, best: &mut Option<Priced>) -> bool {
        let mut tried: SmallVec<[SmallVec<[usize; 4]>; 2]> = SmallVec::new();
        let mut improved = false;
        let mesh = self.inputs[0].layout.mesh();
        for order in &self.orders {
            let cuts = |axis: &usize| matches!(roles[*axis], Role::Cut { .. });
            let mut order: SmallVec<[usize; 4]> = order.iter().copied().filter(cuts).collect();
            // Only the order within a factor matters; an axis that is new there cuts innermost.
            order.sort_by_key(|&axis| (factor(roles[axis]), !self.held[axis].contains(&roles[axis])));
            if tried.contains(&order) {
                continue;
            }
            tried.push(order.clone());
            let choice = Choice { roles: roles.clone(), order };
            if choice.is_sound(self.rule, mesh) {
                improved |=
                    keep(best, Some(price(self.rule, &choice, self.inputs, self.outputs, &self.expected)));
            }
        }
        improved
    }
}

fn factor(role: Role) -> Option<FactorId> {
    if let Role::Cut { factor, .. } = role { Some(factor) } else { None }
}

/// Keeps the cheaper one, the first of equals.
fn keep(best: &mut Option<Priced>, found: Option<Priced>) -> bool {
    let better = match (&*best, &found) {
        (_, None) => false,
        (None, _) => true,
        (Some(old), Some(new)) => new.key < old.key,
    };
    if better {
        *best = found;
    }
    better
}

/// The layouts that outputs are expected to have.
pub(super) fn expected_outputs(
    rule: &Rule,
    wish: &Choice,
    mesh: &Mesh,
    outputs: &[(&Shape, usize)],
) -> Vec<Layout> {
    let one = |(i, &(shape, _)): (usize, &(&Shape, usize))| wish.layout(rule, mesh, shape, Place::Output(i));
    outputs.iter().enumerate().map(one).collect()
}

/// What an axis may do: what is expected of it; what it does in some input, first operand first; let a reduction
/// through; nothing; and where some input is cut, a cut of another factor.
fn candidates(rule: &Rule, inputs: &[Operand<'_>], axis: usize, wish: Role) -> Vec<Role> {
    let mut list = vec![wish];
    let mut add = |role: Role| {
        if !list.contains(&role) {
            list.push(role);
        }
    };
    let mut cut = false;
    held(rule, inputs, axis).into_iter().for_each(&mut add);
    for (i, input) in inputs.iter().enumerate() {
        match input.layout.placements()[axis] {
            Placement::Replicate => {}
            Placement::Partial(reduce) => {
                let passes = |t: &super::Through| t.inputs.contains(&i) && t.reduces.contains(&reduce);
                let groups = rule.through.iter().enumerate().filter(|(_, t)| passes(t));
                groups.for_each(|(group, _)| add(Role::Pass { group, reduce }));
            }
            Placement::Shard(_) => cut = true,
        }
    }
    add(Role::Whole);
    if cut && inputs[0].layout.mesh().axis_size(axis) > 1 {
        (0..rule.factors.len()).for_each(|factor| add(Role::Cut { factor, sections: 1 }));
    }
    list
}

/// The cuts that an axis makes in some input, first operand first.
fn held(rule: &Rule, inputs: &[Operand<'_>], axis: usize) -> Vec<Role> {
    let mut held = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let Placement::Shard(shard) = input.layout.placements()[axis] else { continue };
        for vote in votes(rule, i, input.layout, shard.dim).iter().filter(|vote| vote.axis == axis) {
            held.push(Role::Cut { factor: vote.factor, sections: vote.sections });
        }
    }
    held
}

/// For every input its axes in the order in which they cut, then the axes of the other inputs alike.
fn orders(inputs: &[Operand<'_>], naxes: usize) -> Vec<SmallVec<[usize; 4]>> {
    let cutting = |i: usize| {
        let layout = inputs[i].layout;
        (0..layout.shape().ndim()).flat_map(move |dim| layout.axes_on(dim))
    };
    let mut orders: Vec<SmallVec<[usize; 4]>> = Vec::new();
    for leader in 0..inputs.len() {
        let others = (0..inputs.len()).filter(|&i| i != leader);
        let order = completed(std::iter::once(leader).chain(others).flat_map(cutting), naxes);
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders
}

/// Every axis once, these first.
fn completed(axes: impl Iterator<Item = usize>, naxes: usize) -> SmallVec<[usize; 4]> {
    let mut order: SmallVec<[usize; 4]> = SmallVec::new();
    for axis in axes.chain(0..naxes) {
        if !order.contains(&axis) {
            order.push(axis);
        }
    }
    order
}
