//! `comm`: the collectives on 2 and 4 thread ranks, at 1 KiB, 1 MiB and 64 MiB of f32 on every rank.
//!
//! Beside each stand the copy of the bytes that every rank must take in, out of its neighbour's memory and behind one
//! barrier (no rank may go on before all have come); torch's gloo; and Open MPI's own collectives where `mpicc` and
//! `mpirun` are. The barrier is the standard library's, so that the measure stays where it is when ours gets faster; it
//! is met before every copy, as a collective is, so that ranks which share a processor share its cache too. The copy of
//! a rank's own bytes without a barrier is told beside it and decides nothing. All run in turn, round by round, so that
//! they meet the same machine; ratios are medians over rounds. Bars: at most 1.5 times the copy behind its barrier, and
//! no slower than gloo; 0.6 of gloo for the all-reduce of 64 MiB.

use anyhow::{Context, Result, bail};
use clap::Parser;
use planaria_array::{Array, DType};
use planaria_bench::peer::{self, Peer};
use planaria_bench::stats;
use planaria_comm::{AllGather, AllReduce, AllToAll, Broadcast, Call, Comm, CommExt, ReduceScatter, threads};
use planaria_layout::Reduce;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier, LazyLock, Mutex, OnceLock};
use std::time::Instant;

const COPY_BAR: f64 = 1.5;
const GLOO_BAR: f64 = 1.0;
const LARGE_ALL_REDUCE_BAR: f64 = 0.6;

/// Elements of 1 KiB, 1 MiB and 64 MiB of f32, and calls that are timed together.
const SIZES: [(usize, usize); 3] = [(1 << 8, 300), (1 << 18, 20), (1 << 24, 1)];

#[derive(Parser)]
struct Args {
    /// Python with torch; without it gloo is skipped
    #[arg(long)]
    python: Option<PathBuf>,
    /// Rounds over all contestants
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Only these collectives
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    AllReduce,
    InPlace,
    AllGather,
    ReduceScatter,
    Broadcast,
    AllToAll,
}

impl Case {
    const ALL: [Case; 6] = [
        Case::AllReduce,
        Case::InPlace,
        Case::AllGather,
        Case::ReduceScatter,
        Case::Broadcast,
        Case::AllToAll,
    ];

    fn name(self) -> &'static str {
        match self {
            Case::AllReduce => "all_reduce",
            Case::InPlace => "all_reduce, in place",
            Case::AllGather => "all_gather",
            Case::ReduceScatter => "reduce_scatter",
            Case::Broadcast => "broadcast",
            Case::AllToAll => "all_to_all",
        }
    }

    /// What the peers call it; an all-reduce of theirs is in place.
    fn peer_name(self) -> &'static str {
        if self == Case::InPlace { "all_reduce" } else { self.name() }
    }

    /// The call on arrays of `count` elements in all.
    fn call(self, comm: &dyn Comm, count: usize, whole: &Array, recv: &Array) -> Result<Call> {
        let (size, rank) = (comm.size(), comm.rank());
        let (op, counts) = (Reduce::Max, vec![count / size; size]);
        let part = |array: &Array| array.narrow(0, rank * (count / size), count / size);
        Ok(match self {
            Case::AllReduce => Call::AllReduce(AllReduce { send: whole.clone(), recv: recv.clone(), op }),
            Case::InPlace => Call::AllReduce(AllReduce { send: recv.clone(), recv: recv.clone(), op }),
            Case::AllGather => {
                Call::AllGather(AllGather { send: part(whole)?, recv: recv.clone(), recv_counts: counts })
            }
            Case::ReduceScatter => {
                let recv = recv.narrow(0, 0, count / size)?.copy()?;
                Call::ReduceScatter(ReduceScatter { send: whole.clone(), recv, send_counts: counts, op })
            }
            Case::Broadcast => {
                Call::Broadcast(Broadcast { data: if rank == 0 { whole } else { recv }.clone(), root: 0 })
            }
            Case::AllToAll => Call::AllToAll(AllToAll {
                send: whole.clone(),
                send_counts: counts.clone(),
                recv: recv.clone(),
                recv_counts: counts,
            }),
        })
    }
}

/// Seconds of one call of each contestant in one round.
#[derive(Clone, Copy)]
struct Round {
    /// Of a rank's own bytes, again and again without waiting for anyone.
    own_copy: f64,
    /// Of the neighbour's, behind a barrier.
    copy: f64,
    /// One of the standard library's barriers, and one of ours.
    barrier: f64,
    own_barrier: f64,
    ours: f64,
    gloo: Option<f64>,
    open_mpi: Option<f64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!(
        "| collective | KiB | ranks | own copy, us | barrier, us | barrier and copy, us | our barrier, us | ours, us | gloo, us | Open MPI, us | to barrier and copy | to gloo | to Open MPI |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    let wanted = |case: &Case| args.only.is_empty() || args.only.iter().any(|name| name == case.peer_name());
    for ranks in [2, 4] {
        let gloo = args.python.as_deref().map(|python| gloo(python, ranks)).transpose()?;
        let peers = Mutex::new((gloo, open_mpi(ranks)?));
        for (count, calls) in SIZES {
            for case in Case::ALL.into_iter().filter(wanted) {
                let rounds = measure(case, ranks, count, calls, args.rounds, &peers)?;
                missed.extend(report(case, ranks, count, &rounds));
            }
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => bail!("{}", missed.join("; ")),
    }
}

/// Prints a line; gives the bars that were missed.
fn report(case: Case, ranks: usize, count: usize, rounds: &[Round]) -> Vec<String> {
    let us = |time: fn(&Round) -> f64| 1e6 * median(rounds.iter().map(time));
    let to_copy = median(rounds.iter().map(|r| r.ours / r.copy));
    let to_gloo = median(rounds.iter().filter_map(|r| r.gloo.map(|gloo| r.ours / gloo)));
    let to_mpi = median(rounds.iter().filter_map(|r| r.open_mpi.map(|mpi| r.ours / mpi)));
    let (name, kib) = (case.name(), count * 4 / 1024);
    println!(
        "| {name} | {kib} | {ranks} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {to_copy:.2} | {to_gloo:.2} | {to_mpi:.2} |",
        us(|r| r.own_copy),
        us(|r| r.barrier),
        us(|r| r.copy),
        us(|r| r.own_barrier),
        us(|r| r.ours),
        us(|r| r.gloo.unwrap_or(f64::NAN)),
        us(|r| r.open_mpi.unwrap_or(f64::NAN)),
    );
    let is_large_sum = case.peer_name() == "all_reduce" && count == SIZES[2].0;
    let gloo_bar = if is_large_sum { LARGE_ALL_REDUCE_BAR } else { GLOO_BAR };
    let bars = [("barrier and copy", to_copy, COPY_BAR), ("gloo", to_gloo, gloo_bar)];
    let over = bars.into_iter().filter(|(_, ratio, bar)| ratio > bar);
    over.map(|(what, ratio, bar)| {
        format!("{name} of {kib} KiB on {ranks} ranks: {ratio:.2} of {what}, the bar is {bar}")
    })
    .collect()
}

/// NaN, which misses no bar, when there is nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    stats::median(values.filter(|value| !value.is_nan())).unwrap_or(f64::NAN)
}

type Peers = Mutex<(Option<Peer>, Option<Peer>)>;

fn measure(
    case: Case,
    ranks: usize,
    count: usize,
    calls: usize,
    rounds: usize,
    peers: &Peers,
) -> Result<Vec<Round>> {
    let meeting = Barrier::new(ranks);
    let lent: Vec<OnceLock<Vec<f32>>> = (0..ranks).map(|_| OnceLock::new()).collect();
    let results = threads::run(ranks, |comm| -> Result<Vec<Round>> {
        let whole = Array::full(&[count], comm.rank() + 1, DType::F32)?;
        let recv = Array::full(&[count], 0, DType::F32)?;
        // Each rank makes its own, so that the pages are where its arrays are.
        let from = lent[comm.rank()].get_or_init(|| vec![1f32; count]);
        let mut to = vec![0f32; count];
        comm.barrier()?;
        let neighbours = lent[(comm.rank() + 1) % ranks].get().context("a rank made no bytes")?;
        let takes_part = case != Case::Broadcast || comm.rank() > 0;
        let call = case.call(&*comm, count, &whole, &recv)?;
        let mut kept = Vec::new();
        for round in 0..rounds + 2 {
            let mut copy = |from: &[f32]| {
                if takes_part {
                    to.copy_from_slice(std::hint::black_box(from));
                    std::hint::black_box(&mut to);
                }
            };
            let own_copy = together(&comm, calls, || {
                copy(from);
                Ok(())
            })?;
            let copy = together(&comm, calls, || {
                meeting.wait();
                copy(neighbours);
                Ok(())
            })?;
            let barrier = together(&comm, 100, || {
                meeting.wait();
                Ok(())
            })?;
            let own_barrier = together(&comm, 100, || Ok(comm.barrier()?))?;
            let ours = together(&comm, calls, || Ok(comm.run(call.clone())?))?;
            let (mut gloo, mut open_mpi) = (None, None);
            if comm.rank() == 0
                && let Ok(mut peers) = peers.lock()
            {
                let mut ask = |peer: &mut Peer| peer.round(case.peer_name(), count, calls);
                gloo = peers.0.as_mut().map(&mut ask).transpose()?;
                open_mpi = peers.1.as_mut().map(&mut ask).transpose()?;
            }
            // The first rounds fill caches and page tables.
            if round >= 2 {
                kept.push(Round { own_copy, copy, barrier, own_barrier, ours, gloo, open_mpi });
            }
        }
        Ok(kept)
    });
    results.into_iter().next().context("no ranks")?
}

/// Seconds of one of `calls` calls, from the first rank's start to the last one's end: where ranks outnumber processors, some begin
/// when others have finished.
fn together(comm: &Arc<dyn Comm>, calls: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    let now = || EPOCH.elapsed().as_secs_f64();
    comm.barrier()?;
    let begin = now();
    (0..calls).try_for_each(|_| work())?;
    let ends = Array::from_slice(&[-begin, now()], &[2])?;
    comm.all_reduce(AllReduce { send: ends.clone(), recv: ends.clone(), op: Reduce::Max })?;
    Ok(ends.to_vec::<f64>()?.iter().sum::<f64>() / calls as f64)
}

fn gloo(python: &Path, ranks: usize) -> Result<Peer> {
    let mut command = Command::new(python);
    command.arg(peer::sources().join("gloo.py")).arg(ranks.to_string());
    Peer::start(command).context("starting torch")
}

fn open_mpi(ranks: usize) -> Result<Option<Peer>> {
    let Some(program) = peer::open_mpi()? else { return Ok(None) };
    let mut command = Command::new("mpirun");
    peer::mpirun(&mut command).args(["--oversubscribe", "-n", &ranks.to_string()]).arg(program);
    Peer::start(command).map(Some).context("starting mpirun")
}
