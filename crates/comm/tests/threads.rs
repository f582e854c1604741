//! Thread ranks: the conformance suite, and what only this engine can promise.

use planaria_array::{Array, DType};
use planaria_comm::threads::{self, Options};
use planaria_comm::{
    AllGather, AllReduce, AllToAll, Broadcast, Call, Comm, CommExt, Error, Fault, Recv, ReduceScatter,
    Result, Trip, alone, checked, conformance, faulty,
};
use planaria_layout::Reduce;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn conforms(results: Vec<std::result::Result<(), (&'static str, conformance::Failure)>>) {
    for (rank, result) in results.into_iter().enumerate() {
        assert_eq!(result, Ok(()), "rank {rank}");
    }
}

#[test]
fn thread_ranks_conform() {
    for ranks in 1..=4 {
        conforms(threads::run(ranks, |comm| conformance::run(&comm)));
    }
}

#[test]
fn a_rank_alone_conforms() {
    conforms(vec![conformance::run(&alone())]);
}

#[test]
fn wrappers_conform() {
    conforms(threads::run(3, |comm| conformance::run(&checked(comm))));
    conforms(threads::run(2, |comm| conformance::run(&faulty(comm, &[]))));
}

#[test]
fn a_group_of_some_ranks_conforms() {
    conforms(threads::run(4, |comm| {
        let group = comm.split(&[vec![3, 1, 2]]).map_err(|e| ("split", e.into()))?;
        group.map_or(Ok(()), |group| conformance::run(&group))
    }));
}

#[test]
fn a_started_call_that_nobody_waits_for_is_delivered_and_holds_nothing() {
    for count in [1, 100, 100_000] {
        let got = threads::run(3, |comm| {
            let x = Array::full(&[count], comm.rank() + 1, DType::F32)?;
            let call = Call::AllReduce(AllReduce { send: x.clone(), recv: x.clone(), op: Reduce::Sum });
            // One rank goes its way; who comes last does its part.
            match comm.rank() {
                0 => drop(comm.start(call)?),
                _ => comm.run(call)?,
            }
            comm.barrier()?;
            Ok((x.to_vec::<f32>()?, x.is_snapshotted()))
        });
        let got: Result<Vec<_>> = got.into_iter().collect();
        assert_eq!(got, Ok(vec![(vec![6.0; count], false); 3]), "{count} elements");
    }
}

/// What large calls leave in their receiving arrays, which `place` makes: whole ones are written in parts, others under their locks.
fn large(comm: &Arc<dyn Comm>, place: &dyn Fn(usize) -> Array) -> Result<Vec<Vec<f32>>> {
    let (rank, size) = (comm.rank(), comm.size());
    // Parts of different lengths, which pieces do not divide.
    let counts: Vec<usize> = (0..size).map(|rank| 70_001 + 13 * rank).collect();
    let count = counts.iter().sum();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7 + rank * 1009) % 8191) as f32).collect();
    let send = Array::from_slice(&values, &[count])?;
    let (all, own, like) = (place(count), place(counts[rank]), place(count));
    comm.all_reduce(AllReduce { send: send.clone(), recv: all.clone(), op: Reduce::Sum })?;
    let (op, send_counts) = (Reduce::Max, counts.clone());
    comm.reduce_scatter(ReduceScatter { send: send.clone(), recv: own.clone(), send_counts, op })?;
    comm.all_gather(AllGather { send: own.clone(), recv: like.clone(), recv_counts: counts.clone() })?;
    let mine = place(counts[rank] * size);
    let recv_counts = vec![counts[rank]; size];
    comm.all_to_all(AllToAll { send: send.clone(), send_counts: counts, recv: mine.clone(), recv_counts })?;
    let (shown, twice) = (place(count), place(count));
    shown.copy_from(&send)?;
    comm.broadcast(Broadcast { data: shown.clone(), root: 1 })?;
    twice.copy_from(&send)?;
    comm.all_reduce(AllReduce { send: twice.clone(), recv: twice.clone(), op: Reduce::Sum })?;
    [all, own, like, mine, shown, twice].iter().map(|array| Ok(array.to_vec()?)).collect()
}

#[test]
fn large_calls_fill_whole_arrays_and_parts_of_larger_ones_alike() {
    let whole = |count: usize| Array::full(&[count], 7, DType::F32).unwrap();
    let inner = |count: usize| Array::full(&[count + 5], 7, DType::F32).unwrap().narrow(0, 3, count).unwrap();
    for ranks in [2, 3] {
        let found =
            threads::run(ranks, |comm| (large(&comm, &whole).unwrap(), large(&comm, &inner).unwrap()));
        for (rank, (whole, inner)) in found.iter().enumerate() {
            assert!(whole == inner, "rank {rank} of {ranks}");
            assert!(
                whole[0] == found[0].0[0] && whole[0] == whole[5],
                "all ranks have one sum, in place too"
            );
            assert!(
                whole[2] == found[0].0[2] && whole[4] == found[1].0[4],
                "and what was gathered and shown"
            );
            let at = |i: usize, rank: usize| ((i * 7 + rank * 1009) % 8191) as f32;
            let sum = |i: usize| (0..ranks).map(|rank| at(i, rank)).sum::<f32>();
            let most = |i: usize| (0..ranks).map(|rank| at(i, rank)).fold(0.0, f32::max);
            let right = |(i, &x): (usize, &f32)| x == sum(i);
            assert!(whole[0].iter().enumerate().all(right));
            assert!(whole[2].iter().enumerate().all(|(i, &x)| x == most(i)));
        }
    }
}

#[test]
fn late_ranks_change_nothing() {
    let late = |rank, call| Trip { rank, call, fault: Fault::Delay(Duration::from_millis(3)) };
    let trips: Vec<Trip> = (0..60).map(|i| late(i % 3, 7 * i as u64 % 50)).collect();
    let digest =
        |trips: &[Trip]| threads::run(3, |comm| conformance::digest(&faulty(comm, trips), 11, 60).unwrap());
    assert_eq!(digest(&trips), digest(&[]));
}

fn sum(comm: &Arc<dyn Comm>, x: &Array) -> Result<()> {
    comm.all_reduce(AllReduce { send: x.clone(), recv: x.clone(), op: Reduce::Sum })
}

fn ones() -> Array {
    Array::full(&[8], 1, DType::F32).unwrap()
}

#[test]
fn a_panic_reaches_all_peers_by_name_and_nobody_waits_for_a_timeout() {
    let trip = Trip { rank: 2, call: 1, fault: Fault::Panic };
    let waiting = AtomicUsize::new(0);
    // Whoever waited for this would wait for ever.
    let options = Options::new(4).timeout(Duration::from_secs(1 << 20));
    let outcome = threads::try_run(&options, |comm| -> Result<()> {
        let comm = faulty(comm, std::slice::from_ref(&trip));
        sum(&comm, &ones())?;
        if comm.rank() == 2 {
            while waiting.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
        }
        waiting.fetch_add(1, Ordering::SeqCst);
        let end = sum(&comm, &ones());
        assert!(
            matches!(&end, Err(Error::Aborted { rank: 2, reason }) if reason.contains("call 1")),
            "{end:?}"
        );
        end
    });
    assert!(matches!(outcome, Err(Error::Aborted { rank: 2, .. })), "{outcome:?}");
}

#[test]
fn an_error_stops_peers_that_wait_for_messages_groups_and_barriers() {
    let outcome = threads::try_run(&Options::new(4), |comm| -> Result<()> {
        let pair = comm.split(&[vec![0, 1], vec![2, 3]])?.expect("all are members");
        match comm.rank() {
            0 => Err(Error::Engine { engine: "test", what: "disk full".into() }),
            1 => pair.recv(Recv { data: ones(), from: 0, tag: 0 }),
            2 => sum(&pair, &ones()).and_then(|()| comm.barrier()),
            _ => sum(&pair, &ones())
                // On the pair: on all ranks it could be found to differ from the barrier first.
                .and_then(|()| pair.start(Call::Broadcast(Broadcast { data: ones(), root: 0 }))?.wait()),
        }
    });
    assert_eq!(outcome, Err(Error::Aborted { rank: 0, reason: "test: disk full".into() }));
}

#[test]
fn the_watchdog_names_the_call_its_number_and_the_missing_ranks() {
    let options = Options::new(3).timeout(Duration::from_millis(500));
    let errors = std::sync::Mutex::new(Vec::new());
    let outcome = threads::try_run(&options, |comm| -> Result<()> {
        comm.barrier()?;
        let rank = comm.rank();
        let comm = faulty(comm, &[Trip { rank: 1, call: 0, fault: Fault::Drop }]);
        let mut end = sum(&comm, &ones());
        if rank == 1 {
            // It believes all is well, works on, and learns of it at its next call.
            assert_eq!(end, Ok(()));
            while errors.lock().unwrap().len() < 2 {
                std::thread::yield_now();
            }
            end = comm.barrier();
        }
        errors.lock().unwrap().push(end.clone().unwrap_err());
        end
    });
    assert!(outcome.is_err());
    for error in errors.into_inner().unwrap() {
        let Error::Timeout { call, sequence, missing, .. } = &error else { panic!("{error}") };
        assert_eq!((*call, *sequence, missing.as_slice()), ("all_reduce", 1, [1].as_slice()));
        assert!(
            error.to_string().starts_with("all_reduce number 1: rank 1 did not arrive within"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_returned_is_not_waited_for() {
    let outcome = threads::try_run(&Options::new(2), |comm| -> Result<()> {
        if comm.rank() == 0 { Ok(()) } else { sum(&comm, &ones()) }
    });
    let Err(Error::Left { call, rank, sequence }) = outcome else { panic!("{outcome:?}") };
    assert_eq!((call, rank, sequence), ("all_reduce", 0, 0));
}

type Make = fn(&Arc<dyn Comm>) -> Result<()>;
type Wrap = fn(Arc<dyn Comm>) -> Arc<dyn Comm>;

/// What two ranks that make different calls are told.
fn mismatch(calls: [Make; 2], wrap: Wrap) -> Vec<String> {
    threads::run(2, |comm| calls[comm.rank()](&wrap(comm)).unwrap_err().to_string())
}

#[test]
fn mismatched_calls_are_errors_on_every_rank() {
    let whole: Make = |comm| sum(comm, &ones());
    let cases: [([Make; 2], [&str; 2]); 3] = [
        (
            [whole, |comm| sum(comm, &ones().narrow(0, 0, 4).unwrap())],
            ["all_reduce Sum f32 counts [8]", "all_reduce Sum f32 counts [4]"],
        ),
        ([whole, |comm| comm.barrier()], ["all_reduce Sum f32", "barrier"]),
        (
            [
                |comm| comm.broadcast(Broadcast { data: ones(), root: 0 }),
                |comm| comm.broadcast(Broadcast { data: ones(), root: 1 }),
            ],
            ["broadcast f32 root 0", "broadcast f32 root 1"],
        ),
    ];
    for (calls, parts) in cases {
        for wrap in [(|comm| comm) as Wrap, checked] {
            for text in mismatch(calls, wrap) {
                assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            }
        }
    }
}

#[test]
fn a_message_of_the_wrong_size_is_refused() {
    let ends = threads::run(2, |comm| match comm.rank() {
        0 => comm.send(planaria_comm::Send { data: ones(), to: 1, tag: 3 }),
        _ => comm.recv(Recv { data: Array::zeros(&[9], DType::F32).unwrap(), from: 0, tag: 3 }),
    });
    let text = ends[1].clone().unwrap_err().to_string();
    assert_eq!(text, "recv from rank 0 with tag 3: expected f32 x 9, got f32 x 8");
}

#[test]
fn started_calls_finish_while_their_ranks_do_something_else() {
    let late = threads::run(3, |comm| {
        let x = Array::full(&[1 << 20], 1, DType::F32).unwrap();
        let call = Call::AllReduce(AllReduce { send: x.clone(), recv: x.clone(), op: Reduce::Sum });
        let pending = comm.start(call).unwrap();
        let begin = Instant::now();
        while !pending.is_done() && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let done = pending.is_done();
        pending.wait().unwrap();
        (done, x.to_vec::<f32>().unwrap().iter().all(|&v| v == 3.0))
    });
    assert_eq!(late, vec![(true, true); 3]);
}

#[test]
fn what_was_sent_may_change_after_the_start() {
    let got = threads::run(2, |comm| -> Result<_> {
        let send = Array::full(&[70_000], comm.rank() + 1, DType::I32)?;
        let recv = Array::zeros(&[140_000], DType::I32)?;
        let call = AllGather { send: send.clone(), recv: recv.clone(), recv_counts: vec![70_000; 2] };
        let pending = comm.start(Call::AllGather(call))?;
        send.fill(-1)?;
        pending.wait()?;
        let got = recv.to_vec::<i32>()?;
        Ok((got[0], got[139_999], send.is_snapshotted()))
    });
    assert!(got.into_iter().all(|g| g == Ok((1, 2, false))));
}

#[test]
fn abort_is_final() {
    let ends = threads::run(2, |comm| {
        if comm.rank() == 0 {
            comm.abort("no more power");
        }
        (comm.barrier(), comm.split(&[vec![0, 1]]).map(drop))
    });
    let want = Error::Aborted { rank: 0, reason: "no more power".into() };
    assert!(ends.into_iter().all(|(a, b)| a == Err(want.clone()) && b == Err(want.clone())));
}
