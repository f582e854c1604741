//! Ranks on several hosts: the conformance suite, the bits of thread ranks, the bytes that cross, and ranks that are late or make another call.

use planaria_array::{Array, DType};
use planaria_comm::letters::{Crossing, Options, Traffic, crossing};
use planaria_comm::sockets::{self, Meter, Network, Place};
use planaria_comm::{
    AllGather, AllReduce, AllToAll, Broadcast, Call, Comm, CommExt, Error, ReduceScatter, ReduceTo,
    conformance, threads,
};
use planaria_layout::Reduce;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Runs `work` on a rank for each entry of `hosts`: every host has a folder of its own, and somebody brings the addresses around.
fn run<R: Send>(
    hosts: &[usize],
    timeout: Duration,
    work: impl Fn(Arc<dyn Comm>, Arc<Meter>) -> Result<R, Error> + Sync,
) -> Vec<Result<R, Error>> {
    let folders: Vec<_> = hosts.iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let folder = |host: usize| folders[host].path();
    let (work, met) = (&work, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let one = |(rank, &host): (usize, &usize)| {
            let network =
                Some(Network { address: "127.0.0.1".into(), secret: [3; sockets::SECRET], first: None });
            let place = Place { rank, size: hosts.len(), folder: folder(host).to_path_buf(), network };
            let options = Options { timeout, ..Options::default() };
            scope.spawn(move || {
                let end = sockets::run_metered(&place, &options, work);
                met.store(true, Ordering::SeqCst);
                end
            })
        };
        let ranks: Vec<_> = hosts.iter().enumerate().map(one).collect();
        while !met.load(Ordering::SeqCst) {
            for (rank, &host) in hosts.iter().enumerate() {
                let Ok(address) = std::fs::read_to_string(sockets::address_file(folder(host), rank)) else {
                    continue;
                };
                for other in hosts.iter().map(|&other| folder(other)) {
                    if !sockets::address_file(other, rank).exists() {
                        sockets::write_address(other, rank, &address).unwrap();
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn ranks_on_hosts_conform() {
    // Two on each, uneven, and hosts whose ranks are not neighbours, which send straight to each other.
    for hosts in [&[0, 0, 1, 1][..], &[0, 1, 1, 2], &[0, 1, 0]] {
        let ends = run(hosts, LONG, |comm, _| Ok(conformance::run(&comm)));
        for (rank, end) in ends.into_iter().enumerate() {
            assert_eq!(end.unwrap(), Ok(()), "rank {rank} on {hosts:?}");
        }
    }
}

#[test]
fn ranks_on_hosts_give_the_bits_of_thread_ranks() {
    for (hosts, seed) in [(&[0, 0, 1, 1, 1][..], 5), (&[2, 1, 1, 0, 0], 6)] {
        let ours = run(hosts, LONG, |comm, _| Ok(conformance::digest(&comm, seed, 60).unwrap()));
        let ours: Vec<_> = ours.into_iter().map(Result::unwrap).collect();
        assert_eq!(ours, threads::run(5, |comm| conformance::digest(&comm, seed, 60).unwrap()), "{hosts:?}");
    }
}

/// The call of one rank that moves this traffic.
fn call(traffic: &Traffic, rank: usize) -> Call {
    let array = |count: usize, dtype: DType| Array::full(&[count], 1, dtype).unwrap();
    match traffic.clone() {
        Traffic::AllReduce { op, dtype, count } => {
            Call::AllReduce(AllReduce { send: array(count, dtype), recv: array(count, dtype), op })
        }
        Traffic::Reduce { op, dtype, count, root } => {
            Call::Reduce(ReduceTo { send: array(count, dtype), recv: Some(array(count, dtype)), op, root })
        }
        Traffic::Broadcast { dtype, count, root } => {
            Call::Broadcast(Broadcast { data: array(count, dtype), root })
        }
        Traffic::AllGather { dtype, counts } => Call::AllGather(AllGather {
            send: array(counts[rank], dtype),
            recv: array(counts.iter().sum(), dtype),
            recv_counts: counts,
        }),
        Traffic::ReduceScatter { op, dtype, counts } => Call::ReduceScatter(ReduceScatter {
            send: array(counts.iter().sum(), dtype),
            recv: array(counts[rank], dtype),
            send_counts: counts,
            op,
        }),
        Traffic::AllToAll { dtype, counts } => {
            let from: Vec<usize> = counts.iter().map(|row| row[rank]).collect();
            Call::AllToAll(AllToAll {
                send: array(counts[rank].iter().sum(), dtype),
                send_counts: counts[rank].clone(),
                recv: array(from.iter().sum(), dtype),
                recv_counts: from,
            })
        }
    }
}

#[test]
fn the_bytes_that_cross_are_those_that_were_told() {
    let op = Reduce::Avg;
    let counts = vec![70_000, 3, 0, 50_001, 9];
    let square = (0..5).map(|i| (0..5).map(|j| 1000 * i + j).collect()).collect();
    let traffic = [
        Traffic::AllReduce { op, dtype: DType::F32, count: 0 },
        Traffic::AllReduce { op, dtype: DType::F32, count: 700 },
        Traffic::AllReduce { op, dtype: DType::F32, count: 2000 },
        Traffic::AllReduce { op, dtype: DType::F32, count: 300_001 },
        Traffic::AllReduce { op, dtype: DType::BF16, count: 200_003 },
        Traffic::AllReduce { op: Reduce::Max, dtype: DType::I8, count: 30_000 },
        Traffic::Reduce { op, dtype: DType::F32, count: 100_000, root: 1 },
        Traffic::Reduce { op, dtype: DType::F16, count: 100_000, root: 4 },
        Traffic::Broadcast { dtype: DType::U8, count: 1_000_001, root: 3 },
        Traffic::Broadcast { dtype: DType::U8, count: 5000, root: 0 },
        Traffic::AllGather { dtype: DType::I64, counts: counts.clone() },
        Traffic::ReduceScatter { op, dtype: DType::F64, counts: counts.clone() },
        Traffic::AllToAll { dtype: DType::U16, counts: square },
    ];
    for hosts in [&[0, 0, 0, 1, 1][..], &[0, 1, 1, 2, 2], &[0, 1, 0, 1, 0]] {
        let told = run(hosts, LONG, |comm, meter| {
            let sent = || (0..5).map(|rank| meter.sent(rank).0).collect::<Vec<_>>();
            let mut told = Vec::new();
            for traffic in &traffic {
                let before = sent();
                comm.run(call(traffic, comm.rank()))?;
                comm.barrier()?;
                told.push(
                    sent().into_iter().zip(before).map(|(now, before)| now - before).collect::<Vec<u64>>(),
                );
            }
            Ok(told)
        });
        let told: Vec<_> = told.into_iter().map(Result::unwrap).collect();
        for (i, traffic) in traffic.iter().enumerate() {
            let mut measured = Crossing::new();
            for (from, to) in (0..5).flat_map(|from| (0..5).map(move |to| (from, to))) {
                if hosts[from] != hosts[to] && told[from][i][to] > 0 {
                    *measured.entry((hosts[from], hosts[to])).or_default() += told[from][i][to];
                }
            }
            assert_eq!(measured, crossing(hosts, traffic), "{traffic:?} on {hosts:?}");
        }
    }
}

fn sum(comm: &Arc<dyn Comm>, count: usize) -> Result<(), Error> {
    let x = Array::full(&[count], 1, DType::F32)?;
    comm.all_reduce(AllReduce { send: x.clone(), recv: x, op: Reduce::Sum })
}

#[test]
fn a_rank_that_does_not_come_is_named_and_not_those_that_wait_for_it() {
    let ended = AtomicUsize::new(0);
    let ends = run(&[0, 0, 1, 1], Duration::from_secs(5), |comm, _| {
        sum(&comm, 100_000)?;
        if comm.rank() == 3 {
            while ended.load(Ordering::SeqCst) < 3 {
                std::thread::sleep(Duration::from_millis(5));
            }
            return sum(&comm, 100_000);
        }
        let end = sum(&comm, 100_000);
        ended.fetch_add(1, Ordering::SeqCst);
        end
    });
    for end in ends {
        let said = end.unwrap_err().to_string();
        assert!(said.contains("all_reduce number 1: rank 3 did not arrive"), "{said}");
    }
}

#[test]
fn ranks_of_other_hosts_that_make_another_call_are_told() {
    let ends = run(&[0, 0, 1, 1], LONG, |comm, _| match comm.rank() {
        0 => sum(&comm, 100_000),
        1 => comm.broadcast(Broadcast { data: Array::full(&[100_000], 1, DType::F32)?, root: 1 }),
        2 => comm.barrier(),
        _ => sum(&comm, 3),
    });
    for end in ends {
        let said = end.unwrap_err().to_string();
        assert!(said.contains("counts [100000]") || said.contains("barrier"), "{said}");
    }
}
