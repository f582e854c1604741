//! The benchmark driver: keeps our worker and the peers alive, lets them time the same cases in turn, and prints
//! and records the ratios. Started by `cargo xtask bench`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Parser;
use planaria_array::CpuPath;
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
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Instructions to be held to, torch too: portable, avx2, avx512 or amx
    #[arg(long)]
    cpu: Option<String>,
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
    let path = path(args.cpu.as_deref())?;
    if args.python.is_none() {
        eprintln!("torch is skipped: {}", args.no_torch.as_deref().unwrap_or("no --python given"));
    }
    let mut parts = Vec::new();
    for &threads in &args.threads {
        let mut workers = start(args, path, threads)?;
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
    match args.cases.is_empty() && args.python.is_some() && agree {
        true => {
            let held = args.cpu.as_ref().map(|path| format!(" --cpu {path}")).unwrap_or_default();
            let command = format!("cargo xtask bench --ms {} --rounds {}{held}", args.ms, args.rounds);
            let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("runs");
            let folder = record(&runs, &Machine::here(args.python.as_deref()), path, &command, &parts)?;
            println!("recorded in benches/runs/{}", folder.file_name().unwrap_or_default().to_string_lossy());
        }
        false => println!("not recorded: only a run of all cases against torch, with equal results, is"),
    }
    Ok(agree)
}

/// The path named, or the highest there is.
fn path(name: Option<&str>) -> Result<CpuPath> {
    let Some(name) = name else { return Ok(CpuPath::highest()) };
    let found = CpuPath::ALL.into_iter().find(|path| path.name() == name && *path <= CpuPath::highest());
    found.with_context(|| {
        format!("`{name}` is not a path of this CPU, whose highest is {}", CpuPath::highest())
    })
}

/// What holds torch and the libraries it calls to the instructions of a path.
fn torch_held_to(path: CpuPath) -> &'static [(&'static str, &'static str)] {
    const ATEN: &str = "ATEN_CPU_CAPABILITY";
    const ONEDNN: &str = "DNNL_MAX_CPU_ISA";
    const MKL: &str = "MKL_ENABLE_INSTRUCTIONS";
    match path {
        CpuPath::Portable => &[(ATEN, "default"), (ONEDNN, "SSE41"), (MKL, "SSE4_2")],
        CpuPath::Avx2 => &[(ATEN, "avx2"), (ONEDNN, "AVX2"), (MKL, "AVX2")],
        CpuPath::Avx512 => &[(ATEN, "avx512"), (ONEDNN, "AVX512_CORE_VNNI"), (MKL, "AVX512")],
        CpuPath::Amx => &[],
    }
}

/// Our worker, and torch twice: as it is, and with an allocator that keeps its pages.
fn start(args: &Args, path: CpuPath, threads: usize) -> Result<Vec<Worker>> {
    let threads = threads.to_string();
    let driver = std::env::current_exe().context("cannot find the driver's own path")?;
    let ours: PathBuf = driver.with_file_name(OURS).with_extension(std::env::consts::EXE_EXTENSION);
    let mut workers =
        vec![Worker::start(OURS, Command::new(ours).arg(&threads).env("PLANARIA_CPU", path.name()))?];
    if let Some(python) = &args.python {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/torch_worker.py");
        let torch = || {
            let mut command = Command::new(python);
            command.arg(&script).arg(&threads).env("PYTHONDONTWRITEBYTECODE", "1");
            command.envs(torch_held_to(path).iter().copied());
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
