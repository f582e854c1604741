//! The thread engine from outside: collectives, groups, messages.

use planaria_array::{Array, DType};
use planaria_comm::{AllGather, AllReduce, Broadcast, CommExt, Recv, Result, Send, threads};
use planaria_layout::Reduce;

#[test]
fn an_all_reduce_sums_in_place_and_apart() {
    for ranks in 1..=4 {
        let results = threads::run(ranks, |comm| -> Result<_> {
            let mine = Array::from_slice(&[comm.rank() as f32 + 1.0; 5], &[5])?;
            let out = Array::zeros(&[5], DType::F32)?;
            comm.all_reduce(AllReduce { send: mine.clone(), recv: out.clone(), op: Reduce::Sum })?;
            comm.all_reduce(AllReduce { send: mine.clone(), recv: mine.clone(), op: Reduce::Max })?;
            Ok((out.to_vec::<f32>()?, mine.to_vec::<f32>()?))
        });
        for result in results {
            let sum = (ranks * (ranks + 1) / 2) as f32;
            assert_eq!(result.unwrap(), (vec![sum; 5], vec![ranks as f32; 5]));
        }
    }
}

#[test]
fn gathers_and_messages_carry_uneven_parts() {
    let results = threads::run(3, |comm| -> Result<_> {
        let me = comm.rank();
        let send = Array::full(&[me], me, DType::I32)?;
        let recv = Array::zeros(&[3], DType::I32)?;
        comm.all_gather(AllGather { send, recv: recv.clone(), recv_counts: vec![0, 1, 2] })?;
        comm.send(Send { data: recv.narrow(0, 0, 1)?, to: (me + 1) % 3, tag: 7 })?;
        let got = Array::zeros(&[1], DType::I32)?;
        comm.recv(Recv { data: got.clone(), from: (me + 2) % 3, tag: 7 })?;
        let pair = comm.split(&[vec![2, 0], vec![1]])?.expect("every rank is in a group");
        let word = Array::full(&[1], me, DType::I64)?;
        pair.broadcast(Broadcast { data: word.clone(), root: 0 })?;
        Ok((recv.to_vec::<i32>()?, got.to_vec::<i32>()?, word.to_vec::<i64>()?))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let word = if rank == 1 { 1 } else { 2 };
        assert_eq!(result.unwrap(), (vec![1, 2, 2], vec![1], vec![word]));
    }
}
