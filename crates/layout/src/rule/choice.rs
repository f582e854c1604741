//! What every mesh axis does in one op, and the layouts that follow from it.

use super::{Cuts, FactorId, FactorKind, Rule};
use crate::cut::{Split, Splits};
use crate::layout::Layout;
use crate::mesh::Mesh;
use crate::placement::Reduce;
use crate::shape::Shape;
use smallvec::SmallVec;

/// Most sections that a dim of several factors may be cut into: plans grow with them.
const MAX_SECTIONS: usize = 1024;

/// What one mesh axis does in an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Every coordinate does the same.
    Whole,
    /// The coordinates share out a factor.
    Cut { factor: FactorId, sections: usize },
    /// A pending reduction goes through.
    Pass { group: usize, reduce: Reduce },
}

/// One role per axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) roles: SmallVec<[Role; 4]>,
    /// The axes that cut, major first within each factor.
    pub(super) order: SmallVec<[usize; 4]>,
}

/// A tensor of the op.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Input(usize),
    Output(usize),
}

impl Choice {
    pub(super) fn whole(naxes: usize) -> Choice {
        Choice { roles: SmallVec::from_elem(Role::Whole, naxes), order: SmallVec::new() }
    }

    /// The axes on a factor, major first, with their sections.
    pub(super) fn axes_on(&self, factor: FactorId) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.order.iter().filter_map(move |&axis| match self.roles[axis] {
            Role::Cut { factor: f, sections } if f == factor => Some((axis, sections)),
            _ => None,
        })
    }

    /// The cuts of a dim made of these factors, major first.
    ///
    /// What lies inside the whole part of a major factor is repeated, so a minor factor is cut in sections.
    pub(super) fn splits(&self, rule: &Rule, mesh: &Mesh, factors: &[FactorId]) -> Splits {
        let mut splits = Splits::new();
        let mut repeats = 1usize;
        for &factor in factors {
            let mut left = rule.factors[factor].size;
            for (axis, sections) in self.axes_on(factor) {
                let size = mesh.axis_size(axis);
                splits.push(Split { axis, size, sections: sections.saturating_mul(repeats.max(1)) });
                left /= size;
            }
            repeats = repeats.saturating_mul(left);
        }
        splits
    }

    /// The layout of a tensor under this choice.
    pub(super) fn layout(&self, rule: &Rule, mesh: &Mesh, shape: &Shape, place: Place) -> Layout {
        let cuts = rule.dims(place).iter().map(|factors| self.splits(rule, mesh, factors)).collect();
        Layout::from_cuts(mesh, shape, cuts, |axis| self.pending(rule, axis, place))
    }

    /// The reduction that a tensor waits for on an axis.
    pub(super) fn pending(&self, rule: &Rule, axis: usize, place: Place) -> Option<Reduce> {
        match (self.roles[axis], place) {
            (Role::Whole, _) => None,
            (Role::Pass { group, reduce }, Place::Input(i)) => {
                rule.through[group].inputs.contains(&i).then_some(reduce)
            }
            (Role::Pass { group, reduce }, Place::Output(i)) => {
                rule.through[group].outputs.contains(&i).then_some(reduce)
            }
            (Role::Cut { factor, .. }, _) => {
                let FactorKind::Reduce(reduce) = rule.factors[factor].kind else { return None };
                let counted = match place {
                    Place::Input(i) => rule.once.iter().any(|o| o.factor == factor && o.input == i),
                    Place::Output(_) => !rule.has(place, factor),
                };
                counted.then_some(reduce)
            }
        }
    }

    /// True when the local kernel gives the right answer under this choice.
    pub(super) fn is_sound(&self, rule: &Rule, mesh: &Mesh) -> bool {
        let cut = |role: &Role| if let Role::Cut { factor, .. } = role { Some(*factor) } else { None };
        let mut factors: SmallVec<[FactorId; 4]> = self.roles.iter().filter_map(cut).collect();
        factors.sort_unstable();
        factors.dedup();
        factors.iter().all(|&f| self.suits_kernel(rule, mesh, f) && self.suits_dims(rule, mesh, f))
            && self.reductions_agree(rule)
    }

    /// The cuts of a factor are of the kind that its declaration allows.
    fn suits_kernel(&self, rule: &Rule, mesh: &Mesh, factor: FactorId) -> bool {
        let declared = rule.factors[factor];
        let (mut parts, mut sections, mut axes) = (1usize, 1usize, 0);
        for (axis, s) in self.axes_on(factor) {
            parts = parts.saturating_mul(mesh.axis_size(axis));
            sections = sections.saturating_mul(s);
            axes += 1;
        }
        let even = declared.size.is_multiple_of(parts.saturating_mul(sections));
        let nobody_empty = axes == 1 && sections == 1 && {
            let chunk = declared.size.div_ceil(parts);
            (parts - 1).saturating_mul(chunk) < declared.size
        };
        let suits_kind = match declared.kind {
            // Averages of unequal parts do not average; extremes of nothing do not exist.
            FactorKind::Reduce(Reduce::Avg) => even,
            FactorKind::Reduce(Reduce::Max | Reduce::Min) => nobody_empty || even && declared.size > 0,
            _ => true,
        };
        let suits_cuts = match declared.cuts {
            Cuts::Any => true,
            Cuts::Windows => sections == 1,
            Cuts::Even => sections == 1 && even,
            Cuts::Whole => parts == 1,
        };
        suits_kind && suits_cuts && (even || !rule.is_composed(factor))
    }

    /// The factor stands once in a tensor, in some input, and its cuts can be written down.
    fn suits_dims(&self, rule: &Rule, mesh: &Mesh, factor: FactorId) -> bool {
        let mut known = false;
        for (is_input, dims) in rule.tensors() {
            let mut uses = 0;
            for factors in dims.iter().filter(|factors| factors.contains(&factor)) {
                uses += factors.iter().filter(|&&f| f == factor).count();
                if factors.len() > 1 {
                    let splits = self.splits(rule, mesh, factors);
                    let sections = splits.iter().fold(1usize, |all, s| all.saturating_mul(s.sections));
                    if sections > MAX_SECTIONS {
                        return false;
                    }
                }
            }
            if uses > 1 {
                return false;
            }
            known |= is_input && uses == 1;
        }
        known
    }

    /// No tensor waits for two reductions whose order matters.
    fn reductions_agree(&self, rule: &Rule) -> bool {
        let axes = 0..self.roles.len();
        let alike = |place: Place| {
            let mut reduces = axes.clone().filter_map(|axis| self.pending(rule, axis, place));
            let Some(first) = reduces.next() else { return true };
            reduces.all(|reduce| reduce.commutes_with(first))
        };
        let inputs = (0..rule.inputs.len()).map(Place::Input);
        let mut places = inputs.chain((0..rule.outputs.len()).map(Place::Output));
        self.roles.iter().filter(|role| **role != Role::Whole).count() < 2 || places.all(alike)
    }
}

impl Rule {
    pub(super) fn dims(&self, place: Place) -> &[super::DimFactors] {
        match place {
            Place::Input(i) => &self.inputs[i],
            Place::Output(i) => &self.outputs[i],
        }
    }

    /// True when a dim of the tensor is made of the factor.
    pub(super) fn has(&self, place: Place, factor: FactorId) -> bool {
        self.dims(place).iter().any(|factors| factors.contains(&factor))
    }

    /// The dims of every tensor; true for inputs.
    fn tensors(&self) -> impl Iterator<Item = (bool, &Vec<super::DimFactors>)> {
        self.inputs.iter().map(|dims| (true, dims)).chain(self.outputs.iter().map(|dims| (false, dims)))
    }

    /// True when the factor shares a dim with another one somewhere.
    fn is_composed(&self, factor: FactorId) -> bool {
        let shared = |factors: &super::DimFactors| factors.len() > 1 && factors.contains(&factor);
        self.tensors().any(|(_, dims)| dims.iter().any(shared))
    }
}
