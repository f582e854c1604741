//! `tokens`: tokens per second and peak memory of training a model of 10 million parameters, against the same model
//! in transformers on torch, eager, with the same threads in the same run. Prints a whole record in Markdown.
//!
//! Every measurement is a process of its own, so that its peak is its own; contestants take turns round by round.
//! Both sides compute in f32, clip by the norm and step with AdamW; both have the threads of the machine, or of the
//! processors that `taskset` leaves them, shared by the ranks. Bars: at least torch's tokens per second on one
//! rank and on two data ranks, at most torch's memory.

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
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Steps of one measurement; the first three do not count
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(4..))]
    steps: u64,
    /// Only train as this many data ranks, and print the figures
    #[arg(long, hide = true)]
    ours: Option<usize>,
}

/// What one process measured, with the processes it started.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Figures {
    /// Of the step in the middle, in time.
    tokens_per_second: f64,
    /// Largest resident memory.
    peak: u64,
    /// Resident memory before the model was made: the program and its libraries.
    start: u64,
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

/// One number of data ranks: a pair of figures for each round, ours and torch's.
struct Contest {
    ranks: usize,
    rounds: Vec<[Figures; 2]>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(ranks) = args.ours {
        println!("{}", serde_json::to_string(&train(ranks, args.steps)?)?);
        return Ok(());
    }
    let machine = Machine::here(Some(&args.python.display().to_string()));
    let mut contests = [1, 2].map(|ranks| Contest { ranks, rounds: Vec::new() });
    for round in 0..args.rounds {
        for contest in &mut contests {
            contest.round(&args, round)?;
        }
        eprintln!("round {} of {} done", round + 1, args.rounds);
    }
    print!("{}", head(&args, &machine, &contests[0])?);
    println!(
        "| | tokens/s | torch tokens/s | ratio | least..most | peak MiB | torch peak MiB | above start | torch above start |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    contests.iter().for_each(Contest::print);
    let missed: Vec<String> = contests.iter().flat_map(Contest::missed).collect();
    if missed.is_empty() {
        return Ok(());
    }
    println!("\n## Over their bars\n");
    missed.iter().for_each(|what| println!("- {what}"));
    bail!("missed: {}", missed.join("; "));
}

fn head(args: &Args, machine: &Machine, contest: &Contest) -> Result<String> {
    let parameters = contest.rounds.first().context("no rounds")?[0].parameters as f64 / 1e6;
    let title = format!("Training a model of {parameters:.1} million parameters");
    let words = [("--python", "PYTHON")];
    let more = [("transformers", version(&args.python, &["transformers"])?)];
    let head = record::head(&title, &record::command("tokens", &words), machine, &more);
    let threads = processors();
    Ok(format!(
        "{head}
Eager, f32, sequences of 256, 8 of them in a step, the norm clipped, AdamW (torch's fused one), {threads} threads in all: one rank has all of \
them, two have half each; ours are threads of one process, torch's are processes with DDP and gloo. A measurement is a process of its own, its \
figure the median of {} steps after 3 others; the table has medians of {} rounds, in which both take turns. A ratio is ours over torch's in the same \
round, above 1 we are faster. Peaks are the largest of all rounds, of all processes together; above start is without the program and its libraries.

",
        args.steps - 3,
        args.rounds
    ))
}

impl Contest {
    fn name(&self) -> String {
        if self.ranks == 1 { "1 rank".to_string() } else { format!("dp={}", self.ranks) }
    }

    /// Measures both, the other one first in every second round.
    fn round(&mut self, args: &Args, round: usize) -> Result<()> {
        let both = in_turn(round, || own_process(args, self.ranks), || peer(args, self.ranks))?;
        if both[0].parameters != both[1].parameters {
            bail!("{} parameters here, {} in torch", both[0].parameters, both[1].parameters);
        }
        self.rounds.push(both);
        Ok(())
    }

    fn speed(&self, side: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[side].tokens_per_second)).unwrap_or(f64::NAN)
    }

    fn ratios(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|[ours, torch]| ours.tokens_per_second / torch.tokens_per_second)
    }

    fn most(&self, side: usize, figure: fn(&Figures) -> u64) -> u64 {
        self.rounds.iter().map(|round| figure(&round[side])).max().unwrap_or(0) >> 20
    }

    fn print(&self) {
        let (least, most) = spread(self.ratios()).unwrap_or_default();
        println!(
            "| {} | {:.0} | {:.0} | {:.2} | {least:.2}..{most:.2} | {} | {} | {} | {} |",
            self.name(),
            self.speed(0),
            self.speed(1),
            median(self.ratios()).unwrap_or(f64::NAN),
            self.most(0, |f| f.peak),
            self.most(1, |f| f.peak),
            self.most(0, |f| f.peak.saturating_sub(f.start)),
            self.most(1, |f| f.peak.saturating_sub(f.start)),
        );
    }

    fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        let ratio = median(self.ratios()).unwrap_or(f64::NAN);
        if ratio < 1.0 {
            missed.push(format!("{}: {ratio:.2} times torch's tokens per second, the bar is 1", self.name()));
        }
        let (ours, torch) = (self.most(0, |f| f.peak), self.most(1, |f| f.peak));
        if ours > torch {
            missed.push(format!("{}: {ours} MiB, torch needs {torch}", self.name()));
        }
        missed
    }
}

/// Trains here and measures this process.
fn train(ranks: usize, steps: u64) -> Result<Figures> {
    let folder = std::env::temp_dir().join(format!("planaria-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = train_in(&folder, ranks, steps);
    std::fs::remove_dir_all(&folder)?;
    done
}

fn train_in(folder: &Path, ranks: usize, steps: u64) -> Result<Figures> {
    let text: String = (0..40_000).map(|i| format!("{i}: {} grows back whole.\n", i * i % 9973)).collect();
    std::fs::write(folder.join("text.txt"), text)?;
    let config = CONFIG.replace("text.txt", &folder.join("text.txt").display().to_string());
    let set = [
        format!("mesh=dp={ranks}"),
        format!("train.steps={steps}"),
        format!("train.micro_batch={}", 8 / ranks),
        format!("log.dir={}", folder.display()),
    ];
    let start = status("VmRSS:").context("no VmRSS")?;
    let speeds = Arc::new(Speeds::default());
    let config = Sources::text("tokens.toml", &config).set(set).resolve()?.config;
    Trainer::new(config).observer(speeds.clone()).run(None)?;
    let (speeds, parameters) = speeds.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let counted = speeds.get(3..).and_then(|counted| median(counted.iter().copied()));
    let (tokens_per_second, peak) =
        (counted.context("too few steps")?, status("VmHWM:").context("no VmHWM")?);
    Ok(Figures { tokens_per_second, peak, start, parameters })
}

fn own_process(args: &Args, ranks: usize) -> Result<Figures> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--python").arg(&args.python).args(["--ours", &ranks.to_string()]);
    last_line(command.args(["--steps", &args.steps.to_string()]))
}

fn peer(args: &Args, ranks: usize) -> Result<Figures> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/tokens.py");
    // As many as our ranks have.
    let threads = (processors() / ranks).max(1);
    let mut command = Command::new(&args.python);
    command.arg(script).args([ranks, threads].map(|n| n.to_string())).arg(args.steps.to_string());
    last_line(&mut command)
}
