//! Prices for comparing choices: what routes cost, without searching for them.

use super::choice::{Choice, Place, Role};
use super::{Operand, Rule};
use crate::layout::Layout;
use crate::mesh::{AxisSet, Coords};
use crate::placement::Placement;

/// What decides between choices, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Bytes sent now, and bytes that someone must send because of this choice.
    pub(super) total: u128,
    /// Bytes sent now.
    pub(super) moved: u128,
    /// Inputs that communicate.
    pub(super) moves: usize,
    /// Bytes of the outputs on one rank.
    pub(super) held: u128,
}

/// Bytes that a rank sends to go from one layout to another on the same mesh: what the cheapest route costs when
/// everything divides, and close to it otherwise.
pub(super) fn bytes(from: &Layout, to: &Layout, size: usize) -> u128 {
    let mesh = from.mesh();
    let origin = Coords::from_elem(0, mesh.naxes());
    let (mine, wanted) = (from.piece_at(&origin), to.piece_at(&origin));
    let target = wanted.numel() as u128;
    let ended: AxisSet = from.partial_axes().iter().filter(|&a| from.reduce(a) != to.reduce(a)).collect();
    let group = mesh.span(ended) as u128;
    let elements = if group == 1 {
        target - mine.overlap(&wanted) as u128
    } else {
        // Axes with copies slice first; then a reduce-scatter, and what is still missing is gathered.
        let slices = |a: &usize| {
            matches!(
                (from.placements()[*a], to.placements()[*a]),
                (Placement::Replicate, Placement::Shard(_))
            )
        };
        let sliced: AxisSet = from.replicated_axes().iter().filter(slices).collect();
        let reduced = (mine.numel() as u128).div_ceil(mesh.span(sliced) as u128);
        let share = reduced.div_ceil(group);
        (group - 1) * share + target.saturating_sub(share)
    };
    elements * size as u128
}

/// Bytes to make contributions of `numel` elements, on a group of ranks, into the value on each of them.
fn all_reduce(numel: u128, group: u128) -> u128 {
    2 * (group - 1) * numel.div_ceil(group)
}

/// What an op costs under a choice. `None` for inputs that stay as they are.
pub(super) struct Priced {
    pub(super) key: Key,
    pub(super) inputs: Vec<Option<Layout>>,
    pub(super) outputs: Vec<Layout>,
}

/// Builds the layouts and prices them.
pub(super) fn price(
    rule: &Rule,
    choice: &Choice,
    inputs: &[Operand<'_>],
    outputs: &[(&crate::shape::Shape, usize)],
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
    let stance: Vec<Stance> = (0..mesh.naxes()).map(|axis| stance(rule, choice, inputs, axis)).collect();
    let origin = Coords::from_elem(0, mesh.naxes());
    let mut made = Vec::with_capacity(outputs.len());
    let mut debt = 0;
    for (i, &(shape, size)) in outputs.iter().enumerate() {
        let layout = choice.layout(rule, mesh, shape, Place::Output(i));
        let numel = layout.piece_at(&origin).numel() as u128;
        let owed = |a: &usize| layout.reduce(*a).is_some() && stance[*a] != Stance::Kept;
        let pending: AxisSet = layout.partial_axes().iter().filter(owed).collect();
        debt += all_reduce(numel, mesh.span(pending) as u128) * size as u128;
        let strange: AxisSet =
            layout.sharded_axes().iter().filter(|&a| stance[a] == Stance::Strange).collect();
        debt += (mesh.span(strange) as u128 - 1) * numel * size as u128;
        key.held += numel * size as u128;
        made.push(layout);
    }
    key.total = key.moved + debt;
    Priced { key, inputs: changed, outputs: made }
}

/// How an axis's role stands to what the axis does in the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stance {
    /// No input has to communicate because of it.
    Kept,
    /// Some input has.
    Moved,
    /// A cut that no input has, taken up to avoid a dearer move: outputs come out as nobody asked.
    Strange,
}

fn stance(rule: &Rule, choice: &Choice, inputs: &[Operand<'_>], axis: usize) -> Stance {
    let role = choice.roles[axis];
    let on_factor = |i: usize, placement: Placement| match (role, placement) {
        (Role::Cut { factor, .. }, Placement::Shard(s)) => rule.inputs[i][s.dim].contains(&factor),
        (Role::Cut { .. }, Placement::Partial(r)) => choice.pending(rule, axis, Place::Input(i)) == Some(r),
        _ => false,
    };
    let placements = || inputs.iter().map(|input| input.layout.placements()[axis]).enumerate();
    match role {
        Role::Pass { .. } => return Stance::Moved,
        Role::Cut { .. } if !placements().any(|(i, p)| on_factor(i, p)) => return Stance::Strange,
        _ => {}
    }
    let kept = placements().all(|(i, p)| p == Placement::Replicate || on_factor(i, p));
    if kept { Stance::Kept } else { Stance::Moved }
}
