//! Nested structures between ranks.

use super::{Failure, Outcome, Site, input, same};
use crate::comm::CommExt;
use crate::error::Error;
use crate::value::{self, Value};
use planaria_array::DType;

fn sample(rank: usize) -> Result<Value, super::Failure> {
    let tensor = |n, dtype| input(4, rank, n, dtype).map(Value::Tensor);
    let inner = Value::Tuple(vec![
        tensor(0, DType::F32)?,
        Value::None,
        Value::Int(rank as i64 - 2),
        Value::Bool(true),
    ]);
    Ok(Value::map([
        ("weights", Value::List(vec![tensor(5 + rank, DType::BF16)?, tensor(7, DType::F32)?, inner])),
        ("name", Value::Text(format!("rank {rank}"))),
        ("bytes", Value::Bytes(vec![rank as u8; rank])),
        ("loss", Value::Float(0.1 * rank as f64)),
    ]))
}

pub(super) fn travel(comm: &Site) -> Outcome {
    let size = comm.size();
    let mine = sample(comm.rank())?;
    for root in 0..size {
        same("broadcast", value::broadcast(&***comm, &mine, root)?, sample(root)?)?;
    }
    let all = (0..size).map(sample).collect::<Result<Vec<_>, _>>()?;
    same("all_gather", value::all_gather(&***comm, &mine)?, all.clone())?;
    let root = size - 1;
    same("gather", value::gather(&***comm, &mine, root)?, (comm.rank() == root).then_some(all))
}

/// One rank has a structure that cannot travel: everyone is told, and the ranks go on together.
pub(super) fn refused(comm: &Site) -> Outcome {
    let (size, rank) = (comm.size(), comm.rank());
    let bad = size - 1;
    let deep = (0..100).fold(Value::None, |inner, _| Value::List(vec![inner]));
    let mine = if rank == bad { deep } else { sample(rank)? };
    let ends = [
        value::broadcast(&***comm, &mine, bad).map(drop),
        value::all_gather(&***comm, &mine).map(drop),
        value::gather(&***comm, &mine, 0).map(drop),
    ];
    for end in ends {
        match end {
            Err(Error::Remote { rank, message }) if message.contains("nested") => {
                same("the rank that is named", rank, comm.ranks()[bad])?;
            }
            other => return Err(Failure(format!("a structure too deep gave {other:?}"))),
        }
    }
    travel(comm)
}
