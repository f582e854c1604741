//! Search for the cheapest route between two layouts on one mesh.

use super::collective::{Collective, Cost, Step, common, real_cuts};
use crate::error::Result;
use crate::layout::{Layout, each_index};
use crate::mesh::AxisSet;
use crate::placement::{Placement, Shard};
use crate::shape::Dims;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Layouts looked at before the best route so far is taken.
const MAX_VISITS: usize = 400;

/// Ways to combine the axes of several dims looked at in one place.
const MAX_CHOICES: usize = 128;

/// What decides between routes, in this order: price, point-to-point steps, steps, kinds of steps.
type Key = (Cost, usize, usize, usize);

/// Best-first search over the layouts that lie between.
pub(crate) fn cheapest(from: &Layout, to: &Layout, size: usize) -> Result<Vec<Step>> {
    let direct = Step::recognise(from, to, size)?;
    match direct.collective {
        Collective::Nothing => return Ok(Vec::new()),
        // Nothing is cheaper than nothing sent, and two ways to name one collective do not exist.
        Collective::Slice => return Ok(vec![direct]),
        _ => {}
    }
    let mut best: HashMap<Layout, (Key, Option<Step>)> =
        HashMap::from([(from.clone(), (Key::default(), None))]);
    // The number of the entry keeps equal prices in the order of discovery.
    let mut open = BinaryHeap::from([Reverse((Key::default(), 0usize))]);
    let mut entries = vec![from.clone()];
    let mut visits = 0;
    while let Some(Reverse((key, entry))) = open.pop() {
        let here = entries[entry].clone();
        if here == *to {
            break;
        }
        if best.get(&here).is_some_and(|(known, _)| *known < key) {
            continue;
        }
        visits += 1;
        let candidates = if visits > MAX_VISITS { vec![to.clone()] } else { neighbours(&here, to)? };
        for next in candidates {
            let step = Step::recognise(&here, &next, size)?;
            let is_detour =
                step.collective == Collective::Moves && next != *to && next != settled(&here, to)?;
            if step.collective == Collective::Nothing && next != *to || is_detour {
                continue;
            }
            let moves = usize::from(step.collective == Collective::Moves);
            let next_key = (key.0 + step.cost, key.1 + moves, key.2 + 1, key.3 + step.collective as usize);
            if best.get(&next).is_none_or(|(known, _)| next_key < *known) {
                best.insert(next.clone(), (next_key, Some(step)));
                open.push(Reverse((next_key, entries.len())));
                entries.push(next);
            }
        }
    }
    let mut steps = Vec::new();
    let mut at = to.clone();
    while let Some((_, Some(step))) = best.get(&at) {
        at = step.from.clone();
        steps.push(step.clone());
    }
    steps.retain(|step| step.collective != Collective::Nothing);
    steps.reverse();
    Ok(steps)
}

/// Layouts one useful step away, the goal first.
fn neighbours(here: &Layout, to: &Layout) -> Result<Vec<Layout>> {
    let mut found = vec![to.clone(), settled(here, to)?];
    gathers(here, to, &mut found)?;
    extensions(here, to, &mut found)?;
    reductions(here, to, &mut found)?;
    exchanges(here, to, &mut found)?;
    Ok(found)
}

/// All axes without pending reductions go where the goal wants them, the others stay.
fn settled(here: &Layout, to: &Layout) -> Result<Layout> {
    let pending = |p: &Placement| matches!(p, Placement::Partial(_));
    let both = here.placements().iter().zip(to.placements());
    let mixed: Vec<Placement> = both.map(|(h, t)| if pending(h) || pending(t) { *h } else { *t }).collect();
    Layout::new(here.mesh(), here.shape(), &mixed)
}

/// Some of the axes that stand wrong, innermost first, become copies.
fn gathers(here: &Layout, to: &Layout, found: &mut Vec<Layout>) -> Result<()> {
    let ndim = here.shape().ndim();
    let cuts: Vec<_> = (0..ndim).map(|d| real_cuts(here, d)).collect();
    let wrong: Dims = (0..ndim).map(|d| cuts[d].len() - common(&cuts[d], &real_cuts(to, d)) + 1).collect();
    for choice in choices(&wrong) {
        let last = |d: usize| cuts[d].iter().rev().take(choice[d]).map(|s| s.axis);
        found.push(replicate(here, (0..ndim).flat_map(last).collect())?);
    }
    Ok(())
}

/// Every index below `counts` but the first, or only the last one where there are too many.
fn choices(counts: &[usize]) -> Vec<Dims> {
    let mut choices: Vec<Dims> = Vec::new();
    let all = counts.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
    if all.is_some_and(|all| all <= MAX_CHOICES) {
        each_index(counts, |count| choices.push(Dims::from_slice(count)));
        choices.remove(0);
    } else {
        choices.push(counts.iter().map(|n| n - 1).collect());
    }
    choices
}

/// Free or pending axes take the next places that the goal has for them: slices and
/// reduce-scatters. A pending axis may also be cut where it will have to be moved later.
fn extensions(here: &Layout, to: &Layout, found: &mut Vec<Layout>) -> Result<()> {
    let ndim = here.shape().ndim();
    let mut next: Vec<Vec<(usize, usize)>> = Vec::new();
    for dim in 0..ndim {
        let (a, b) = (real_cuts(here, dim), real_cuts(to, dim));
        let ready = if common(&a, &b) == a.len() { &b[a.len()..] } else { &[] };
        let uncut = |axis| !matches!(here.placements()[axis], Placement::Shard(_));
        next.push(ready.iter().take_while(|s| uncut(s.axis)).map(|s| (s.axis, s.sections)).collect());
        let pending = |axis: usize| matches!(here.placements()[axis], Placement::Partial(_));
        for split in b.iter().filter(|s| pending(s.axis)) {
            found.push(append(here, split.axis, dim, split.sections)?);
        }
    }
    let counts: Dims = next.iter().map(|list| list.len() + 1).collect();
    for choice in choices(&counts) {
        let mut layout = here.clone();
        for dim in 0..ndim {
            for &(axis, sections) in &next[dim][..choice[dim]] {
                layout = append(&layout, axis, dim, sections)?;
            }
        }
        found.push(layout);
    }
    Ok(())
}

/// One pending axis, or all that the goal does not keep, is reduced everywhere.
fn reductions(here: &Layout, to: &Layout, found: &mut Vec<Layout>) -> Result<()> {
    let ending: Vec<usize> = here.partial_axes().iter().filter(|&a| here.reduce(a) != to.reduce(a)).collect();
    if ending.len() > 1 {
        found.push(replicate(here, ending.iter().copied().collect())?);
    }
    for axis in ending {
        found.push(replicate(here, AxisSet::EMPTY.with(axis))?);
    }
    Ok(())
}

/// The innermost axis of one dim goes to its place on another.
fn exchanges(here: &Layout, to: &Layout, found: &mut Vec<Layout>) -> Result<()> {
    for dim in 0..here.shape().ndim() {
        let Some(split) = real_cuts(here, dim).last().copied() else { continue };
        let Placement::Shard(goal) = to.placements()[split.axis] else { continue };
        let (a, b) = (real_cuts(here, goal.dim), real_cuts(to, goal.dim));
        let is_next = common(&a, &b) == a.len() && b.get(a.len()).is_some_and(|s| s.axis == split.axis);
        if goal.dim != dim && is_next {
            let without = replicate(here, AxisSet::EMPTY.with(split.axis))?;
            found.push(append(&without, split.axis, goal.dim, goal.sections)?);
        }
    }
    Ok(())
}

fn replicate(layout: &Layout, axes: AxisSet) -> Result<Layout> {
    axes.iter().try_fold(layout.clone(), |layout, axis| layout.with(axis, Placement::Replicate))
}

/// The axis as the innermost cut of a dim.
pub(super) fn append(layout: &Layout, axis: usize, dim: usize, sections: usize) -> Result<Layout> {
    let mut placements = layout.placements().to_vec();
    for (place, other) in layout.axes_on(dim).enumerate() {
        if let Placement::Shard(shard) = &mut placements[other] {
            shard.order = place;
        }
    }
    placements[axis] = Placement::Shard(Shard { dim, sections, order: usize::MAX });
    Layout::new(layout.mesh(), layout.shape(), &placements)
}
