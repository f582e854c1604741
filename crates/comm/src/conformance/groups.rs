//! Groups, barriers and agreement.

use super::{Failure, Outcome, Site, same};
use crate::call::{AllReduce, Broadcast, Call};
use crate::comm::CommExt;
use crate::error::Error;
use planaria_array::{Array, DType};
use planaria_layout::{Rank, Reduce};

pub(super) fn places(comm: &Site) -> Outcome {
    same("rank is below size", comm.rank() < comm.size(), true)?;
    let mut sorted = comm.ranks().to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    same("distinct ranks", sorted.len(), comm.size())?;
    same("sum of positions", sum_of(comm, comm.rank() as i64)?, (0..comm.size() as i64).sum())
}

fn sum_of(comm: &Site, value: i64) -> Result<i64, Failure> {
    let x = comm.there(&Array::from_slice(&[value], &[1])?)?;
    comm.all_reduce(AllReduce { send: x.clone(), recv: x.clone(), op: Reduce::Sum })?;
    Ok(x.to_vec::<i64>()?[0])
}

pub(super) fn splits(comm: &Site) -> Outcome {
    let ranks = comm.ranks().to_vec();
    let me = ranks[comm.rank()];
    // Even and odd positions, the odd ones in reverse.
    let even: Vec<Rank> = ranks.iter().copied().step_by(2).collect();
    let odd: Vec<Rank> = ranks.iter().copied().skip(1).step_by(2).rev().collect();
    let groups = [even.clone(), odd.clone()];
    let mine = if even.contains(&me) { &even } else { &odd };
    let half = comm.split(&groups)?.ok_or_else(|| Failure("a member got no group".into()))?;
    let half = comm.with(half);
    same("members", half.ranks(), mine.as_slice())?;
    same("position", Some(half.rank()), mine.iter().position(|&r| r == me))?;
    same("sum of a half", sum_of(&half, me as i64)?, mine.iter().map(|&r| r as i64).sum())?;
    // Split again: the last member leaves.
    let rest: Vec<Rank> = mine[..mine.len() - 1].to_vec();
    let smaller = half.split(std::slice::from_ref(&rest))?;
    same("who stays", smaller.is_some(), rest.contains(&me))?;
    if let Some(smaller) = smaller {
        same(
            "sum of the rest",
            sum_of(&comm.with(smaller), me as i64)?,
            rest.iter().map(|&r| r as i64).sum(),
        )?;
    }
    same("everyone again", sum_of(comm, 1)?, comm.size() as i64)
}

pub(super) fn members_only(comm: &Site) -> Outcome {
    let ranks = comm.ranks().to_vec();
    let me = ranks[comm.rank()];
    // All but the first, in reverse; the first takes no part.
    let rest: Vec<Rank> = ranks.iter().copied().skip(1).rev().collect();
    if rest.contains(&me) {
        let group = comm.with(comm.group(&rest)?);
        same("members", group.ranks(), rest.as_slice())?;
        let sum: i64 = rest.iter().map(|&r| r as i64).sum();
        same("sum", sum_of(&group, me as i64)?, sum)?;
        same("sum in the group asked for again", sum_of(&comm.with(comm.group(&rest)?), me as i64)?, sum)?;
    } else {
        same("a group without me", comm.group(&rest).is_err(), true)?;
    }
    same("a rank twice", comm.group(&[me, me]).is_err(), true)?;
    same("everyone", sum_of(comm, 1)?, comm.size() as i64)
}

pub(super) fn independence(comm: &Site) -> Outcome {
    let all = [comm.ranks().to_vec()];
    let first = comm.split(&all)?.ok_or_else(|| Failure("no group".into()))?;
    let second = comm.split(&all)?.ok_or_else(|| Failure("no group".into()))?;
    // Ranks use the two groups in different orders.
    let (a, b) = (comm.full(&[3], 1, DType::F32)?, comm.full(&[3], 10, DType::F32)?);
    let sum = |x: &Array| Call::AllReduce(AllReduce { send: x.clone(), recv: x.clone(), op: Reduce::Sum });
    let pending = match comm.rank() % 2 {
        0 => [first.start(sum(&a))?, second.start(sum(&b))?],
        _ => [second.start(sum(&b))?, first.start(sum(&a))?],
    };
    pending.into_iter().try_for_each(|p| p.wait())?;
    let size = comm.size() as f32;
    same("first", a.to_vec::<f32>()?, vec![size; 3])?;
    same("second", b.to_vec::<f32>()?, vec![10.0 * size; 3])
}

pub(super) fn barriers(comm: &Site) -> Outcome {
    for _ in 0..5 {
        comm.barrier()?;
    }
    let word = comm.full(&[1], comm.rank() as i64, DType::I32)?;
    comm.broadcast(Broadcast { data: word.clone(), root: comm.size() - 1 })?;
    same("after barriers", word.to_vec::<i32>()?, vec![comm.size() as i32 - 1])
}

pub(super) fn agreement(comm: &Site) -> Outcome {
    same("all well", comm.agree(Ok::<_, String>(comm.rank()))?, comm.rank())?;
    let mine = if comm.rank() + 1 == comm.size() { Err("no room") } else { Ok(()) };
    let want = Error::Remote { rank: comm.ranks()[comm.size() - 1], message: "no room".into() };
    same("one fails", comm.agree(mine), Err(want))?;
    let want = Error::Remote { rank: comm.ranks()[0], message: String::new() };
    same("all fail", comm.agree(Err::<(), _>("")), Err(want))
}
