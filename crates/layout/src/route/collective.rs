//! What a single step from one layout to another is, and what it costs.

use crate::cut::Split;
use crate::error::Result;
use crate::layout::Layout;
use crate::mesh::AxisSet;
use crate::plan::check_shapes;
use crate::reshard::demand;
use smallvec::SmallVec;
use std::fmt;

/// Ranks looked at to price point-to-point moves; more do not change the choice of a route.
const SAMPLES: usize = 64;

/// The ways data can go from one layout to another in one step, cheapest machinery first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Every rank already has its piece.
    Nothing,
    /// Every rank keeps part of its piece (or fills in neutral elements); nothing is sent.
    Slice,
    /// Every rank of a group gets the pieces of all.
    AllGather,
    /// Contributions are reduced and every rank of a group keeps its cut of the result.
    ReduceScatter,
    /// Every rank of a group sends a different part to every other.
    AllToAll,
    /// Contributions are reduced and every rank of a group gets the result.
    AllReduce,
    /// A rank sends its piece to several others.
    Broadcast,
    /// Any other exchange, box by box between pairs of ranks.
    Moves,
}

impl Collective {
    /// The one text form, as in `all-gather`.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::Nothing => "nothing",
            Collective::Slice => "slice",
            Collective::AllGather => "all-gather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllToAll => "all-to-all",
            Collective::AllReduce => "all-reduce",
            Collective::Broadcast => "broadcast",
            Collective::Moves => "moves",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The price of a step or a route: bytes decide, then messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Cost {
    /// Bytes that leave a rank, averaged over the ranks that send and rounded up.
    pub bytes: u64,
    /// Messages that leave a rank, averaged and rounded up alike.
    pub messages: u64,
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            bytes: self.bytes.saturating_add(other.bytes),
            messages: self.messages.saturating_add(other.messages),
        }
    }
}

/// One step of a reshard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it is.
    pub collective: Collective,
    /// The mesh axes it runs along: groups are [`crate::Mesh::groups`] of them. Empty for steps
    /// between two meshes.
    pub axes: AxisSet,
    /// Layout before.
    pub from: Layout,
    /// Layout after.
    pub to: Layout,
    /// Its price.
    pub cost: Cost,
}

impl Step {
    /// Recognises what it takes to go from one layout to another directly. `size` is the bytes of
    /// one element.
    pub fn recognise(from: &Layout, to: &Layout, size: usize) -> Result<Step> {
        check_shapes(from, to)?;
        let (collective, axes) = if from.mesh() == to.mesh() {
            on_one_mesh(from, to)
        } else {
            (between_meshes(from, to), AxisSet::EMPTY)
        };
        let cost = price(collective, axes, from, to, size as u128);
        Ok(Step { collective, axes, from: from.clone(), to: to.clone(), cost })
    }
}

/// The price of a collective with a name between two layouts on one mesh; nothing for other moves, whose price takes
/// longer to find.
pub(crate) fn named_price(from: &Layout, to: &Layout, size: usize) -> Option<(Collective, Cost)> {
    let (collective, axes) = on_one_mesh(from, to);
    let cost = || (collective, price(collective, axes, from, to, size as u128));
    (collective != Collective::Moves).then(cost)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective)?;
        for axis in self.axes.iter() {
            write!(f, " {}", self.from.mesh().axes()[axis].name)?;
        }
        write!(f, " ({} bytes, {} messages)", self.cost.bytes, self.cost.messages)
    }
}

/// The axes on one dim that matter: those with more than one coordinate.
pub(crate) fn real_cuts(layout: &Layout, dim: usize) -> SmallVec<[Split; 2]> {
    layout.cuts()[dim].iter().copied().filter(|split| split.size > 1).collect()
}

/// Length of the common start of two lists.
pub(crate) fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// How the cuts of two layouts on one mesh differ: axes past the common start of each dim.
struct Change {
    /// Axes taken off some dim.
    off: AxisSet,
    /// Axes put on some dim.
    on: AxisSet,
    /// Some dim loses axes and gets others.
    tangled: bool,
}

fn change(from: &Layout, to: &Layout) -> Change {
    let mut change = Change { off: AxisSet::EMPTY, on: AxisSet::EMPTY, tangled: false };
    for dim in 0..from.shape().ndim() {
        let (a, b) = (real_cuts(from, dim), real_cuts(to, dim));
        let same = common(&a, &b);
        change.off = a[same..].iter().map(|s| s.axis).fold(change.off, AxisSet::with);
        change.on = b[same..].iter().map(|s| s.axis).fold(change.on, AxisSet::with);
        change.tangled |= same < a.len() && same < b.len();
    }
    change
}

fn on_one_mesh(from: &Layout, to: &Layout) -> (Collective, AxisSet) {
    let Change { off, on, tangled } = change(from, to);
    let real = |a: &usize| from.mesh().axis_size(*a) > 1;
    let ended: AxisSet =
        from.partial_axes().iter().filter(real).filter(|&a| from.reduce(a) != to.reduce(a)).collect();
    let begun: AxisSet =
        to.partial_axes().iter().filter(real).filter(|&a| from.reduce(a) != to.reduce(a)).collect();
    // An axis that leaves one role takes up another, so what the other roles do decides the kind.
    let reduces = !ended.is_empty();
    let cuts_change = !off.is_empty() || !on.is_empty();
    if !cuts_change && !reduces && begun.is_empty() {
        (Collective::Nothing, AxisSet::EMPTY)
    } else if off.is_empty() && !reduces {
        (Collective::Slice, on.iter().chain(begun.iter()).collect())
    } else if on.is_empty() && !reduces && begun.is_empty() {
        (Collective::AllGather, off)
    } else if !cuts_change && begun.is_empty() {
        (Collective::AllReduce, ended)
    } else if off.is_empty() && begun.is_empty() && reduces && ended == on {
        (Collective::ReduceScatter, ended)
    } else if off == on && !tangled && !reduces && begun.is_empty() {
        (Collective::AllToAll, off)
    } else {
        (Collective::Moves, off.iter().chain(on.iter()).chain(ended.iter()).chain(begun.iter()).collect())
    }
}

/// Between meshes only copying whole pieces has a name of its own.
fn between_meshes(from: &Layout, to: &Layout) -> Collective {
    let plain = from.partial_axes().is_empty() && to.partial_axes().is_empty();
    let same_grid = (0..from.shape().ndim()).all(|dim| {
        let sizes = |layout| real_cuts(layout, dim).iter().map(|s| (s.size, s.sections)).collect::<Vec<_>>();
        sizes(from) == sizes(to)
    });
    let copies = |layout: &Layout| layout.mesh().span(layout.replicated_axes());
    if plain && same_grid && copies(to) > copies(from) { Collective::Broadcast } else { Collective::Moves }
}

fn price(collective: Collective, axes: AxisSet, from: &Layout, to: &Layout, size: u128) -> Cost {
    let largest = |layout: &Layout| layout.piece_at(&vec![0; layout.mesh().naxes()]).numel() as u128;
    let group = from.mesh().span(axes) as u128;
    let others = group - 1;
    // Recursive doubling and halving; cutting one group into several never needs fewer rounds.
    let rounds = u128::from(group.next_power_of_two().ilog2());
    let (elements, messages) = match collective {
        Collective::Nothing | Collective::Slice => (0, 0),
        Collective::AllGather => (others * largest(from), rounds),
        Collective::ReduceScatter => (others * largest(to), rounds),
        Collective::AllToAll => (others * largest(from).div_ceil(group), others),
        Collective::AllReduce => {
            // Reduce-scatter and all-gather, or whole buffers where that is no more (two ranks).
            let halves = (2 * others * largest(from).div_ceil(group), 2 * rounds);
            halves.min((others * largest(from), others))
        }
        Collective::Broadcast => {
            let copies = |layout: &Layout| layout.mesh().span(layout.replicated_axes()) as u128;
            (largest(from), copies(to).div_ceil(copies(from)))
        }
        Collective::Moves => price_moves(from, to),
    };
    let clip = |x: u128| u64::try_from(x).unwrap_or(u64::MAX);
    Cost { bytes: clip(elements.saturating_mul(size)), messages: clip(messages) }
}

/// Elements and messages per sending rank, from evenly spaced readers.
fn price_moves(from: &Layout, to: &Layout) -> (u128, u128) {
    let readers = to.mesh().size();
    let count = readers.min(SAMPLES);
    let (mut elements, mut messages) = (0u128, 0u128);
    for sample in 0..count {
        let coords = to.mesh().coords_at(sample * readers / count);
        let need = demand(from, to, &coords);
        elements += need.elements as u128;
        messages += need.messages as u128;
    }
    let senders = (count * from.mesh().size()) as u128;
    let per_sender = |total: u128| (total * readers as u128).div_ceil(senders);
    (per_sender(elements), per_sender(messages))
}
