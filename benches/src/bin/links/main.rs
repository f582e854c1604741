//! `links`: collectives between processes, on one host and over two hosts whose link is shaped, beside Open MPI's own.
//!
//! The two hosts are network namespaces joined by a pair of interfaces that let so many bits through in each direction; they need root and
//! iproute2, and are skipped visibly without. Contestants run in turn, round by round; ratios are medians over rounds. Bars: an all-reduce of 64
//! MiB over 2 hosts with 2 ranks each takes the bytes that must cross at 0.9 of what a plain TCP stream gets through the same link, and is no slower
//! than Open MPI's.

mod job;

use anyhow::{Result, bail};
use clap::Parser;
use job::Job;
use planaria_array::DType;
use planaria_bench::bed::{self, Bed};
use planaria_bench::machine::Machine;
use planaria_bench::peer::{self, Peer};
use planaria_bench::{record, stats};
use planaria_comm::letters::{Traffic, crossing};
use planaria_layout::Reduce;
use std::path::{Path, PathBuf};
use std::process::Command;

const LINK_BAR: f64 = 0.9;
const MPI_BAR: f64 = 1.0;

/// Elements of 1 KiB, 1 MiB and 64 MiB of f32, and calls that are timed together.
const SIZES: [(usize, usize); 3] = [(1 << 8, 200), (1 << 18, 20), (1 << 24, 1)];

#[derive(Parser)]
struct Args {
    /// Rounds over all contestants
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Millions of bits that the link lets through in a second, in each direction
    #[arg(long, default_value_t = 1000)]
    mbit: u64,
    /// `one` host or `two`; both when absent
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    child: job::Child,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.child.is_here() {
        return args.child.run();
    }
    let wanted = |what: &str| args.only.as_deref().is_none_or(|only| only == what);
    let machine = Machine::here(None);
    let command = record::command("links", &[]);
    print!("{}", record::head("Collectives between processes", &command, &machine, &[]));
    let program = peer::open_mpi()?;
    if wanted("one") {
        one_host(args.rounds, program.as_deref())?;
    }
    let missed = match wanted("two") {
        true => two_hosts(args.rounds, args.mbit, program.as_deref())?,
        false => Vec::new(),
    };
    if let Some(program) = program {
        let _ = std::fs::remove_file(program);
    }
    match missed.is_empty() {
        true => Ok(()),
        false => bail!("{}", missed.join("; ")),
    }
}

fn middle(values: &[f64]) -> f64 {
    stats::median(values.iter().copied()).unwrap_or(f64::NAN)
}

/// Seconds of a call of ours and of Open MPI's, one pair for each round.
fn rounds(
    rounds: usize,
    ours: &mut Job,
    theirs: &mut Option<Peer>,
    collective: &str,
    (count, calls): (usize, usize),
    mut before: impl FnMut() -> Result<()>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut kept = (Vec::new(), Vec::new());
    for round in 0..rounds + 1 {
        before()?;
        let own = ours.round(collective, count, calls)?;
        let other = theirs.as_mut().map(|peer| peer.round(collective, count, calls)).transpose()?;
        // The first round fills caches, page tables and windows.
        if round > 0 {
            kept.0.push(own);
            kept.1.push(other.unwrap_or(f64::NAN));
        }
    }
    Ok(kept)
}

fn one_host(count: usize, program: Option<&Path>) -> Result<()> {
    println!(
        "\n## One host\n\n| collective | KiB | ranks | ours, us | Open MPI, us | to Open MPI |\n|---|---|---|---|---|---|"
    );
    for ranks in [2, 4] {
        let mut ours = Job::start(&vec![None; ranks])?;
        let start = |program: &Path| {
            let mut command = Command::new("mpirun");
            peer::mpirun(&mut command).args(["--oversubscribe", "-n", &ranks.to_string()]).arg(program);
            Peer::start(command)
        };
        let mut theirs = program.map(start).transpose()?;
        for size in SIZES {
            for collective in ["all_reduce", "all_gather"] {
                let (own, other) = rounds(count, &mut ours, &mut theirs, collective, size, || Ok(()))?;
                let ratio: Vec<f64> = own.iter().zip(&other).map(|(own, other)| own / other).collect();
                println!(
                    "| {collective} | {} | {ranks} | {:.1} | {:.1} | {:.2} |",
                    size.0 * 4 / 1024,
                    1e6 * middle(&own),
                    1e6 * middle(&other),
                    middle(&ratio)
                );
            }
        }
    }
    Ok(())
}

/// Prints the rows over a link; gives the bars that were missed.
fn two_hosts(count: usize, mbit: u64, program: Option<&Path>) -> Result<Vec<String>> {
    println!("\n## Two hosts with two ranks each, {mbit} Mbit/s between them\n");
    let bed = match Bed::make(mbit) {
        Ok(bed) => bed,
        Err(error) => {
            println!("Skipped: {error:#}");
            return Ok(Vec::new());
        }
    };
    let mut ours = Job::start(&[0, 0, 1, 1].map(|host| Some(bed.host(host))))?;
    let mut theirs = program.map(|program| open_mpi(&bed, program)).transpose()?;
    println!(
        "| collective | MiB | must cross, MiB | plain TCP, MB/s | ours, s | of the link | Open MPI, s | to Open MPI |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    for collective in ["all_reduce", "all_gather"] {
        let elements = SIZES[2].0;
        let traffic = match collective {
            "all_reduce" => Traffic::AllReduce { op: Reduce::Max, dtype: DType::F32, count: elements },
            _ => Traffic::AllGather { dtype: DType::F32, counts: vec![elements / 4; 4] },
        };
        let bytes = crossing(&[0, 0, 1, 1], &traffic).into_values().max().unwrap_or(0);
        let mut rates = Vec::new();
        let plain = || {
            rates.push(job::plain_rate(&bed)?);
            Ok(())
        };
        let (own, other) = rounds(count, &mut ours, &mut theirs, collective, (elements, 1), plain)?;
        let shares: Vec<f64> =
            own.iter().zip(&rates[1..]).map(|(seconds, rate)| bytes as f64 / seconds / rate).collect();
        let ratios: Vec<f64> = own.iter().zip(&other).map(|(own, other)| own / other).collect();
        let (share, ratio) = (middle(&shares), middle(&ratios));
        println!(
            "| {collective} | 64 | {} | {:.1} | {:.3} | {share:.3} | {:.3} | {ratio:.2} |",
            bytes >> 20,
            middle(&rates) / 1e6,
            middle(&own),
            middle(&other)
        );
        if collective == "all_reduce" && share < LINK_BAR {
            missed.push(format!("{collective}: {share:.3} of the link, the bar is {LINK_BAR}"));
        }
        if ratio > MPI_BAR {
            missed.push(format!("{collective}: {ratio:.2} of Open MPI's time, the bar is {MPI_BAR}"));
        }
    }
    Ok(missed)
}

/// Open MPI's ranks on both hosts: its launcher runs on the first and reaches the second by a command instead of ssh.
fn open_mpi(bed: &Bed, program: &Path) -> Result<Peer> {
    let agent: PathBuf = bed.agent()?;
    let [first, second] = [0, 1].map(|host| bed.host(host));
    let mut command = first.named("mpirun");
    peer::mpirun(&mut command)
        .args(["--mca", "plm_rsh_agent"])
        .arg(agent)
        .args(["--mca", "btl", "self,vader,tcp", "--oversubscribe", "-n", "4"])
        .args(["--mca", "btl_tcp_if_include", bed::NETWORK, "--mca", "oob_tcp_if_include", bed::NETWORK])
        .args(["--host", &format!("{}:2,{}:2", first.address, second.address)])
        .arg(program);
    Peer::start(command)
}
