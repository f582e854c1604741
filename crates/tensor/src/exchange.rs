//! One step of a route, carried out: slices locally, the rest by the collective that the step is.

use crate::error::{Error, Result};
use crate::world::World;
use planaria_array::{Array, Shape};
use planaria_comm::{AllGather, AllReduce, AllToAll, Broadcast, Call, CommExt, ReduceScatter};
use planaria_layout::{
    Collective, Layout, Neutral, Part, Piece, Placement, Plan, Rank, Reduce, Region, Step,
};
use std::collections::BTreeSet;

/// This rank's piece after the step; nothing where it is not on the step's last mesh.
pub(crate) fn run(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let is_on = |layout: &Layout| layout.mesh().coords(world.rank()).is_some();
    if local.is_meta() {
        return Ok(match is_on(&step.to) {
            true => Array::meta(&step.to.piece(world.rank())?.extents(), local.dtype())?,
            false => Array::meta(&[0], local.dtype())?,
        });
    }
    // A route between meshes has steps on one of them, with which the ranks of the other have nothing to do.
    if !is_on(&step.from) && !is_on(&step.to) {
        return Ok(local.clone());
    }
    match step.collective {
        Collective::Nothing => Ok(local.clone()),
        Collective::Slice => slice(step, local, world.rank()),
        Collective::AllReduce => all_reduce(step, local, world),
        Collective::AllGather => all_gather(step, local, world),
        Collective::ReduceScatter => reduce_scatter(step, local, world),
        Collective::Broadcast => broadcast(step, local, world),
        Collective::AllToAll | Collective::Moves => exchange(step, local, world),
    }
}

/// Everything needed is here already.
fn slice(step: &Step, local: &Array, rank: Rank) -> Result<Array> {
    let plan = Plan::receive(&step.from, &step.to, rank)?;
    let here = step.from.piece(rank)?;
    let whole_piece = |part: &Part| here.boxes().len() == 1 && here.boxes()[0] == part.region;
    if let [part] = plan.parts.as_slice()
        && part.from.len() == 1
        && whole_piece(part)
    {
        return Ok(local.clone());
    }
    let there = step.to.piece(rank)?;
    let out = Array::empty_on(&there.extents(), local.dtype(), local.device())?;
    for part in &plan.parts {
        let target = out.region(&there.locate(&part.region).ok_or(LOST)?)?;
        match part.from.as_slice() {
            [] => target.fill(neutral(plan.neutral))?,
            _ => target.copy_from(&local.region(&here.locate(&part.region).ok_or(LOST)?)?)?,
        }
    }
    Ok(out)
}

const LOST: Error = Error::Bug("a plan names a box outside its piece");

fn neutral(value: Neutral) -> f64 {
    match value {
        Neutral::Zero => 0.0,
        Neutral::One => 1.0,
    }
}

/// The reduction of the step's axes, where they all have the same.
fn one_reduction(step: &Step) -> Option<Reduce> {
    let mut ops = step.axes.iter().filter_map(|axis| step.from.reduce(axis));
    ops.next().filter(|first| ops.all(|op| op == *first))
}

/// Every rank of a group gets what their contributions reduce to.
fn all_reduce(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let Some(op) = one_reduction(step) else {
        // A sum along one axis and an average along another are one fold with a divisor, rounded once.
        return exchange(step, local, world);
    };
    let send = local.contiguous()?;
    let ranks = step.from.mesh().group(world.rank(), step.axes)?;
    if ranks.len() == 1 {
        return Ok(send);
    }
    let recv = Array::empty_on(send.shape(), send.dtype(), send.device())?;
    world.group(&ranks)?.all_reduce(AllReduce { send, recv: recv.clone(), op })?;
    Ok(recv)
}

/// Every rank of a group gets the pieces of all: each is copied once where they lie one after the other in the result,
/// else once more into its place.
fn all_gather(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let rank = world.rank();
    let ranks = step.from.mesh().group(rank, step.axes)?;
    let pieces = ranks.iter().map(|&r| Ok(step.from.piece(r)?)).collect::<Result<Vec<_>>>()?;
    let there = step.to.piece(rank)?;
    let recv_counts: Vec<usize> = pieces.iter().map(Piece::numel).collect();
    let (group, send) = (world.group(&ranks)?, local.contiguous()?);
    let out = Array::empty_on(&there.extents(), local.dtype(), local.device())?;
    if in_order(&pieces, &there) {
        group.all_gather(AllGather { send, recv: out.clone(), recv_counts })?;
        return Ok(out);
    }
    let flat = Array::empty_on(&[recv_counts.iter().sum()], local.dtype(), local.device())?;
    group.all_gather(AllGather { send, recv: flat.clone(), recv_counts: recv_counts.clone() })?;
    let starts = starts(&recv_counts);
    for part in Plan::receive(&step.from, &step.to, rank)?.parts {
        let source = part.from.first().ok_or(Error::Bug("a gathered box has no holder"))?;
        let at = position(&ranks, *source)?;
        let whole = flat.narrow(0, starts[at], recv_counts[at])?.reshape(&pieces[at].extents())?;
        let arrived = whole.region(&pieces[at].locate(&part.region).ok_or(LOST)?)?;
        out.region(&there.locate(&part.region).ok_or(LOST)?)?.copy_from(&arrived)?;
    }
    Ok(out)
}

/// Every rank of a group keeps its cut of what their contributions reduce to. They are sent from where they lie where
/// the cuts lie one after the other.
fn reduce_scatter(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let rank = world.rank();
    let Some(op) = one_reduction(step) else { return exchange(step, local, world) };
    let ranks = step.from.mesh().group(rank, step.axes)?;
    let pieces = ranks.iter().map(|&r| Ok(step.to.piece(r)?)).collect::<Result<Vec<_>>>()?;
    let here = step.from.piece(rank)?;
    let send_counts: Vec<usize> = pieces.iter().map(Piece::numel).collect();
    let send = match in_order(&pieces, &here) {
        true => local.contiguous()?,
        false => {
            let flat = Array::empty_on(&[send_counts.iter().sum()], local.dtype(), local.device())?;
            for (piece, start) in pieces.iter().zip(starts(&send_counts)) {
                let part = flat.narrow(0, start, piece.numel())?.reshape(&piece.extents())?;
                for region in piece.boxes() {
                    let source = local.region(&here.locate(&region).ok_or(LOST)?)?;
                    part.region(&piece.locate(&region).ok_or(LOST)?)?.copy_from(&source)?;
                }
            }
            flat
        }
    };
    let recv = Array::empty_on(&pieces[position(&ranks, rank)?].extents(), local.dtype(), local.device())?;
    let group = world.group(&ranks)?;
    group.reduce_scatter(ReduceScatter { send, recv: recv.clone(), send_counts, op })?;
    Ok(recv)
}

/// Each rank of one mesh gives its whole piece to some of another; a rank may give one piece and get another.
fn broadcast(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let in_sections = |p: &Placement| matches!(p, Placement::Shard(shard) if shard.sections > 1);
    if [&step.from, &step.to].iter().any(|layout| layout.placements().iter().any(in_sections)) {
        // Boxes of one piece may come from different copies.
        return exchange(step, local, world);
    }
    let rank = world.rank();
    // Started, not waited for, one by one: a rank that gives and gets must not wait for one before the other.
    let mut open = Vec::new();
    let mut begin = |root: Rank, data: Array| -> Result<()> {
        let readers = Plan::send(&step.from, &step.to, root)?.into_iter().map(|tile| tile.holder);
        let others: BTreeSet<Rank> = readers.filter(|&reader| reader != root).collect();
        if !others.is_empty() {
            let group = world.group(&std::iter::once(root).chain(others).collect::<Vec<_>>())?;
            open.push(group.start(Call::Broadcast(Broadcast { data, root: 0 }))?);
        }
        Ok(())
    };
    if step.from.mesh().coords(rank).is_some() {
        begin(rank, local.contiguous()?)?;
    }
    let mut out = Array::empty_on(&[0], local.dtype(), local.device())?;
    if step.to.mesh().coords(rank).is_some() {
        out = Array::empty_on(&step.to.piece(rank)?.extents(), local.dtype(), local.device())?;
        match Plan::receive(&step.from, &step.to, rank)?.parts.first().and_then(|part| part.from.first()) {
            Some(&root) if root == rank => out = local.clone(),
            Some(&root) => begin(root, out.clone())?,
            // An empty piece.
            None => {}
        }
    }
    open.into_iter().try_for_each(|pending| pending.wait())?;
    Ok(out)
}

/// True when the elements of the pieces, one piece after the other, are those of `whole` in its own order.
fn in_order(pieces: &[Piece], whole: &Piece) -> bool {
    let boxes: Vec<Vec<Region>> = pieces.iter().map(Piece::boxes).collect();
    let filled = boxes.iter().flatten().filter(|region| !region.is_empty());
    boxes.iter().all(|boxes| boxes.len() <= 1) && run_of(filled, whole) == Some(whole.numel())
}

/// How many elements the boxes cover if they lie one after the other, from the beginning, in a piece's memory.
fn run_of<'a>(mut boxes: impl Iterator<Item = &'a Region>, piece: &Piece) -> Option<usize> {
    let memory = Region::whole(&Shape::new(&piece.extents()).ok()?);
    boxes.try_fold(0, |at, region| {
        let mut runs = piece.locate(region)?.runs(&memory);
        let is_one = runs.len() == 1;
        let (start, len) = runs.next()?;
        (is_one && start == at).then_some(at + len)
    })
}

/// Where each part begins when parts lie one after the other.
fn starts(counts: &[usize]) -> Vec<usize> {
    counts.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect()
}

/// The ranks that take part, in an order that all of them know.
fn members(step: &Step, rank: Rank) -> Result<Vec<Rank>> {
    let (from, to) = (step.from.mesh(), step.to.mesh());
    if from == to {
        return Ok(from.group(rank, step.axes)?);
    }
    let both: BTreeSet<Rank> = from.ranks().chain(to.ranks()).collect();
    Ok(both.into_iter().collect())
}

/// Boxes from many ranks to many, in one all-to-all: sent and received where they lie if they lie in order, else packed
/// and put in place; contributions are folded in rank order.
fn exchange(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let rank = world.rank();
    let ranks = members(step, rank)?;
    let group = world.group(&ranks)?;
    let (send, send_counts) = pack(step, local, rank, &ranks)?;
    let mut recv_counts = vec![0; ranks.len()];
    if step.to.mesh().coords(rank).is_none() {
        let recv = Array::empty_on(&[0], local.dtype(), local.device())?;
        group.all_to_all(AllToAll { send, send_counts, recv: recv.clone(), recv_counts })?;
        return Ok(recv);
    }
    let plan = Plan::receive(&step.from, &step.to, rank)?;
    let there = step.to.piece(rank)?;
    // Where each box comes from, in the order of arrival.
    let mut arriving: Vec<(usize, &Region)> = Vec::with_capacity(plan.parts.len());
    for part in &plan.parts {
        for source in &part.from {
            let from = position(&ranks, *source)?;
            recv_counts[from] += part.region.numel();
            arriving.push((from, &part.region));
        }
    }
    arriving.sort_by_key(|&(from, _)| from);
    let plain = plan.parts.iter().all(|part| part.from.len() == 1) && plan.combine.is_none();
    let out = Array::empty_on(&there.extents(), local.dtype(), local.device())?;
    if plain && run_of(arriving.iter().map(|&(_, region)| region), &there) == Some(there.numel()) {
        group.all_to_all(AllToAll { send, send_counts, recv: out.clone(), recv_counts })?;
        return Ok(out);
    }
    let recv = Array::empty_on(&[recv_counts.iter().sum()], local.dtype(), local.device())?;
    group.all_to_all(AllToAll { send, send_counts, recv: recv.clone(), recv_counts: recv_counts.clone() })?;
    unpack(&plan, &recv, &mut starts(&recv_counts), &ranks, (&there, &out))?;
    Ok(out)
}

fn position(ranks: &[Rank], rank: Rank) -> Result<usize> {
    ranks.iter().position(|&r| r == rank).ok_or(Error::Bug("a plan names a rank outside its group"))
}

/// What this rank sends, receiver by receiver, boxes in sorted order.
fn pack(step: &Step, local: &Array, rank: Rank, ranks: &[Rank]) -> Result<(Array, Vec<usize>)> {
    let mut counts = vec![0; ranks.len()];
    if step.from.mesh().coords(rank).is_none() {
        return Ok((Array::empty_on(&[0], local.dtype(), local.device())?, counts));
    }
    let here = step.from.piece(rank)?;
    let mut boxes = Vec::new();
    for tile in Plan::send(&step.from, &step.to, rank)? {
        let to = position(ranks, tile.holder)?;
        counts[to] += tile.region.numel();
        boxes.push((to, tile.region));
    }
    boxes.sort();
    let total = counts.iter().sum();
    if run_of(boxes.iter().map(|(_, region)| region), &here) == Some(total) {
        return Ok((local.contiguous()?.reshape(&[local.numel()])?.narrow(0, 0, total)?, counts));
    }
    let send = Array::empty_on(&[total], local.dtype(), local.device())?;
    let mut start = 0;
    for (_, region) in &boxes {
        let box_at_home = local.region(&here.locate(region).ok_or(LOST)?)?;
        window(&send, start, region)?.copy_from(&box_at_home)?;
        start += region.numel();
    }
    Ok((send, counts))
}

/// A box's elements in a flat buffer.
fn window(flat: &Array, start: usize, region: &Region) -> Result<Array> {
    Ok(flat.narrow(0, start, region.numel())?.reshape(&region.extents())?)
}

/// Puts what came from each rank, which begins at `next`, into its place.
fn unpack(
    plan: &Plan,
    recv: &Array,
    next: &mut [usize],
    ranks: &[Rank],
    (there, out): (&Piece, &Array),
) -> Result<()> {
    for part in &plan.parts {
        let target = out.region(&there.locate(&part.region).ok_or(LOST)?)?;
        let mut values = Vec::with_capacity(part.from.len());
        for source in &part.from {
            let at = &mut next[position(ranks, *source)?];
            values.push(window(recv, *at, &part.region)?);
            *at += part.region.numel();
        }
        match (values.as_slice(), plan.combine) {
            ([], _) => target.fill(neutral(plan.neutral))?,
            ([one], None) => target.copy_from(one)?,
            (_, None) => return Err(Error::Bug("contributions without a reduction")),
            (_, Some(combine)) => target.fold_from(combine, &values)?,
        }
    }
    Ok(())
}
