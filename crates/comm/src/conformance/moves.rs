//! Calls that only move elements.

use super::{Outcome, Site, input, same, same_bits};
use crate::call::{AllGather, AllReduce, AllToAll, Broadcast, Call, Recv, Send};
use crate::comm::CommExt;
use planaria_array::{Array, DType, ops};
use planaria_layout::Reduce;

pub(super) fn broadcasts(comm: &Site) -> Outcome {
    for root in 0..comm.size() {
        for count in [0, 1, 100_001] {
            for dtype in [DType::Bool, DType::I16, DType::F64] {
                let want = input(1, root, count, dtype)?;
                let data = match comm.rank() == root {
                    true => comm.there(&want.copy()?)?,
                    false => comm.zeros(&[count], dtype)?,
                };
                comm.broadcast(Broadcast { data: data.clone(), root })?;
                same_bits(&format!("{count} {dtype} from {root}"), &data, &want)?;
            }
        }
    }
    Ok(())
}

pub(super) fn gathers(comm: &Site) -> Outcome {
    let (size, rank) = (comm.size(), comm.rank());
    let lists = [
        (0..size).map(|i| (i * 3 + 2) % 5).collect::<Vec<_>>(),
        (0..size).map(|i| if i == 0 { 70_000 } else { i - 1 }).collect(),
        vec![0; size],
    ];
    for recv_counts in lists {
        for dtype in [DType::F8E4M3, DType::I32] {
            let parts =
                (0..size).map(|r| input(2, r, recv_counts[r], dtype)).collect::<Result<Vec<_>, _>>()?;
            let want = ops::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
            let recv = comm.zeros(&[want.numel()], dtype)?;
            let send = comm.there(&parts[rank])?;
            comm.all_gather(AllGather { send, recv: recv.clone(), recv_counts: recv_counts.clone() })?;
            same_bits("apart", &recv, &want)?;
            // From this rank's own part of what it receives.
            let recv = comm.zeros(&[want.numel()], dtype)?;
            let send = recv.narrow(0, recv_counts[..rank].iter().sum(), recv_counts[rank])?;
            send.copy_from(&comm.there(&parts[rank])?)?;
            comm.all_gather(AllGather { send, recv: recv.clone(), recv_counts: recv_counts.clone() })?;
            same_bits("in place", &recv, &want)?;
        }
    }
    Ok(())
}

pub(super) fn exchanges(comm: &Site) -> Outcome {
    let (size, rank) = (comm.size(), comm.rank());
    let count = |case: usize, from: usize, to: usize| match case {
        0 => (from * 3 + to * 2) % 5,
        // One rank says nothing; one pair says much.
        1 if from == size - 1 => 0,
        1 => 40_000 * usize::from(from == 0 && to == size - 1),
        _ => 0,
    };
    for case in 0..3 {
        let part =
            |from: usize, to: usize| input((case * 100 + to) as u64, from, count(case, from, to), DType::U16);
        let sent = (0..size).map(|to| part(rank, to)).collect::<Result<Vec<_>, _>>()?;
        let wanted = (0..size).map(|from| part(from, rank)).collect::<Result<Vec<_>, _>>()?;
        let send = comm.there(&ops::concat(&sent.iter().collect::<Vec<_>>(), 0)?)?;
        let want = ops::concat(&wanted.iter().collect::<Vec<_>>(), 0)?;
        let recv = comm.zeros(&[want.numel()], DType::U16)?;
        comm.all_to_all(AllToAll {
            send,
            send_counts: sent.iter().map(Array::numel).collect(),
            recv: recv.clone(),
            recv_counts: wanted.iter().map(Array::numel).collect(),
        })?;
        same_bits(&format!("case {case}"), &recv, &want)?;
    }
    Ok(())
}

pub(super) fn messages(comm: &Site) -> Outcome {
    let (size, rank) = (comm.size(), comm.rank());
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    let counts = [3, 0, 60_000, 5];
    // Sent in one order, received in another: tags tell them apart.
    let mut sends = Vec::new();
    for (i, &count) in counts.iter().enumerate() {
        let data = comm.there(&input(i as u64, rank, count, DType::F32)?)?;
        sends.push(comm.start(Call::Send(Send { data, to: next, tag: i as u32 }))?);
    }
    for (i, &count) in counts.iter().enumerate().rev() {
        let data = comm.zeros(&[count], DType::F32)?;
        comm.recv(Recv { data: data.clone(), from: last, tag: i as u32 })?;
        same_bits(&format!("message {i}"), &data, &input(i as u64, last, count, DType::F32)?)?;
    }
    sends.into_iter().try_for_each(|send| send.wait())?;
    // Several with one tag stay in order, also when all receives are started first.
    let rooms = (0..4).map(|_| comm.zeros(&[2], DType::I64)).collect::<Result<Vec<_>, _>>()?;
    let receive = |data: &Array| comm.start(Call::Recv(Recv { data: data.clone(), from: last, tag: 9 }));
    let receives = rooms.iter().map(receive).collect::<Result<Vec<_>, _>>()?;
    for i in 0..4 {
        let data = comm.full(&[2], (rank * 10 + i) as i64, DType::I64)?;
        comm.send(Send { data: data.clone(), to: next, tag: 9 })?;
        // A blocking send is over: the sender may write.
        data.fill(-1)?;
    }
    receives.into_iter().rev().try_for_each(|receive| receive.wait())?;
    for (i, room) in rooms.iter().enumerate() {
        same("in order", room.to_vec::<i64>()?, vec![(last * 10 + i) as i64; 2])?;
    }
    Ok(())
}

pub(super) fn started(comm: &Site) -> Outcome {
    let (size, rank) = (comm.size(), comm.rank());
    let counts = [10, 100_000, 0, 33];
    let mut open = Vec::new();
    for (i, &count) in counts.iter().enumerate() {
        let data = comm.there(&input(i as u64, rank, count, DType::F32)?)?;
        let sum = comm.start(Call::AllReduce(AllReduce {
            send: data.clone(),
            recv: data.clone(),
            op: Reduce::Sum,
        }))?;
        let gathered = comm.zeros(&[size], DType::I32)?;
        let send = comm.full(&[1], (rank + i) as i64, DType::I32)?;
        let call = AllGather { send, recv: gathered.clone(), recv_counts: vec![1; size] };
        open.push((i, data, sum, gathered, comm.start(Call::AllGather(call))?));
    }
    while let Some((i, data, sum, gathered, gather)) =
        if rank % 2 == 0 { open.pop() } else { Some(open.remove(0)) }
    {
        gather.wait()?;
        sum.wait()?;
        let all =
            (0..size).map(|r| input(i as u64, r, counts[i], DType::F32)).collect::<Result<Vec<_>, _>>()?;
        same_bits("started sum", &data, &super::reduce::expected(Reduce::Sum, &all)?)?;
        same("started gather", gathered.to_vec::<i32>()?, (0..size).map(|r| (r + i) as i32).collect())?;
        if open.is_empty() {
            break;
        }
    }
    Ok(())
}
