//! `comm`: an all-reduce of 64 MiB of f32 on 2 and 4 thread ranks.
//!
//! Bars: at most 1.5 times what every rank needs to copy the same bytes, and at most 0.6 times torch's gloo. All
//! three run in turn, round by round, so that they meet the same machine; the ratios are medians over rounds.

use anyhow::{Context, Result, bail};
use clap::Parser;
use planaria_array::{Array, DType};
use planaria_bench::stats;
use planaria_comm::{AllReduce, Comm, CommExt, threads};
use planaria_layout::Reduce;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Elements of 64 MiB of f32.
const COUNT: usize = 16 << 20;
const COPY_BAR: f64 = 1.5;
const GLOO_BAR: f64 = 0.6;

#[derive(Parser)]
struct Args {
    /// Python with torch; without it gloo is skipped
    #[arg(long)]
    python: Option<PathBuf>,
    /// Rounds over all contestants
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

/// Seconds of one round.
#[derive(Clone, Copy)]
struct Round {
    copy: f64,
    apart: f64,
    in_place: f64,
    gloo: Option<f64>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!(
        "| ranks | copy, ms | all-reduce, ms | in place, ms | gloo, ms | to copy | in place to copy | to gloo |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    for ranks in [2, 4] {
        let gloo = args.python.as_deref().map(|python| Gloo::start(python, ranks)).transpose()?;
        let rounds = measure(ranks, args.rounds, gloo)?;
        let ms = |time: fn(&Round) -> f64| 1e3 * median(rounds.iter().map(time));
        let (to_copy, in_place) = (
            median(rounds.iter().map(|r| r.apart / r.copy)),
            median(rounds.iter().map(|r| r.in_place / r.copy)),
        );
        let gloo: Vec<f64> = rounds.iter().filter_map(|r| r.gloo).collect();
        let to_gloo = median(rounds.iter().filter_map(|r| r.gloo.map(|gloo| r.in_place / gloo)));
        println!(
            "| {ranks} | {:.1} | {:.1} | {:.1} | {:.1} | {to_copy:.2} | {in_place:.2} | {to_gloo:.2} |",
            ms(|r| r.copy),
            ms(|r| r.apart),
            ms(|r| r.in_place),
            1e3 * median(gloo.into_iter()),
        );
        for (what, ratio, bar) in [
            ("to copy", to_copy, COPY_BAR),
            ("in place to copy", in_place, COPY_BAR),
            ("to gloo", to_gloo, GLOO_BAR),
        ] {
            if ratio > bar {
                missed.push(format!("{ranks} ranks: {what} {ratio:.2}, the bar is {bar}"));
            }
        }
    }
    match missed.is_empty() {
        true => Ok(()),
        false => bail!("{}", missed.join("; ")),
    }
}

/// NaN, which misses no bar, when there is nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    stats::median(values).unwrap_or(f64::NAN)
}

fn measure(ranks: usize, rounds: usize, gloo: Option<Gloo>) -> Result<Vec<Round>> {
    let gloo = Mutex::new(gloo);
    let results = threads::run(ranks, |comm| -> Result<Vec<Round>> {
        let send = Array::full(&[COUNT], comm.rank() + 1, DType::F32)?;
        let recv = Array::zeros(&[COUNT], DType::F32)?;
        let (from, mut to) = (vec![1f32; COUNT], vec![0f32; COUNT]);
        let reduce = |send: &Array, recv: &Array| {
            comm.all_reduce(AllReduce { send: send.clone(), recv: recv.clone(), op: Reduce::Max })
        };
        let mut kept = Vec::new();
        for round in 0..rounds + 2 {
            let copy = together(&comm, || {
                to.copy_from_slice(&from);
                std::hint::black_box(&mut to);
                Ok(())
            })?;
            let apart = together(&comm, || Ok(reduce(&send, &recv)?))?;
            let in_place = together(&comm, || Ok(reduce(&recv, &recv)?))?;
            let gloo = match comm.rank() {
                0 => gloo.lock().ok().and_then(|mut g| g.as_mut().map(Gloo::round)).transpose()?,
                _ => None,
            };
            // The first rounds fill caches and page tables.
            if round >= 2 {
                kept.push(Round { copy, apart, in_place, gloo });
            }
        }
        Ok(kept)
    });
    results.into_iter().next().context("no ranks")?
}

/// Seconds from everyone's start to everyone's end.
fn together(comm: &Arc<dyn Comm>, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    comm.barrier()?;
    let begin = Instant::now();
    work()?;
    comm.barrier()?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Torch processes that wait for rounds.
struct Gloo {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Gloo {
    fn start(python: &Path, ranks: usize) -> Result<Gloo> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/gloo.py");
        let mut command = Command::new(python);
        command.arg(script).args([ranks.to_string(), COUNT.to_string()]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting torch")?;
        let (input, output) = (child.stdin.take().context("stdin")?, child.stdout.take().context("stdout")?);
        Ok(Gloo { child, input, output: BufReader::new(output) })
    }

    fn round(&mut self) -> Result<f64> {
        self.input.write_all(b"go\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("torch answered {line:?}"))
    }
}

impl Drop for Gloo {
    fn drop(&mut self) {
        let _ = self.input.write_all(b"end\n");
        let _ = self.child.wait();
    }
}
