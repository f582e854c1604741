//! Prices for comparing choices: what routes cost, without searching for them.

use super::choice::{Choice, Place};
use super::{Operand, Rule};
use crate::layout::Layout;
use crate::mesh::{AxisSet, Coords, Mesh};
use crate::placement::Placement;
use crate::shape::Shape;

/// What decides between choices, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Bytes sent now, and to bring the outputs to where they are expected.
    pub(super) total: u128,
    /// Bytes sent now.
    pub(super) moved: u128,
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
        let origin = Coords::from_elem(0, mesh.naxes());
        let (held, target) = (from.piece_at(&origin).numel() as u128, to.piece_at(&origin).numel() as u128);
        let sliced: AxisSet = from.replicated_axes().iter().filter(slices).collect();
        let held = held.div_ceil(mesh.span(sliced) as u128);
        let group = mesh.span(ended) as u128;
        let share = held.div_ceil(group);
        let scattered = (group - 1) * share + target.saturating_sub(share);
        scattered.min(all_reduce(mesh, ended, held))
    };
    elements * size as u128
}

/// Elements of its new piece that a rank does not hold, on average and rounded up.
fn missing(from: &Layout, to: &Layout) -> u128 {
    let mesh = from.mesh();
    let count = mesh.size().min(SAMPLES);
    let one = |sample: usize| {
        let coords = mesh.coords_at(sample * mesh.size() / count);
        let (mine, wanted) = (from.piece_at(&coords), to.piece_at(&coords));
        (wanted.numel() - mine.overlap(&wanted)) as u128
    };
    (0..count).map(one).sum::<u128>().div_ceil(count as u128)
}

/// Elements that a rank sends to reduce `numel` of them along some axes, at once or axis by axis.
pub(super) fn all_reduce(mesh: &Mesh, axes: AxisSet, numel: u128) -> u128 {
    let once = |group: u128| (group - 1) * numel.min(2 * numel.div_ceil(group));
    let in_turn: u128 = axes.iter().map(|axis| once(mesh.axis_size(axis) as u128)).sum();
    once(mesh.span(axes) as u128).min(in_turn)
}

/// What an op costs under a choice. `None` for inputs that stay as they are.
pub(super) struct Priced {
    pub(super) key: Key,
    pub(super) inputs: Vec<Option<Layout>>,
    pub(super) outputs: Vec<Layout>,
}

/// Builds the layouts and prices them; `expected` are those that the outputs should have.
pub(super) fn price(
    rule: &Rule,
    choice: &Choice,
    inputs: &[Operand<'_>],
    outputs: &[(&Shape, usize)],
    expected: &[Layout],
) -> Priced {
    let mesh = inputs[0].layout.mesh();
    let mut key = Key { total: 0, moved: 0, moves: 0, held: 0 };
    let mut changed = Vec::with_capacity(inputs.len());
    for (i, input) in inputs.iter().enumerate() {
        let wanted = choice.layout(rule, mesh, input.layout.shape(), Place::Input(i));
        let stays = wanted == *input.layout;
        let sent = if stays { 0 } else { bytes(input.layout, &wanted, input.size) };
        key.moved += sent;
        key.moves += usize::from(sent > 0);
        changed.push((!stays).then_some(wanted));
    }
    let origin = Coords::from_elem(0, mesh.naxes());
    let mut made = Vec::with_capacity(outputs.len());
    let mut debt = 0;
    for (i, &(shape, size)) in outputs.iter().enumerate() {
        let layout = choice.layout(rule, mesh, shape, Place::Output(i));
        if layout != expected[i] {
            debt += bytes(&layout, &expected[i], size);
        }
        key.held += layout.piece_at(&origin).numel() as u128 * size as u128;
        made.push(layout);
    }
    key.total = key.moved + debt;
    Priced { key, inputs: changed, outputs: made }
}
