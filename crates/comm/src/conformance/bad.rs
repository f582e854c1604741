//! Calls that every engine refuses before it moves anything.

use super::{Failure, Outcome, Site, same};
use crate::call::{AllGather, AllReduce, AllToAll, Broadcast, Call, MAX_TAG, ReduceScatter, ReduceTo, Send};
use crate::comm::CommExt;
use planaria_array::DType;
use planaria_layout::Reduce;

pub(super) fn refused(comm: &Site) -> Outcome {
    let size = comm.size();
    let x = comm.zeros(&[4, 2], DType::F32)?;
    let (y, ints) = (comm.zeros(&[7], DType::F32)?, comm.zeros(&[4, 2], DType::I32)?);
    let gaps = x.transpose(0, 1)?;
    let op = Reduce::Sum;
    let counts = |n: usize| vec![n; size];
    let flags = comm.zeros(&[2], DType::Bool)?;
    let meta = x.to_meta();
    let bad = [
        Call::AllReduce(AllReduce { send: x.clone(), recv: y.clone(), op }),
        Call::AllReduce(AllReduce { send: x.clone(), recv: ints, op }),
        Call::AllReduce(AllReduce { send: gaps, recv: x.clone(), op }),
        Call::AllReduce(AllReduce { send: meta.clone(), recv: meta.clone(), op }),
        // Two devices.
        Call::AllReduce(AllReduce { send: x.clone(), recv: meta, op }),
        Call::AllReduce(AllReduce { send: flags.clone(), recv: flags, op: Reduce::Avg }),
        Call::Reduce(ReduceTo { send: x.clone(), recv: Some(x.clone()), op, root: size }),
        Call::Broadcast(Broadcast { data: x.clone(), root: size }),
        Call::AllGather(AllGather { send: x.clone(), recv: y.clone(), recv_counts: counts(8) }),
        Call::AllGather(AllGather {
            send: x.clone(),
            recv: y.clone(),
            recv_counts: vec![usize::MAX; size + 1],
        }),
        Call::ReduceScatter(ReduceScatter { send: x.clone(), recv: y.clone(), send_counts: counts(1), op }),
        Call::AllToAll(AllToAll {
            send: x.clone(),
            send_counts: vec![usize::MAX; size],
            recv: y.clone(),
            recv_counts: counts(0),
        }),
        Call::Send(Send { data: x.clone(), to: size, tag: 0 }),
        Call::Send(Send { data: x.clone(), to: 0, tag: MAX_TAG + 1 }),
    ];
    for call in bad {
        let text = format!("{call:?}");
        if comm.start(call.clone()).is_ok() || comm.run(call).is_ok() {
            return Err(Failure(format!("accepted {text}")));
        }
    }
    let me = comm.ranks()[comm.rank()];
    same("a rank twice", comm.split(&[vec![me], vec![me]]).is_err(), true)?;
    same("a stranger", comm.split(&[vec![1 << 40]]).is_err(), true)?;
    // All is well afterwards.
    let one = comm.full(&[1], 1, DType::F32)?;
    comm.all_reduce(AllReduce { send: one.clone(), recv: one.clone(), op })?;
    same("still works", one.to_vec::<f32>()?, vec![size as f32])
}
