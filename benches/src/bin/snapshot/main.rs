//! `snapshot`: what saving costs a model that is really training: time of the call, step time lost in all, memory; the first save and
//! later ones; beside torch's `async_save` by a thread and by a process with pinned staging, and Orbax; and how long the state takes to come back
//! from memory and from a folder. Prints a whole record in Markdown.
//!
//! Every measurement is a process of its own. A model whose weights and moments take `--gib` trains on one rank with all threads. Steps
//! without a save give the time of a step; in another run a save begins every `--apart` steps. Lost time is what the steps from one save to
//! the next took beyond the later half of them, by their mean; the same of steps without a save tells what of it is chance. Bars, for the first save and for later ones: a call below 1 ms, at most 1.05 times
//! a copy of the state lost, and no more memory than `checkpoint.memory`; recovery from memory in 1.5 times a copy.

mod recovery;

use anyhow::{Context, Result, bail};
use clap::Parser;
use planaria_array::{Array, DType, Device, Threads};
use planaria_bench::machine::Machine;
use planaria_bench::measure::{last_line, status};
use planaria_bench::record;
use planaria_bench::stats::{median, spread};
use planaria_train::Trainer;
use planaria_train::config::Sources;
use planaria_train::event::{Event, Observer};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The same sizes stand in `peers/snapshot.py`. Weights of 16 bits, masters and two moments: fourteen bytes for each parameter.
const CONFIG: &str = r#"
name = "snapshot"
[model]
kind = "qwen2"
hidden_size = 1024
intermediate_size = 2816
num_attention_heads = 16
num_key_value_heads = 16
tie_word_embeddings = true
[data]
sequence = 128
tokenizer = "bytes"
[[data.source]]
path = "text.txt"
[train]
global_batch = 2
micro_batch = 2
precision = "bf16"
[checkpoint]
keep = 1
final_save = false
[log]
tensorboard = false
"#;

/// Bytes of the state for each parameter.
const BYTES: u64 = 14;

/// Parameters of one block of the model.
const BLOCK: f64 = 4.0 * 1024.0 * 1024.0 + 3.0 * 1024.0 * 2816.0;

#[derive(Parser)]
struct Args {
    /// Folder on the disk that checkpoints go to
    #[arg(long)]
    folder: PathBuf,
    /// Python with torch; peers are left out without it
    #[arg(long)]
    python: Option<PathBuf>,
    /// Python with JAX and orbax-checkpoint; Orbax is left out without it
    #[arg(long)]
    orbax: Option<PathBuf>,
    /// Size of weights, masters and moments
    #[arg(long, default_value_t = 2.0)]
    gib: f64,
    /// Steps without a save
    #[arg(long, default_value_t = 8)]
    calm: u64,
    /// Saves
    #[arg(long, default_value_t = 4)]
    saves: u64,
    /// Steps from one save to the next
    #[arg(long, default_value_t = 10)]
    apart: u64,
    /// Threads that train; all where it is not given. With one less than the machine has, the writer has a core as it would beside a GPU
    #[arg(long)]
    threads: Option<usize>,
    /// Where the model trains: cpu or cuda. On a GPU, what must be copied is copied to the host
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Processes of ours that train and save; the first save of each counts as a first one
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// Only measure how the state comes back
    #[arg(long)]
    recovery: bool,
    /// Only train and print the figures
    #[arg(long, hide = true)]
    ours: bool,
    /// Only train without saves and print what was seen
    #[arg(long, hide = true)]
    calm_steps: bool,
}

/// What one contestant measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Figures {
    name: String,
    /// Bytes that were saved.
    bytes: u64,
    /// Seconds of a step without a save.
    step: f64,
    /// Seconds of each call.
    calls: Vec<f64>,
    /// Seconds of the steps after each save, up to the next.
    rounds: Vec<Vec<f64>>,
    /// Resident memory at the most, beyond that of a run that never saves.
    extra: u64,
    /// What a setting allows for that.
    #[serde(default)]
    limit: u64,
    /// Seconds of a copy of as many bytes to touched memory.
    copy: f64,
    /// As `rounds`, of steps that no save goes before.
    #[serde(default)]
    undisturbed: Vec<Vec<f64>>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.calm_steps {
        println!("{}", serde_json::to_string(&Run::new(&args)?.steps(Saving::Never)?)?);
        return Ok(());
    }
    if args.ours {
        println!("{}", serde_json::to_string(&train(&args)?)?);
        return Ok(());
    }
    let mut all: Vec<Contestant> = Vec::new();
    if !args.recovery {
        let run = |_| process(Command::new(std::env::current_exe()?).arg("--ours"), &args);
        all.push(Contestant((0..args.runs.max(1)).map(run).collect::<Result<_>>()?));
    }
    let peers: [(&Option<PathBuf>, &str, &[&str]); 3] = [
        (&args.python, "snapshot.py", &["--kind", "thread"]),
        (&args.python, "snapshot.py", &["--kind", "process"]),
        (&args.orbax, "snapshot_orbax.py", &[]),
    ];
    for (python, script, words) in peers {
        let Some(python) = python.as_ref().filter(|_| !args.recovery) else { continue };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(script);
        match process(Command::new(python).arg(path).args(words), &args) {
            Ok(figures) => all.push(Contestant(vec![figures])),
            // What a peer cannot do here is said, and the others are measured.
            Err(error) => eprintln!("{script} {}: left out: {error}", words.join(" ")),
        }
    }
    let machine = Machine::here(args.python.as_ref().map(|p| p.display().to_string()).as_deref());
    let words = [("--folder", "DISK"), ("--python", "PYTHON"), ("--orbax", "PYTHON")];
    let disk = [("disk", record::disk(&args.folder))];
    print!(
        "{}",
        record::head("Saving while training", &record::command("snapshot", &words), &machine, &disk)
    );
    if !all.is_empty() {
        println!(
            "\n| | state GiB | step s | call ms, first | later | lost s, first | later | copy s | extra GiB |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
    }
    all.iter().for_each(Contestant::print);
    let (rows, mut missed) = recovery::measure(&args.folder, args.gib)?;
    println!("\n| recovery of {:.2} GiB from | s | copies |\n|---|---|---|", args.gib);
    rows.iter().for_each(|row| println!("{row}"));
    missed.extend(all.first().map(Contestant::missed).unwrap_or_default());
    if missed.is_empty() { Ok(()) } else { bail!("missed: {}", missed.join("; ")) }
}

/// Seconds that steps took beyond what they would have if all had been as the later half of them, when a save is written. By the mean,
/// because steps without a save are not all alike either; and of the same minutes, because the speed of a machine drifts.
fn beyond_the_later(steps: &[f64]) -> f64 {
    let later = &steps[steps.len() / 2..];
    let calm = later.iter().sum::<f64>() / later.len().max(1) as f64;
    steps.iter().map(|step| step - calm).sum()
}

/// The processes of one contestant.
struct Contestant(Vec<Figures>);

impl Contestant {
    /// Medians of the first figure of each process, and of all later ones.
    fn first_and_later(&self, of: impl Fn(&Figures) -> Vec<f64>) -> [f64; 2] {
        let all: Vec<Vec<f64>> = self.0.iter().map(of).collect();
        let middle = |values: &mut dyn Iterator<Item = f64>| median(values).unwrap_or(f64::NAN);
        [
            middle(&mut all.iter().filter_map(|run| run.first().copied())),
            middle(&mut all.iter().flat_map(|run| run.iter().skip(1).copied())),
        ]
    }

    /// Seconds of calls.
    fn calls(&self) -> [f64; 2] {
        self.first_and_later(|run| run.calls.clone())
    }

    /// Seconds lost by a save: its call, and what the steps behind it took longer.
    fn lost(&self) -> [f64; 2] {
        self.first_and_later(|run| {
            let saves = run.rounds.iter().zip(&run.calls);
            saves.map(|(steps, call)| call + beyond_the_later(steps)).collect()
        })
    }

    /// The quickest copy of any process.
    fn copy(&self) -> f64 {
        self.0.iter().map(|run| run.copy).fold(f64::INFINITY, f64::min)
    }

    fn extra(&self) -> u64 {
        self.0.iter().map(|run| run.extra).max().unwrap_or(0)
    }

    /// What is past its bar.
    fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for ((which, call), lost) in ["first", "later"].into_iter().zip(self.calls()).zip(self.lost()) {
            if call > 1e-3 {
                missed.push(format!("a {which} call took {:.2} ms", call * 1e3));
            }
            if lost > 1.05 * self.copy() {
                missed.push(format!("a {which} save lost {lost:.3} s, a copy takes {:.3} s", self.copy()));
            }
        }
        let limit = self.0.iter().map(|run| run.limit).max().unwrap_or(0);
        if self.extra() > limit {
            missed.push(format!("{} bytes of memory beside the state, {limit} allowed", self.extra()));
        }
        missed
    }

    fn print(&self) {
        let Some(any) = self.0.first() else { return };
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let step = median(self.0.iter().map(|run| run.step)).unwrap_or(f64::NAN);
        let (calls, lost) = (self.calls(), self.lost());
        println!(
            "| {} | {:.2} | {step:.3} | {:.2} | {:.2} | {:.3} | {:.3} | {:.3} | {:.2} |",
            any.name,
            gib(any.bytes),
            calls[0] * 1e3,
            calls[1] * 1e3,
            lost[0],
            lost[1],
            self.copy(),
            gib(self.extra()),
        );
        let chance = || self.0.iter().flat_map(|run| &run.undisturbed).map(|steps| beyond_the_later(steps));
        if let (Some(middle), Some((least, most))) = (median(chance()), spread(chance())) {
            println!(
                "| {}, steps without a save | | {step:.3} | | | {middle:.3} ({least:.3}..{most:.3}) | | | |",
                any.name
            );
        }
    }
}

/// Runs a contestant in a process of its own and in a folder of its own.
fn process<T: serde::de::DeserializeOwned>(command: &mut Command, args: &Args) -> Result<T> {
    let number = |value: u64| value.to_string();
    command.arg("--folder").arg(&args.folder).args(["--gib", &args.gib.to_string()]);
    command.args([
        "--calm",
        &number(args.calm),
        "--saves",
        &number(args.saves),
        "--apart",
        &number(args.apart),
    ]);
    command.args(["--device", &args.device]);
    command.args(args.threads.iter().flat_map(|threads| ["--threads".into(), number(*threads as u64)]));
    last_line(command)
}

/// What a run tells, with the resident memory at the time.
#[derive(Debug, Default)]
struct Told(Mutex<Log>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Log {
    steps: Vec<f64>,
    calls: Vec<f64>,
    parameters: u64,
    most: u64,
}

impl Observer for Told {
    fn event(&self, event: &Event) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Started { parameters, .. } => log.parameters = *parameters,
            Event::Step(report) => {
                log.steps.push(report.seconds);
                // Not in the middle of a call, whose time it would take.
                log.most = log.most.max(status("VmRSS:").unwrap_or(0));
            }
            Event::Saved { blocked, .. } => log.calls.push(blocked.as_secs_f64()),
            _ => {}
        }
    }
}

/// Our side: the time of a step without saves, from a process that never saves, and a run that saves.
fn train(args: &Args) -> Result<Figures> {
    let calm: Log = process(Command::new(std::env::current_exe()?).arg("--calm-steps"), args)?;
    let step = median(calm.steps.iter().skip(2).copied()).context("no steps")?;
    let log = Run::new(args)?.steps(Saving::Every(args.apart))?;
    let bytes = log.parameters * BYTES;
    Ok(Figures {
        name: "planaria".into(),
        bytes,
        step,
        // The steps after a save, up to the next one.
        rounds: rounds(&log.steps, args),
        undisturbed: rounds(&calm.steps, args),
        calls: log.calls,
        extra: log.most.saturating_sub(calm.most),
        limit: limit(args),
        copy: match (args.device.as_str(), args.threads) {
            ("cuda", _) => copy_to_host(bytes)?,
            (_, Some(threads)) => Threads::new(threads)?.run(|| copy(bytes))?,
            (_, None) => copy(bytes)?,
        },
    })
}

/// Steps by the save that went before them, or would have; the first ones, before any, are left out.
fn rounds(steps: &[f64], args: &Args) -> Vec<Vec<f64>> {
    steps.chunks_exact(args.apart as usize).skip(1).map(<[f64]>::to_vec).collect()
}

/// When a run saves.
#[derive(Clone, Copy)]
enum Saving {
    Never,
    /// After this many steps.
    Every(u64),
}

/// A model and its text, in a folder that goes with it.
struct Run<'a> {
    args: &'a Args,
    folder: PathBuf,
}

impl Run<'_> {
    fn new(args: &Args) -> Result<Run<'_>> {
        let folder = args.folder.join(format!("ours-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let text: String =
            (0..4000).map(|i| format!("line {i} of a text that is only there to be read\n")).collect();
        std::fs::write(folder.join("text.txt"), text)?;
        Ok(Run { args, folder })
    }

    /// Trains, and tells what was seen.
    fn steps(&self, saving: Saving) -> Result<Log> {
        let Run { args, folder } = self;
        let blocks = (args.gib * f64::from(1 << 30) / BYTES as f64 / BLOCK).round().max(1.0);
        let (last, every) = match saving {
            Saving::Never => (args.calm, 0),
            Saving::Every(apart) => ((args.saves + 1) * apart, apart),
        };
        let set = [
            format!("model.num_hidden_layers={blocks}"),
            format!("data.source.path={}", folder.join("text.txt").display()),
            format!("train.steps={last}"),
            format!("checkpoint.every={every}"),
            format!("checkpoint.memory={}", limit(args)),
            format!("log.dir={}", folder.join("run").display()),
            format!("device={}", args.device),
        ];
        let set = set.into_iter().chain(args.threads.map(|threads| format!("train.threads={threads}")));
        let told = Arc::new(Told::default());
        let config = Sources::text("snapshot", CONFIG).set(set).resolve()?.config;
        Trainer::new(config).observer(told.clone()).run(None)?;
        let mut log = told.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *log))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // What is left of a run that failed is only in the way.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Bytes that snapshots may take: those of one, and what the parts of a file are put together in.
fn limit(args: &Args) -> u64 {
    ((args.gib + 0.25) * f64::from(1 << 30)) as u64
}

/// Seconds of a copy of so many bytes from the device to memory that was touched before, in pieces as large as a tensor.
fn copy_to_host(bytes: u64) -> Result<f64> {
    let count = BLOCK as usize / 4;
    let tensors = (bytes as usize / (4 * count)).max(1);
    let from = Array::full_on(&[count], 1, DType::F32, Device::Cuda(0))?;
    let all = || -> Result<f64> {
        let began = Instant::now();
        for _ in 0..tensors {
            drop(from.to(Device::Cpu)?);
        }
        Ok(began.elapsed().as_secs_f64() * bytes as f64 / (tensors * count * 4) as f64)
    };
    Ok((0..4).map(|_| all()).collect::<Result<Vec<f64>>>()?.into_iter().fold(f64::INFINITY, f64::min))
}

/// Seconds of a copy with all threads to memory that was touched before.
fn copy(bytes: u64) -> Result<f64> {
    let count = (bytes / 4) as usize;
    let (from, to) = (Array::full(&[count], 1, DType::F32)?, Array::zeros(&[count], DType::F32)?);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let began = Instant::now();
        to.copy_from(&from)?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(best)
}
