//! Prices for comparing choices: inputs brought there, what the kernel sends itself, outputs settled.

use super::choice::{Choice, Place, Role};
use super::{Decision, Exchange, FactorId, Operand, Rule, Terms};
use crate::error::Result;
use crate::layout::Layout;
use crate::mesh::{AxisSet, Coords, Mesh};
use crate::placement::Placement;
use crate::route::{Collective, Route, named_price};
use crate::shape::Shape;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::collections::HashMap;

/// What an op costs: bytes that leave a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Price {
    /// To bring the inputs to where the kernel takes them.
    pub moved: u64,
    /// What the kernel sends itself.
    pub exchanged: u64,
    /// To bring the outputs to where they are wanted or, where nobody says, to end their pending reductions in the
    /// cheapest way.
    pub settled: u64,
}

impl Price {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.moved.saturating_add(self.exchanged).saturating_add(self.settled)
    }
}

/// What decides between choices, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Bytes of the whole op.
    pub(super) total: u128,
    /// Bytes to bring the outputs to where they are expected.
    pub(super) debt: u128,
    /// Bytes sent before the outputs are there.
    pub(super) now: u128,
    /// Inputs that communicate.
    pub(super) moves: usize,
    /// Bytes of the outputs on one rank.
    pub(super) held: u128,
}

/// Ranks looked at to see how much of two pieces is the same.
const SAMPLES: usize = 16;

/// Bytes that a rank sends to go from one layout to another on the same mesh: what the cheapest route costs when
/// everything divides, and close to it otherwise.
pub(super) fn bytes(from: &Layout, to: &Layout, size: usize) -> u128 {
    match named_price(from, to, size) {
        // Several pending axes may be reduced in turn.
        None | Some((Collective::AllReduce, _)) => estimate(from, to, size),
        Some((_, cost)) => cost.bytes.into(),
    }
}

/// The same by what is missing where, for steps without a name.
fn estimate(from: &Layout, to: &Layout, size: usize) -> u128 {
    let mesh = from.mesh();
    let ended: AxisSet = from.partial_axes().iter().filter(|&a| from.reduce(a) != to.reduce(a)).collect();
    let elements = if mesh.span(ended) == 1 {
        missing(from, to)
    } else {
        // Axes with copies slice first; then a reduce-scatter, and what is still missing is gathered.
        let slices = |a: &usize| {
            let both = (from.placements()[*a], to.placements()[*a]);
            matches!(both, (Placement::Replicate, Placement::Shard(_)))
        };
        let (held, target) = (largest(from), largest(to));
        let sliced: AxisSet = from.replicated_axes().iter().filter(slices).collect();
        let held = held.div_ceil(mesh.span(sliced) as u128);
        let group = mesh.span(ended) as u128;
        let share = held.div_ceil(group);
        let scattered = (group - 1) * share + target.saturating_sub(share);
        scattered.min(all_reduce(mesh, ended, held) + target.saturating_sub(held))
    };
    elements * size as u128
}

/// Elements of the piece that no other exceeds.
fn largest(layout: &Layout) -> u128 {
    layout.piece_at(&Coords::from_elem(0, layout.mesh().naxes())).numel() as u128
}

/// Elements of its new piece that a rank does not hold, on average and rounded up.
fn missing(from: &Layout, to: &Layout) -> u128 {
    let mesh = from.mesh();
    let count = mesh.size().min(SAMPLES);
    // Of what becomes a pending sum or product, all but the first ranks have the neutral element.
    let filled = |axis: &usize| {
        to.reduce(*axis).is_some_and(|r| from.reduce(*axis) != Some(r) && r.neutral().is_some())
    };
    let filled: AxisSet = to.partial_axes().iter().filter(filled).collect();
    let one = |sample: usize| {
        let coords = mesh.coords_at(sample * mesh.size() / count);
        if filled.iter().any(|axis| coords[axis] != 0) {
            return 0;
        }
        let (mine, wanted) = (from.piece_at(&coords), to.piece_at(&coords));
        (wanted.numel() - mine.overlap(&wanted)) as u128
    };
    (0..count).map(one).sum::<u128>().div_ceil(count as u128)
}

/// Elements that a rank sends to reduce `numel` of them in a group at once.
fn reduced_at_once(group: u128, numel: u128) -> u128 {
    (group - 1) * numel.min(2 * numel.div_ceil(group))
}

/// Elements that a rank sends to reduce `numel` of them along some axes, at once or axis by axis.
pub(super) fn all_reduce(mesh: &Mesh, axes: AxisSet, numel: u128) -> u128 {
    let in_turn: u128 = axes.iter().map(|axis| reduced_at_once(mesh.axis_size(axis) as u128, numel)).sum();
    reduced_at_once(mesh.span(axes) as u128, numel).min(in_turn)
}

/// Bytes that a rank sends where a kernel reduces `bytes` of its own along some axes.
pub fn exchanged_bytes(mesh: &Mesh, axes: AxisSet, numel: usize, size: usize) -> u64 {
    clip(reduced_at_once(mesh.span(axes) as u128, numel as u128) * size as u128)
}

/// Bytes that a rank sends to end the pending reductions of a layout in the cheapest way: scattered over a dim, or
/// whole everywhere.
pub fn settlement(layout: &Layout, size: usize) -> u128 {
    let (mesh, axes) = (layout.mesh(), layout.partial_axes());
    let group = mesh.span(axes) as u128;
    if group == 1 {
        return 0;
    }
    let extents = layout.piece_at(&Coords::from_elem(0, mesh.naxes())).extents();
    let numel: u128 = extents.iter().map(|&n| n as u128).product();
    let cut = |&n: &usize| (group - 1) * (n as u128).div_ceil(group) * (numel / (n as u128).max(1));
    let scattered = extents.iter().map(cut).min().unwrap_or(u128::MAX);
    scattered.min(all_reduce(mesh, axes, numel)) * size as u128
}

pub(super) fn clip(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// What one tensor of the op costs under a choice.
#[derive(Clone, Copy, Debug, Default)]
struct Quote {
    sent: u128,
    debt: u128,
    held: u128,
}

/// What a choice says about one tensor: its place, then per axis a cut or a pending reduction.
type Code = SmallVec<[u64; 6]>;

/// An op whose choices are priced. What a choice says about one tensor, others say too, so prices are kept.
pub(super) struct Pricing<'a> {
    pub(super) rule: &'a Rule,
    pub(super) inputs: &'a [Operand<'a>],
    pub(super) outputs: &'a [(&'a Shape, usize)],
    pub(super) terms: &'a Terms<'a>,
    /// What the outputs are expected to have.
    pub(super) expected: Vec<Layout>,
    /// Per tensor, inputs first, which factors it has.
    has: Vec<Vec<bool>>,
    known: RefCell<HashMap<Code, Quote>>,
}

impl<'a> Pricing<'a> {
    pub(super) fn new(
        rule: &'a Rule,
        inputs: &'a [Operand<'a>],
        outputs: &'a [(&'a Shape, usize)],
        terms: &'a Terms<'a>,
    ) -> Pricing<'a> {
        let places = (0..rule.inputs.len()).map(Place::Input);
        let has = places.chain((0..rule.outputs.len()).map(Place::Output));
        let of = |place| (0..rule.factors.len()).map(|f| rule.has(place, f)).collect();
        let has = has.map(of).collect();
        let (expected, known) = (Vec::new(), RefCell::default());
        Pricing { rule, inputs, outputs, terms, expected, has, known }
    }

    /// From now on debts are counted towards where the outputs are wanted, or to where this choice puts them.
    pub(super) fn expect(&mut self, choice: &Choice) {
        let made = |i| self.layout(choice, Place::Output(i));
        let one = |i| self.terms.wish(i).cloned().unwrap_or_else(|| made(i));
        self.expected = (0..self.outputs.len()).map(one).collect();
        self.known.borrow_mut().clear();
    }

    pub(super) fn mesh(&self) -> &'a Mesh {
        self.inputs[0].layout.mesh()
    }

    /// The price of a choice, by estimates.
    pub(super) fn key(&self, choice: &Choice) -> Key {
        let mut key = Key { total: 0, debt: 0, now: self.exchanged(choice), moves: 0, held: 0 };
        for i in 0..self.inputs.len() {
            let sent = self.quote(choice, Place::Input(i)).sent;
            key.now += sent;
            key.moves += usize::from(sent > 0);
        }
        key.total = key.now;
        for i in 0..self.outputs.len() {
            let quote = self.quote(choice, Place::Output(i));
            key.total += quote.sent;
            key.debt += quote.debt;
            key.held += quote.held;
        }
        key
    }

    /// Bytes that the kernel sends itself.
    fn exchanged(&self, choice: &Choice) -> u128 {
        let one = |exchange: &Exchange| {
            let axes: AxisSet =
                exchange.over.iter().flat_map(|&f| choice.axes_on(f).map(|(axis, _)| axis)).collect();
            let group = self.mesh().span(axes);
            if group == 1 {
                return 0;
            }
            let numel = exchange.dims.iter().map(|&f| self.local_size(choice, f)).product();
            reduced_at_once(group as u128, numel) * exchange.size as u128
        };
        self.rule.exchanges.iter().map(one).sum()
    }

    /// The most that a rank has of a factor.
    fn local_size(&self, choice: &Choice, factor: FactorId) -> u128 {
        let parts = |size: usize, (axis, _): (usize, usize)| size.div_ceil(self.mesh().axis_size(axis));
        choice.axes_on(factor).fold(self.rule.factors[factor].size, parts) as u128
    }

    fn quote(&self, choice: &Choice, place: Place) -> Quote {
        let code = self.code(choice, place);
        if let Some(known) = self.known.borrow().get(&code) {
            return *known;
        }
        let quote = match place {
            Place::Input(i) => {
                let wanted = self.layout(choice, place);
                let sent = bytes(self.inputs[i].layout, &wanted, self.inputs[i].size);
                Quote { sent, ..Quote::default() }
            }
            Place::Output(i) => {
                let (layout, size) = (self.layout(choice, place), self.outputs[i].1);
                let sent = match self.terms.wish(i) {
                    Some(wish) => bytes(&layout, wish, size),
                    None => settlement(&layout, size),
                };
                let debt = self.expected.get(i).map_or(0, |expected| bytes(&layout, expected, size));
                Quote { sent, debt, held: largest(&layout) * size as u128 }
            }
        };
        self.known.borrow_mut().insert(code, quote);
        quote
    }

    fn code(&self, choice: &Choice, place: Place) -> Code {
        let number = match place {
            Place::Input(i) => i,
            Place::Output(i) => self.inputs.len() + i,
        };
        let mut code: Code = SmallVec::with_capacity(choice.roles.len() + 1);
        code.push(number as u64);
        for (axis, role) in choice.roles.iter().enumerate() {
            code.push(match role {
                Role::Whole => 0,
                Role::Cut { factor, sections } if self.has[number][*factor] => {
                    let place = choice.order.iter().position(|a| a == &axis).unwrap_or(0);
                    1 + ((*factor as u64) << 40 | (*sections as u64) << 8 | place as u64)
                }
                _ => choice.pending(self.rule, axis, place).map_or(0, |r| u64::MAX - r as u64),
            });
        }
        code
    }

    fn shape(&self, place: Place) -> &Shape {
        match place {
            Place::Input(i) => self.inputs[i].layout.shape(),
            Place::Output(i) => self.outputs[i].0,
        }
    }

    pub(super) fn layout(&self, choice: &Choice, place: Place) -> Layout {
        choice.layout(self.rule, self.mesh(), self.shape(place), place)
    }

    /// The layouts that follow from a choice, and what they cost by their routes.
    pub(super) fn decision(&self, choice: &Choice) -> Result<Decision> {
        let inputs: Vec<Layout> =
            (0..self.inputs.len()).map(|i| self.layout(choice, Place::Input(i))).collect();
        let outputs: Vec<Layout> =
            (0..self.outputs.len()).map(|i| self.layout(choice, Place::Output(i))).collect();
        let mut price = Price { exchanged: clip(self.exchanged(choice)), ..Price::default() };
        for (input, to) in self.inputs.iter().zip(&inputs) {
            price.moved = price.moved.saturating_add(routed(input.layout, to, input.size)?);
        }
        for (i, (from, (_, size))) in outputs.iter().zip(self.outputs).enumerate() {
            let sent = match self.terms.wish(i) {
                Some(wish) => routed(from, wish, *size)?,
                None => clip(settlement(from, *size)),
            };
            price.settled = price.settled.saturating_add(sent);
        }
        Ok(Decision { inputs, outputs, price })
    }
}

fn routed(from: &Layout, to: &Layout, size: usize) -> Result<u64> {
    Ok(if from == to { 0 } else { Route::find(from, to, size)?.cost().bytes })
}
