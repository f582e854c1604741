//! The benchmark driver: keeps our worker and the peers alive, lets them time the same cases in turn, and prints
//! and records the ratios. Started by `cargo xtask bench`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Parser;
use planaria_bench::machine::Machine;
use planaria_bench::report::{Answers, OURS, record};
use planaria_bench::stats::shuffle;
use planaria_bench::table::select;
use planaria_bench::worker::Worker;

#[derive(Parser)]
struct Args {
    /// Only these cases or families
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Numbers of threads to run with
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Milliseconds each worker spends on a case in one round
    #[arg(long, default_value_t = 300)]
    ms: u64,
    /// Rounds over all cases
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Python with torch and numpy
    #[arg(long)]
    python: Option<String>,
    /// Why torch does not run
    #[arg(long)]
    no_torch: Option<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs everything; answers whether all workers computed the same.
fn run(args: &Args) -> Result<bool> {
    let cases = select(&args.cases).map_err(anyhow::Error::msg)?;
    if args.python.is_none() {
        eprintln!("torch is skipped: {}", args.no_torch.as_deref().unwrap_or("no --python given"));
    }
    let mut parts = Vec::new();
    for &threads in &args.threads {
        let mut workers = start(args, threads)?;
        let answers = rounds(args, &cases, &mut workers)?;
        let names: Vec<_> = workers.iter().map(|worker| worker.name).collect();
        let tables = answers.tables(&names);
        println!("## {threads} thread(s)\n\n{tables}");
        parts.push((threads, answers, tables));
    }
    let mut agree = true;
    for (threads, case) in
        parts.iter().flat_map(|(t, answers, _)| answers.disagreements().into_iter().map(move |c| (t, c)))
    {
        println!("results differ: {case} with {threads} thread(s)");
        agree = false;
    }
    match args.cases.is_empty() && args.python.is_some() {
        true => {
            let command = format!("cargo xtask bench --ms {} --rounds {}", args.ms, args.rounds);
            let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("runs");
            let folder = record(&runs, &Machine::here(args.python.as_deref()), &command, &parts)?;
            println!("recorded in benches/runs/{}", folder.file_name().unwrap_or_default().to_string_lossy());
        }
        false => println!("not recorded: only a run of all cases against torch is"),
    }
    Ok(agree)
}

/// Our worker, and torch twice: as it is, and with an allocator that keeps its pages.
fn start(args: &Args, threads: usize) -> Result<Vec<Worker>> {
    let threads = threads.to_string();
    let driver = std::env::current_exe().context("cannot find the driver's own path")?;
    let ours: PathBuf = driver.with_file_name(OURS).with_extension(std::env::consts::EXE_EXTENSION);
    let mut workers = vec![Worker::start(OURS, Command::new(ours).arg(&threads))?];
    if let Some(python) = &args.python {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/torch_worker.py");
        let torch = || {
            let mut command = Command::new(python);
            command.arg(&script).arg(&threads).env("PYTHONDONTWRITEBYTECODE", "1");
            command
        };
        workers.push(Worker::start("torch", &mut torch())?);
        let keeps_pages = [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "100000000000")];
        workers.push(Worker::start("torch-nofault", torch().envs(keeps_pages))?);
    }
    Ok(workers)
}

/// Times all cases on all workers, in an order that changes from round to round.
fn rounds(args: &Args, cases: &[&'static str], workers: &mut [Worker]) -> Result<Answers> {
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
    let mut answers = Answers::default();
    let (mut cases, mut turn): (Vec<_>, Vec<_>) = (cases.to_vec(), (0..workers.len()).collect());
    for round in 1..=args.rounds {
        shuffle(&mut cases, &mut seed);
        for (done, case) in cases.iter().enumerate() {
            eprintln!("round {round}/{}  case {}/{}  {case}", args.rounds, done + 1, cases.len());
            shuffle(&mut turn, &mut seed);
            for &i in &turn {
                let worker = &mut workers[i];
                let answer = worker.time(case, args.ms)?;
                answers.add(case, worker.name, answer);
            }
        }
    }
    Ok(answers)
}
