//! Reductions against a fold in rank order made of array operations.

use super::{Failure, Outcome, Site, input, same, same_bits};
use crate::call::{AllReduce, ReduceScatter, ReduceTo};
use crate::comm::CommExt;
use planaria_array::{Array, DType, ops};
use planaria_layout::Reduce;

/// The fold all engines must equal, bit for bit.
pub(super) fn expected(op: Reduce, inputs: &[Array]) -> Result<Array, Failure> {
    let dtype = inputs[0].dtype();
    let wide = match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => DType::F32,
        DType::Bool => DType::U8,
        d if d.is_int() && d != DType::U64 => DType::I64,
        d => d,
    };
    let truth = matches!(op, Reduce::Any | Reduce::All) || dtype == DType::Bool;
    let prepared = |x: &Array| match truth {
        true => x.cast(DType::Bool)?.cast(DType::U8),
        false => x.cast(wide),
    };
    let join = match (op, truth) {
        (Reduce::Sum | Reduce::Avg, false) => ops::Binary::Add,
        (Reduce::Prod, false) => ops::Binary::Mul,
        (Reduce::Max, _) | (Reduce::Sum | Reduce::Avg | Reduce::Any, true) => ops::Binary::Maximum,
        _ => ops::Binary::Minimum,
    };
    let mut acc = prepared(&inputs[0])?;
    for x in &inputs[1..] {
        acc = ops::binary(join, &acc, &prepared(x)?)?;
    }
    if op == Reduce::Avg {
        let count = Array::scalar(inputs.len(), acc.dtype())?;
        acc = match acc.dtype().is_float() {
            true => ops::binary(ops::Binary::Div, &acc, &count)?,
            false => truncating_division(&acc, inputs.len())?,
        };
    }
    Ok(acc.cast(dtype)?)
}

fn truncating_division(x: &Array, count: usize) -> Result<Array, Failure> {
    let shape = [x.numel()];
    Ok(match x.dtype() {
        DType::U64 => {
            let values: Vec<u64> = x.to_vec::<u64>()?.iter().map(|v| v / count as u64).collect();
            Array::from_slice(&values, &shape)?
        }
        _ => {
            let values: Vec<i64> = x.to_vec::<i64>()?.iter().map(|v| v / count as i64).collect();
            Array::from_slice(&values, &shape)?
        }
    })
}

fn inputs(size: usize, seed: u64, count: usize, dtype: DType) -> Result<Vec<Array>, Failure> {
    (0..size).map(|rank| input(seed, rank, count, dtype)).collect()
}

fn defined(op: Reduce, dtype: DType) -> bool {
    op != Reduce::Avg || dtype != DType::Bool
}

pub(super) fn every_dtype_and_op(comm: &Site) -> Outcome {
    for dtype in DType::ALL {
        for op in Reduce::EVERY.into_iter().filter(|&op| defined(op, dtype)) {
            for count in [0, 1, 37] {
                let all = inputs(comm.size(), count as u64, count, dtype)?;
                let (send, recv) = (comm.there(&all[comm.rank()])?, comm.zeros(&[count], dtype)?);
                comm.all_reduce(AllReduce { send: send.clone(), recv: recv.clone(), op })?;
                same_bits(&format!("{op:?} of {count} {dtype}"), &recv, &expected(op, &all)?)?;
                same_bits("what was sent", &send, &input(count as u64, comm.rank(), count, dtype)?)?;
            }
        }
    }
    Ok(())
}

pub(super) fn in_place_and_inside(comm: &Site) -> Outcome {
    let all = inputs(comm.size(), 3, 100, DType::BF16)?;
    let want = expected(Reduce::Sum, &all)?;
    let whole = comm.there(&all[comm.rank()].copy()?)?;
    comm.all_reduce(AllReduce { send: whole.clone(), recv: whole.clone(), op: Reduce::Sum })?;
    same_bits("in place", &whole, &want)?;
    // A part of a larger array: what lies around it must stay.
    let larger = comm.full(&[120], 9, DType::BF16)?;
    let part = larger.narrow(0, 10, 100)?;
    part.copy_from(&comm.there(&all[comm.rank()])?)?;
    comm.all_reduce(AllReduce { send: part.clone(), recv: part.clone(), op: Reduce::Sum })?;
    same_bits("inside", &part, &want)?;
    let around = ops::concat(&[&larger.narrow(0, 0, 10)?, &larger.narrow(0, 110, 10)?], 0)?;
    same_bits("around", &around, &Array::full(&[20], 9, DType::BF16)?)?;
    // A snapshot taken before keeps the old value.
    let kept = whole.snapshot()?;
    comm.all_reduce(AllReduce { send: whole.clone(), recv: whole.clone(), op: Reduce::Max })?;
    same_bits("snapshot", &kept, &want)
}

pub(super) fn large(comm: &Site) -> Outcome {
    for (dtype, count) in [(DType::F32, 300_007), (DType::F16, 140_001), (DType::U8, 500_000)] {
        let all = inputs(comm.size(), 5, count, dtype)?;
        let recv = comm.zeros(&[count], dtype)?;
        let send = comm.there(&all[comm.rank()])?;
        comm.all_reduce(AllReduce { send, recv: recv.clone(), op: Reduce::Sum })?;
        same_bits(&format!("{count} {dtype}"), &recv, &expected(Reduce::Sum, &all)?)?;
    }
    Ok(())
}

pub(super) fn to_each_root(comm: &Site) -> Outcome {
    for root in 0..comm.size() {
        let all = inputs(comm.size(), root as u64, 50, DType::F64)?;
        let recv = (comm.rank() == root).then(|| comm.zeros(&[50], DType::F64)).transpose()?;
        let send = comm.there(&all[comm.rank()])?;
        comm.reduce(ReduceTo { send, recv: recv.clone(), op: Reduce::Avg, root })?;
        if let Some(recv) = recv {
            same_bits("at the root", &recv, &expected(Reduce::Avg, &all)?)?;
        }
    }
    Ok(())
}

pub(super) fn scattered(comm: &Site) -> Outcome {
    let (size, rank) = (comm.size(), comm.rank());
    let lists = [
        (0..size).map(|i| (i * 5) % 7).collect::<Vec<_>>(),
        (0..size).map(|i| if i == size - 1 { 90_000 } else { 0 }).collect(),
        vec![0; size],
    ];
    for send_counts in lists {
        let total = send_counts.iter().sum();
        let all = inputs(size, 8, total, DType::F32)?;
        let (at, count) = (send_counts[..rank].iter().sum(), send_counts[rank]);
        let want = expected(Reduce::Sum, &all)?.narrow(0, at, count)?;
        let recv = comm.zeros(&[count], DType::F32)?;
        let send = comm.there(&all[rank])?;
        let call =
            ReduceScatter { send, recv: recv.clone(), send_counts: send_counts.clone(), op: Reduce::Sum };
        comm.reduce_scatter(call)?;
        same_bits("apart", &recv, &want)?;
        // Into this rank's own part of what it sends.
        let send = comm.there(&all[rank].copy()?)?;
        let recv = send.narrow(0, at, count)?;
        comm.reduce_scatter(ReduceScatter { send, recv: recv.clone(), send_counts, op: Reduce::Sum })?;
        same_bits("in place", &recv, &want)?;
    }
    same("size", comm.size(), size)
}
