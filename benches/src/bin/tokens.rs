//! `tokens`: tokens per second and peak memory of training a model of 10 million parameters, against the same model
//! in transformers on torch, eager, with the same threads in the same run.
//!
//! Every measurement is a process of its own, so that its peak is its own; contestants take turns round by round.
//! Both sides compute in f32, clip by the norm and step with AdamW. Bars: at least torch's tokens per second on one
//! rank and on two data ranks, at most torch's memory.

use anyhow::{Context, Result, bail};
use clap::Parser;
use planaria_train::Trainer;
use planaria_train::config::Sources;
use planaria_train::event::{Event, Observer};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The same sizes stand in `peers/tokens.py`.
const CONFIG: &str = r#"
name = "tokens"
[model]
kind = "qwen2"
hidden_size = 320
intermediate_size = 864
num_hidden_layers = 8
num_attention_heads = 5
num_key_value_heads = 5
tie_word_embeddings = true
[data]
sequence = 256
[[data.source]]
path = "text.txt"
[optim]
lr = 1e-3
clip = 1.0
[train]
global_batch = 8
[checkpoint]
every = 0
"#;

#[derive(Parser)]
struct Args {
    /// Python with torch and transformers
    #[arg(long)]
    python: PathBuf,
    /// Rounds over all contestants
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Steps of one measurement; the first three do not count
    #[arg(long, default_value_t = 15)]
    steps: usize,
    /// Threads in all, shared by the ranks
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Only train as this many data ranks, and print the figures
    #[arg(long, hide = true)]
    ours: Option<usize>,
}

/// What one process measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Figures {
    tokens_per_second: f64,
    peak: u64,
    parameters: u64,
}

/// Keeps the speed of every step, and the size of the model.
#[derive(Debug, Default)]
struct Speeds(Mutex<(Vec<f64>, u64)>);

impl Observer for Speeds {
    fn event(&self, event: &Event) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Step(step) => kept.0.push(step.tokens_per_second()),
            Event::Started { parameters, .. } => kept.1 = *parameters,
            _ => {}
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(ranks) = args.ours {
        println!("{}", serde_json::to_string(&train(ranks, args.steps)?)?);
        return Ok(());
    }
    let mut missed = Vec::new();
    println!(
        "| | tokens/s | torch tokens/s | ratio | peak MiB | torch peak MiB |\n|---|---|---|---|---|---|"
    );
    for ranks in [1, 2] {
        let (mut ours, mut torch) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            ours.push(own_process(&args, ranks)?);
            torch.push(peer(&args, ranks)?);
        }
        if ours[0].parameters != torch[0].parameters {
            bail!("{} parameters here, {} in torch", ours[0].parameters, torch[0].parameters);
        }
        let speed = |all: &[Figures]| median(all.iter().map(|f| f.tokens_per_second).collect());
        let peak = |all: &[Figures]| all.iter().map(|f| f.peak).max().unwrap_or(0) >> 20;
        let name = if ranks == 1 { "1 rank".to_string() } else { format!("dp={ranks}") };
        let ratio = speed(&ours) / speed(&torch);
        println!(
            "| {name} | {:.0} | {:.0} | {ratio:.2} | {} | {} |",
            speed(&ours),
            speed(&torch),
            peak(&ours),
            peak(&torch)
        );
        if ratio < 1.0 || peak(&ours) > peak(&torch) {
            missed.push(name);
        }
    }
    if !missed.is_empty() {
        bail!("missed: {}", missed.join(", "));
    }
    Ok(())
}

/// Trains here and measures this process.
fn train(ranks: usize, steps: usize) -> Result<Figures> {
    let folder = std::env::temp_dir().join(format!("planaria-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = train_in(&folder, ranks, steps);
    std::fs::remove_dir_all(&folder)?;
    done
}

fn train_in(folder: &Path, ranks: usize, steps: usize) -> Result<Figures> {
    let text: String = (0..40_000).map(|i| format!("{i}: {} grows back whole.\n", i * i % 9973)).collect();
    std::fs::write(folder.join("text.txt"), text)?;
    let config = CONFIG.replace("text.txt", &folder.join("text.txt").display().to_string());
    let set = [
        format!("mesh=dp={ranks}"),
        format!("train.steps={steps}"),
        format!("train.micro_batch={}", 8 / ranks),
        format!("log.dir={}", folder.display()),
    ];
    let speeds = Arc::new(Speeds::default());
    let config = Sources::text("tokens.toml", &config).set(set).resolve()?.config;
    Trainer::new(config).observer(speeds.clone()).run(None)?;
    let (speeds, parameters) = speeds.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let counted = speeds.get(3..).context("too few steps")?.to_vec();
    Ok(Figures { tokens_per_second: median(counted), peak: peak()?, parameters })
}

/// The largest resident memory of this process.
fn peak() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

fn own_process(args: &Args, ranks: usize) -> Result<Figures> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--python").arg(&args.python).args(["--ours", &ranks.to_string()]);
    command.args(["--steps", &args.steps.to_string()]);
    figures(command.env("RAYON_NUM_THREADS", args.threads.to_string()))
}

fn peer(args: &Args, ranks: usize) -> Result<Figures> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/tokens.py");
    let threads = (args.threads / ranks).max(1);
    let mut command = Command::new(&args.python);
    command.arg(script).args([ranks, threads, args.steps].map(|n| n.to_string()));
    figures(&mut command)
}

/// What a process prints on its last line.
fn figures(command: &mut Command) -> Result<Figures> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(serde_json::from_str(text.trim().lines().last().unwrap_or_default())?)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
