//! `grpo`: samples per second of GRPO steps, rollout and update, against TRL with the generation of transformers, on the same model, prompts and
//! reward in the same run. Prints a whole record in Markdown.
//!
//! Every measurement is a process of its own; contestants take turns round by round. The bar is 3 times TRL's samples per second.

use anyhow::{Context, Result, bail};
use clap::Parser;
use planaria_bench::contest::{in_turn, processors, version};
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

/// What TRL is told as well: plain GRPO without a reference, advantages over their deviation, a mean over the tokens of the update.
const CONFIG: &str = r#"
name = "grpo"
[[data.source]]
path = "prompts.jsonl"
[optim]
lr = 1e-6
weight_decay = 0.0
schedule = "constant"
clip = 1.0
[[rl.reward]]
kind = "short"
[train]
objective = "grpo"
[checkpoint]
every = 0
final_save = false
[log]
tensorboard = false
"#;

/// Tokens of a prompt; `peers/grpo.py` makes them.
const PROMPT: usize = 64;

/// Steps of a measurement that do not count.
const WARM: usize = 2;

#[derive(Parser)]
struct Args {
    /// Python with torch, transformers and TRL
    #[arg(long)]
    python: PathBuf,
    /// Parameters of the model
    #[arg(long, default_value = "10m", value_parser = ["10m", "500m"])]
    size: String,
    /// Where both compute
    #[arg(long, default_value = "cpu", value_parser = ["cpu", "cuda"])]
    device: String,
    /// What both compute in, over f32 weights; TRL's own default is bf16
    #[arg(long, default_value = "bf16", value_parser = ["f32", "bf16"])]
    precision: String,
    /// Prompts of a step
    #[arg(long, default_value_t = 8)]
    prompts: usize,
    /// Responses to a prompt
    #[arg(long, default_value_t = 8)]
    group: usize,
    /// Prompts of a micro-batch
    #[arg(long, default_value_t = 2)]
    micro: usize,
    /// Most tokens of a response
    #[arg(long, default_value_t = 128)]
    new: usize,
    /// Steps of one measurement; the first two do not count
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(3..))]
    steps: u64,
    /// Rounds over both contestants
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Let TRL's generation replace ended responses too
    #[arg(long)]
    continuous: bool,
    /// Only train on the model of this folder, and print the figures
    #[arg(long, hide = true)]
    ours: Option<PathBuf>,
}

/// What one process measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Figures {
    /// Of the step in the middle, in time.
    samples_per_second: f64,
    /// Tokens of a response, on average.
    response_tokens: f64,
    /// Largest memory: of the process, or of the device as its library counts it.
    peak: u64,
}

/// Keeps the seconds of every step, the tokens of its responses, and the most bytes of arrays.
#[derive(Debug, Default)]
struct Seen(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    seconds: Vec<f64>,
    tokens: Vec<f64>,
    arrays: u64,
}

impl Observer for Seen {
    fn event(&self, event: &Event) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Step(step) => {
                kept.seconds.push(step.seconds);
                kept.arrays = kept.arrays.max(step.peak_bytes);
            }
            Event::Figures { values, .. } => {
                let tokens = values.iter().filter(|(name, _)| name == "response_tokens");
                kept.tokens.extend(tokens.map(|(_, value)| value));
            }
            _ => {}
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(folder) = &args.ours {
        println!("{}", serde_json::to_string(&train(&args, folder)?)?);
        return Ok(());
    }
    let machine = Machine::here(Some(&args.python.display().to_string()));
    let folder = std::env::temp_dir().join(format!("planaria-grpo-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = measure(&args, &folder);
    std::fs::remove_dir_all(&folder)?;
    print(&args, &machine, &measured?)
}

/// Pairs of figures, ours and TRL's, one of each round.
fn measure(args: &Args, folder: &Path) -> Result<Vec<[Figures; 2]>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/grpo.py");
    let python = |words: &[&str]| {
        let mut command = Command::new(&args.python);
        command.arg(&script).args(words);
        command
    };
    let place = folder.display().to_string();
    let _: serde_json::Value = last_line(&mut python(&["make", &place, &args.size]))?;
    let sizes = serde_json::json!({
        "device": args.device, "bf16": args.precision == "bf16", "threads": processors(), "new": args.new, "micro": args.micro, "group": args.group,
        "prompts": args.prompts, "steps": args.steps, "continuous": args.continuous,
    });
    let theirs = || last_line(&mut python(&["train", &place, &sizes.to_string()]));
    let ours = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).arg("--ours").arg(folder);
        last_line(&mut command)
    };
    let round = |number: usize| {
        let pair = in_turn(number, ours, theirs)?;
        eprintln!("round {} of {} done", number + 1, args.rounds);
        Ok(pair)
    };
    (0..args.rounds).map(round).collect()
}

fn print(args: &Args, machine: &Machine, rounds: &[[Figures; 2]]) -> Result<()> {
    let words = [("--python", "PYTHON")];
    let more = [("TRL, transformers", version(&args.python, &["trl", "transformers"])?)];
    let title = format!("GRPO with a model of {} parameters on {}", args.size, args.device);
    println!("{}", record::head(&title, &record::command("grpo", &words), machine, &more));
    let precision = if args.precision == "f32" { "f32" } else { "bf16 over f32 weights" };
    println!(
        "{precision}; {} prompts of {PROMPT} tokens with {} responses of at most {} in a step, {} prompts in a micro-batch, no reference, one update of a rollout. \
A figure is the median of {} steps; the table has medians of {} rounds, in which both take turns. A ratio is ours over TRL's in the same round.\n",
        args.prompts,
        args.group,
        args.new,
        args.micro,
        args.steps as usize - WARM,
        args.rounds,
    );
    let middle = |side: usize, figure: fn(&Figures) -> f64| {
        median(rounds.iter().map(|round| figure(&round[side]))).unwrap_or(f64::NAN)
    };
    println!("| | samples/s | tokens of a response | peak MiB |\n|---|---|---|---|");
    for (side, name) in ["planaria", "TRL"].into_iter().enumerate() {
        let [speed, tokens, peak] = [
            |f: &Figures| f.samples_per_second,
            |f: &Figures| f.response_tokens,
            |f: &Figures| f.peak as f64,
        ]
        .map(|figure| middle(side, figure));
        println!("| {name} | {speed:.2} | {tokens:.1} | {:.0} |", peak / f64::from(1 << 20));
    }
    let ratios = || rounds.iter().map(|[ours, theirs]| ours.samples_per_second / theirs.samples_per_second);
    let (least, most) = spread(ratios()).unwrap_or_default();
    let ratio = median(ratios()).unwrap_or(f64::NAN);
    println!("\nRatio of samples/s: {ratio:.2} ({least:.2}..{most:.2}).");
    if ratio < 3.0 {
        bail!("missed: {ratio:.2} times TRL's samples per second, the bar is 3");
    }
    Ok(())
}

/// Trains here and measures this process.
fn train(args: &Args, folder: &Path) -> Result<Figures> {
    let run = folder.join(format!("ours-{}", std::process::id()));
    let mut set = vec![
        format!("model.init={}", folder.display()),
        format!("data.source.path={}", folder.join("prompts.jsonl").display()),
        format!("data.sequence={}", PROMPT + args.new),
        format!("rl.samples_per_prompt={}", args.group),
        format!("rl.max_new_tokens={}", args.new),
        format!("rl.rows={}", args.prompts * args.group),
        format!("train.steps={}", args.steps),
        format!("train.global_batch={}", args.prompts),
        format!("train.micro_batch={}", args.micro),
        format!("train.precision={}", args.precision),
        format!("log.dir={}", run.display()),
    ];
    if args.device == "cuda" {
        set.push("device=cuda".into());
    }
    let seen = Arc::new(Seen::default());
    let config = Sources::text("grpo", CONFIG).set(set).resolve()?.config;
    Trainer::new(config).observer(seen.clone()).run(None)?;
    let kept = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = median(kept.seconds.iter().skip(WARM).copied()).context("too few steps")?;
    let response_tokens = kept.tokens.iter().sum::<f64>() / kept.tokens.len() as f64;
    let peak = if args.device == "cuda" { kept.arrays } else { status("VmHWM:").context("no VmHWM")? };
    Ok(Figures { samples_per_second: (args.prompts * args.group) as f64 / seconds, response_tokens, peak })
}
