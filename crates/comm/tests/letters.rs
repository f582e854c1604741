//! Ranks whose letters somebody else carries: the conformance suite, the bits of thread ranks, and a carrier that breaks.

use planaria_array::{Array, DType};
use planaria_comm::letters::{Depot, Options};
use planaria_comm::{AllReduce, Comm, CommExt, Error, conformance, threads};
use planaria_layout::Reduce;
use std::sync::Arc;
use std::time::Duration;

/// Runs `work` on ranks that are connected by one carrying thread each.
fn run<R: Send>(ranks: usize, work: impl Fn(Arc<dyn Comm>, &Depot) -> R + Sync) -> Vec<R> {
    let depots: Vec<_> = (0..ranks).map(|rank| Depot::new(rank, ranks).unwrap()).collect();
    let one = |depot: &Arc<Depot>| {
        let options = Options { timeout: Duration::from_secs(60), ..Options::default() };
        let connection = depot.connect(&options).unwrap();
        let end = work(connection.comm(), depot);
        // Nobody leaves before the others are done.
        let _ = connection.comm().barrier();
        end
    };
    let one = &one;
    std::thread::scope(|scope| {
        for (from, depot) in depots.iter().enumerate() {
            let all = &depots;
            scope.spawn(move || {
                while !depot.is_closed() {
                    let Some(parcel) = depot.take(Duration::from_millis(20)) else { continue };
                    let bytes = Array::from_slice(parcel.bytes(), &[parcel.bytes().len()]).unwrap();
                    all[parcel.to].deliver(from, parcel.tag, &bytes).unwrap();
                }
            });
        }
        let ranks: Vec<_> = depots.iter().map(|depot| scope.spawn(move || one(depot))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn carried_ranks_conform() {
    for ranks in 1..=3 {
        for (rank, result) in run(ranks, |comm, _| conformance::run(&comm)).into_iter().enumerate() {
            assert_eq!(result, Ok(()), "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn carried_ranks_give_the_bits_of_thread_ranks() {
    let ours = run(3, |comm, _| conformance::digest(&comm, 5, 40).unwrap());
    assert_eq!(ours, threads::run(3, |comm| conformance::digest(&comm, 5, 40).unwrap()));
}

#[test]
fn a_broken_carrier_fails_the_calls_with_its_reason() {
    let ends = run(2, |comm, depot| {
        if comm.rank() == 1 {
            depot.fail("the cable was cut");
        }
        // What was sent before may still arrive; the call after it cannot.
        let x = Array::full(&[4], 1, DType::F32).unwrap();
        comm.all_reduce(AllReduce { send: x.clone(), recv: x, op: Reduce::Sum }).and_then(|()| comm.barrier())
    });
    let said = |end: &Result<(), Error>| end.as_ref().unwrap_err().to_string();
    assert!(ends.iter().all(|end| said(end).contains("the cable was cut")), "{ends:?}");
    assert!(Depot::new(2, 2).is_err());
}
