//! The thread engine under a model checker: random schedules of every lock, condition and atomic access. A wait
//! that nobody ends shows as a deadlock, because time never passes here.

use planaria_array::{Array, DType};
use planaria_comm::threads::{self, Options};
use planaria_comm::{
    AllGather, AllReduce, AllToAll, Broadcast, Call, Comm, CommExt, Error, Recv, ReduceScatter, Result, Send,
    Value, value,
};
use planaria_layout::Reduce;
use std::sync::Arc;

/// Runs `work` on `ranks` model threads under many schedules.
fn explore(ranks: usize, work: fn(Arc<dyn Comm>)) {
    let run = move || {
        let comms = threads::create(&Options::new(ranks));
        let spawn = |comm: Arc<dyn Comm>| shuttle::thread::spawn(move || work(comm));
        let threads: Vec<_> = comms.into_iter().map(spawn).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    };
    shuttle::check_random(run, 300);
    shuttle::check_pct(run, 300, 3);
}

fn sum(comm: &Arc<dyn Comm>, x: &Array) -> Call {
    let _ = comm;
    Call::AllReduce(AllReduce { send: x.clone(), recv: x.clone(), op: Reduce::Sum })
}

#[test]
fn blocking_and_started_calls_end() {
    explore(3, |comm| {
        let (small, large) =
            (Array::full(&[2], 1, DType::F32).unwrap(), Array::full(&[70_000], 2, DType::F32).unwrap());
        let first = comm.start(sum(&comm, &large)).unwrap();
        comm.run(sum(&comm, &small)).unwrap();
        comm.barrier().unwrap();
        first.wait().unwrap();
        assert_eq!(small.to_vec::<f32>().unwrap(), [3.0; 2]);
        assert_eq!(large.to_vec::<f32>().unwrap()[69_999], 6.0);
        // Nobody holds the bytes once the call is over.
        assert!(!large.is_snapshotted());
    });
}

#[test]
fn groups_and_messages_end() {
    explore(3, |comm| {
        let pair = comm.split(&[vec![0, 2]]).unwrap();
        let x = Array::full(&[1], comm.rank(), DType::I32).unwrap();
        if let Some(pair) = pair {
            pair.run(sum(&pair, &x)).unwrap();
            assert_eq!(x.to_vec::<i32>().unwrap(), [2]);
        }
        let (next, last) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        let got = Array::zeros(&[1], DType::I32).unwrap();
        let pending = comm.start(Call::Recv(Recv { data: got.clone(), from: last, tag: 1 })).unwrap();
        comm.send(Send { data: Array::full(&[1], comm.rank(), DType::I32).unwrap(), to: next, tag: 1 })
            .unwrap();
        pending.wait().unwrap();
        assert_eq!(got.to_vec::<i32>().unwrap(), [last as i32]);
    });
}

#[test]
fn an_abort_ends_every_wait() {
    explore(3, |comm| {
        let x = Array::zeros(&[1], DType::F32).unwrap();
        let end: Result<()> = match comm.rank() {
            0 => {
                comm.abort("enough");
                comm.barrier()
            }
            1 => comm.broadcast(Broadcast { data: x, root: 0 }),
            _ => comm.recv(Recv { data: x, from: 0, tag: 0 }),
        };
        assert_eq!(end, Err(Error::Aborted { rank: 0, reason: "enough".into() }));
    });
}

#[test]
fn a_mismatch_ends_every_wait() {
    explore(3, |comm| {
        let x = Array::zeros(&[1], DType::F32).unwrap();
        let end = if comm.rank() == 1 { comm.barrier() } else { comm.run(sum(&comm, &x)) };
        assert!(matches!(end, Err(Error::Mismatch { sequence: 0, .. })), "{end:?}");
    });
}

/// Every kind of work that pieces are cut into, blocking and started, with a part that is empty.
#[test]
fn every_collective_ends_with_the_right_bytes() {
    explore(3, |comm| {
        let rank = comm.rank();
        let mine = Array::full(&[rank * 2], rank, DType::I32).unwrap();
        let gathered = Array::empty(&[6], DType::I32).unwrap();
        let call = AllGather { send: mine, recv: gathered.clone(), recv_counts: vec![0, 2, 4] };
        let gather = comm.start(Call::AllGather(call)).unwrap();
        let (whole, part) =
            (Array::full(&[3], rank + 1, DType::I32).unwrap(), Array::empty(&[rank], DType::I32).unwrap());
        let call = ReduceScatter {
            send: whole.clone(),
            recv: part.clone(),
            send_counts: vec![0, 1, 2],
            op: Reduce::Avg,
        };
        comm.reduce_scatter(call).unwrap();
        assert_eq!(part.to_vec::<i32>().unwrap(), vec![2; rank]);
        let all = Array::empty(&[3], DType::I32).unwrap();
        let counts = vec![1; 3];
        let call =
            AllToAll { send: whole, send_counts: counts.clone(), recv: all.clone(), recv_counts: counts };
        comm.all_to_all(call).unwrap();
        assert_eq!(all.to_vec::<i32>().unwrap(), [1, 2, 3]);
        gather.wait().unwrap();
        assert_eq!(gathered.to_vec::<i32>().unwrap(), [1, 1, 2, 2, 2, 2]);
    });
}

/// A structure that one rank cannot pack ends the call everywhere, and the ranks go on.
#[test]
fn a_structure_that_is_refused_ends_every_wait() {
    explore(2, |comm| {
        let deep = (0..100).fold(Value::None, |inner, _| Value::List(vec![inner]));
        let mine = if comm.rank() == 1 { deep } else { Value::Int(1) };
        assert!(matches!(value::all_gather(&*comm, &mine), Err(Error::Remote { rank: 1, .. })));
        assert!(matches!(value::broadcast(&*comm, &mine, 1), Err(Error::Remote { rank: 1, .. })));
        comm.barrier().unwrap();
    });
}
