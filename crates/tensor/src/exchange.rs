//! One step of a route, carried out: slices locally, the rest through the communicator.

use crate::error::{Error, Result};
use crate::world::World;
use planaria_array::ops::Binary;
use planaria_array::{Array, DType};
use planaria_comm::{AllReduce, AllToAll, CommExt};
use planaria_layout::{Collective, Combine, Neutral, Part, Plan, Rank, Reduce, Region, Step};
use std::collections::BTreeSet;

/// This rank's piece after the step.
pub(crate) fn run(step: &Step, local: &Array, world: &World) -> Result<Array> {
    if local.is_meta() {
        return Ok(Array::meta(&step.to.piece(world.rank())?.extents(), local.dtype())?);
    }
    match step.collective {
        Collective::Nothing => Ok(local.clone()),
        Collective::Slice => slice(step, local, world.rank()),
        Collective::AllReduce => all_reduce(step, local, world),
        _ => exchange(step, local, world),
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
    let out = empty(step, local.dtype(), rank)?;
    let there = step.to.piece(rank)?;
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

fn empty(step: &Step, dtype: DType, rank: Rank) -> Result<Array> {
    Ok(Array::zeros(&step.to.piece(rank)?.extents(), dtype)?)
}

fn all_reduce(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let mut array = local.contiguous()?;
    for op in Reduce::EVERY {
        let axes = step.axes.iter().filter(|&a| step.from.reduce(a) == Some(op)).collect();
        if step.from.mesh().span(axes) > 1 {
            let group = world.group(&step.from.mesh().group(world.rank(), axes)?)?;
            let recv = Array::zeros(array.shape(), array.dtype())?;
            group.all_reduce(AllReduce { send: array, recv: recv.clone(), op })?;
            array = recv;
        }
    }
    Ok(array)
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

/// Boxes from many ranks to many: packed, sent in one all-to-all, put in place or combined in rank order.
fn exchange(step: &Step, local: &Array, world: &World) -> Result<Array> {
    let rank = world.rank();
    let ranks = members(step, rank)?;
    let group = world.group(&ranks)?;
    let (send, send_counts) = pack(step, local, rank, &ranks)?;
    let plan = match step.to.mesh().coords(rank) {
        Some(_) => Plan::receive(&step.from, &step.to, rank)?,
        None => Plan { parts: Vec::new(), combine: None, neutral: Neutral::Zero },
    };
    let mut recv_counts = vec![0; ranks.len()];
    for part in &plan.parts {
        for source in &part.from {
            recv_counts[position(&ranks, *source)?] += part.region.numel();
        }
    }
    let recv = Array::zeros(&[recv_counts.iter().sum()], local.dtype())?;
    group.all_to_all(AllToAll { send, send_counts, recv: recv.clone(), recv_counts: recv_counts.clone() })?;
    if step.to.mesh().coords(rank).is_none() {
        return Ok(Array::zeros(&[0], local.dtype())?);
    }
    unpack(step, &plan, &recv, &recv_counts, &ranks, rank)
}

fn position(ranks: &[Rank], rank: Rank) -> Result<usize> {
    ranks.iter().position(|&r| r == rank).ok_or(Error::Bug("a plan names a rank outside its group"))
}

/// What this rank sends, receiver by receiver, boxes in sorted order.
fn pack(step: &Step, local: &Array, rank: Rank, ranks: &[Rank]) -> Result<(Array, Vec<usize>)> {
    let mut counts = vec![0; ranks.len()];
    if step.from.mesh().coords(rank).is_none() {
        return Ok((Array::zeros(&[0], local.dtype())?, counts));
    }
    let here = step.from.piece(rank)?;
    let mut tiles = Plan::send(&step.from, &step.to, rank)?;
    let mut places = Vec::with_capacity(tiles.len());
    for tile in &tiles {
        let to = position(ranks, tile.holder)?;
        counts[to] += tile.region.numel();
        places.push(to);
    }
    let mut order: Vec<usize> = (0..tiles.len()).collect();
    order.sort_by(|&a, &b| places[a].cmp(&places[b]).then_with(|| tiles[a].region.cmp(&tiles[b].region)));
    let send = Array::zeros(&[counts.iter().sum()], local.dtype())?;
    let mut start = 0;
    for i in order {
        let tile = &mut tiles[i];
        let box_at_home = local.region(&here.locate(&tile.region).ok_or(LOST)?)?;
        window(&send, start, &tile.region)?.copy_from(&box_at_home)?;
        start += tile.region.numel();
    }
    Ok((send, counts))
}

/// A box's elements in a flat buffer.
fn window(flat: &Array, start: usize, region: &Region) -> Result<Array> {
    Ok(flat.narrow(0, start, region.numel())?.reshape(&region.extents())?)
}

fn unpack(
    step: &Step,
    plan: &Plan,
    recv: &Array,
    counts: &[usize],
    ranks: &[Rank],
    rank: Rank,
) -> Result<Array> {
    let out = empty(step, recv.dtype(), rank)?;
    let there = step.to.piece(rank)?;
    let mut next: Vec<usize> = counts
        .iter()
        .scan(0, |start, count| {
            *start += count;
            Some(*start - count)
        })
        .collect();
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
            (_, Some(combine)) => target.copy_from(&combined(&values, combine)?)?,
        }
    }
    Ok(out)
}

/// Contributions folded in the given order, narrow floats in f32.
fn combined(values: &[Array], combine: Combine) -> Result<Array> {
    let dtype = values[0].dtype();
    let wide = if dtype.is_float() && dtype.size() < 4 { DType::F32 } else { dtype };
    let sum = values[0].cast(wide)?.copy()?;
    for value in &values[1..] {
        fold(combine.reduce, &sum, &value.cast(wide)?)?;
    }
    if combine.divisor > 1 {
        let divisor = Array::scalar(combine.divisor as f64, wide)?;
        sum.binary_in_place(Binary::Div, &divisor)?;
    }
    Ok(sum.cast(dtype)?)
}

fn fold(reduce: Reduce, sum: &Array, value: &Array) -> Result<()> {
    let op = match reduce {
        Reduce::Sum | Reduce::Avg => Binary::Add,
        Reduce::Prod => Binary::Mul,
        Reduce::Max => Binary::Maximum,
        Reduce::Min => Binary::Minimum,
        Reduce::Any | Reduce::All => {
            let both = if reduce == Reduce::Any { sum.logical_or(value)? } else { sum.logical_and(value)? };
            return Ok(sum.copy_from(&both.cast(sum.dtype())?)?);
        }
    };
    Ok(sum.binary_in_place(op, value)?)
}
