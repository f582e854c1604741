//! Search for the cheapest choice when the inputs do not agree, or when agreeing has its price.

use super::choice::{Choice, Place, Role};
use super::decide::votes;
use super::expect::expected;
use super::price::{Key, Pricing};
use super::{FactorId, FactorKind, Operand, Rule, Terms};
use crate::placement::Placement;
use smallvec::SmallVec;

/// Combinations of roles that are all tried; beyond this, one axis is improved after the other.
const MAX_COMBINATIONS: usize = 600;

/// Times that all axes are gone through.
const MAX_ROUNDS: usize = 4;

type Roles = SmallVec<[Role; 4]>;
type Order = SmallVec<[usize; 4]>;

/// The op to decide.
struct Search<'a, 'b> {
    pricing: &'a Pricing<'b>,
    /// Per axis, what it may do, the preferred first.
    candidates: Vec<Vec<Role>>,
    /// Orders of cutting axes that some input has, completed with the others.
    orders: Vec<Order>,
    /// Per axis, what it does in some input.
    held: Vec<Vec<Role>>,
}

/// The cheapest so far.
struct Best {
    key: Key,
    choice: Choice,
}

/// The choices that came into question at the end, each with its estimated bytes and the least that any has: the
/// cheapest found, the one that is expected if it is sound, and everything whole.
pub(super) fn finalists(pricing: &mut Pricing<'_>) -> Vec<(u128, u128, Choice)> {
    let (rule, inputs, mesh) = (pricing.rule, pricing.inputs, pricing.mesh());
    let wish = expected(rule, inputs, pricing.outputs);
    pricing.expect(&wish);
    let naxes = mesh.naxes();
    let mut orders = orders(inputs, pricing.terms, naxes);
    orders.insert(0, completed(wish.order.iter().copied(), naxes));
    orders.dedup();
    let roles = |axis| candidates(rule, inputs, pricing.terms, axis, wish.roles[axis]);
    let search = Search {
        pricing,
        candidates: (0..naxes).map(roles).collect(),
        orders,
        held: (0..naxes).map(|axis| held(rule, inputs, pricing.terms, axis)).collect(),
    };
    let all = search.candidates.iter().try_fold(1usize, |all, list| all.checked_mul(list.len()));
    let found = match all.is_some_and(|all| all <= MAX_COMBINATIONS) {
        true => search.every(),
        false => search.descend(&wish.roles),
    };
    let mut list: Vec<Choice> = found.into_iter().map(|best| best.choice).collect();
    for other in [wish, Choice::whole(naxes)] {
        if other.is_sound(rule, mesh) && !list.contains(&other) {
            list.push(other);
        }
    }
    let estimates: Vec<u128> = list.iter().map(|choice| pricing.key(choice).total).collect();
    let least = estimates.iter().copied().min().unwrap_or(0);
    estimates.into_iter().zip(list).map(|(estimate, choice)| (estimate, least, choice)).collect()
}

impl Search<'_, '_> {
    /// Tries every combination.
    fn every(&self) -> Option<Best> {
        let counts: SmallVec<[usize; 6]> = self.candidates.iter().map(Vec::len).collect();
        let mut best = None;
        crate::layout::each_index(&counts, |index| {
            let roles = index.iter().zip(&self.candidates).map(|(&i, list)| list[i]).collect();
            self.consider(&roles, &mut best);
        });
        best
    }

    /// Improves one axis after the other, from everything whole and from what the inputs want most.
    fn descend(&self, wished: &Roles) -> Option<Best> {
        let whole: Roles = self.candidates.iter().map(|_| Role::Whole).collect();
        let mut best: Option<Best> = None;
        for start in [wished.clone(), whole] {
            let mut roles = start;
            let mut here = None;
            self.consider(&roles, &mut here);
            for _ in 0..MAX_ROUNDS {
                if !self.improve(&mut roles, &mut here) {
                    break;
                }
            }
            if here.as_ref().is_some_and(|new| best.as_ref().is_none_or(|old| new.key < old.key)) {
                best = here;
            }
        }
        best
    }

    fn improve(&self, roles: &mut Roles, here: &mut Option<Best>) -> bool {
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

    /// Prices a combination under every useful order; true when it is the best so far, the first of equals.
    fn consider(&self, roles: &Roles, best: &mut Option<Best>) -> bool {
        let mut tried: SmallVec<[Order; 2]> = SmallVec::new();
        let mut improved = false;
        for order in &self.orders {
            let cuts = |axis: &usize| matches!(roles[*axis], Role::Cut { .. });
            let mut order: Order = order.iter().copied().filter(cuts).collect();
            // Only the order within a factor matters; an axis that is new there cuts innermost.
            order.sort_by_key(|&axis| (factor(roles[axis]), !self.held[axis].contains(&roles[axis])));
            if tried.contains(&order) {
                continue;
            }
            tried.push(order.clone());
            let choice = Choice { roles: roles.clone(), order };
            let key = self.pricing.key(&choice);
            let better = best.as_ref().is_none_or(|best| key < best.key);
            if better && choice.is_sound(self.pricing.rule, self.pricing.mesh()) {
                *best = Some(Best { key, choice });
                improved = true;
            }
        }
        improved
    }
}

fn factor(role: Role) -> Option<FactorId> {
    if let Role::Cut { factor, .. } = role { Some(factor) } else { None }
}

/// What an axis may do: what is expected of it; what it does in some input or wanted output, first operand first; let
/// a reduction through; nothing; and where something is cut, a cut of another factor.
fn candidates(rule: &Rule, inputs: &[Operand<'_>], terms: &Terms<'_>, axis: usize, wish: Role) -> Vec<Role> {
    let mut list = vec![wish];
    let mut add = |role: Role| {
        if !list.contains(&role) {
            list.push(role);
        }
    };
    let mut cut = false;
    held(rule, inputs, terms, axis).into_iter().for_each(&mut add);
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
    for wanted in (0..rule.outputs.len()).filter_map(|i| terms.wish(i)) {
        match wanted.placements()[axis] {
            Placement::Replicate => {}
            Placement::Partial(reduce) => {
                let leaves = |f: &FactorId| rule.factors[*f].kind == FactorKind::Reduce(reduce);
                let factors = (0..rule.factors.len()).filter(leaves);
                factors.for_each(|factor| add(Role::Cut { factor, sections: 1 }));
            }
            Placement::Shard(_) => cut = true,
        }
    }
    if cut && inputs[0].layout.mesh().axis_size(axis) > 1 {
        (0..rule.factors.len()).for_each(|factor| add(Role::Cut { factor, sections: 1 }));
    }
    list
}

/// The cuts that an axis makes in some input or wanted output, first operand first.
fn held(rule: &Rule, inputs: &[Operand<'_>], terms: &Terms<'_>, axis: usize) -> Vec<Role> {
    let given = inputs.iter().enumerate().map(|(i, input)| (Place::Input(i), input.layout));
    let wanted = (0..rule.outputs.len()).filter_map(|i| Some((Place::Output(i), terms.wish(i)?)));
    let mut held = Vec::new();
    for (place, layout) in given.chain(wanted) {
        let Placement::Shard(shard) = layout.placements()[axis] else { continue };
        for vote in votes(rule, place, layout, shard.dim).iter().filter(|vote| vote.axis == axis) {
            held.push(Role::Cut { factor: vote.factor, sections: vote.sections });
        }
    }
    held
}

/// For every input and wanted output its axes in the order in which they cut, then the axes of the others alike.
fn orders(inputs: &[Operand<'_>], terms: &Terms<'_>, naxes: usize) -> Vec<Order> {
    let wanted = terms.wishes.iter().filter_map(|wish| *wish);
    let layouts: Vec<_> = inputs.iter().map(|input| input.layout).chain(wanted).collect();
    let cutting = |i: usize| {
        let layout = layouts[i];
        (0..layout.shape().ndim()).flat_map(move |dim| layout.axes_on(dim))
    };
    let mut orders: Vec<Order> = Vec::new();
    for leader in 0..layouts.len() {
        let others = (0..layouts.len()).filter(|&i| i != leader);
        let order = completed(std::iter::once(leader).chain(others).flat_map(cutting), naxes);
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders
}

/// Every axis once, these first.
fn completed(axes: impl Iterator<Item = usize>, naxes: usize) -> Order {
    let mut order: Order = SmallVec::new();
    for axis in axes.chain(0..naxes) {
        if !order.contains(&axis) {
            order.push(axis);
        }
    }
    order
}
