//! `embeddings`: pairs per second and peak memory of contrastive learning with gradient caching, against sentence-transformers with its
//! own (`CachedMultipleNegativesRankingLoss`), with the same model, threads and pieces in the same run. Prints a record in Markdown.
//!
//! Every measurement is a process of its own, so that its peak is its own; contestants take turns round by round. Bars: at least
//! the pairs per second of sentence-transformers, at most half of its memory.

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

/// Tokens of a text.
const LENGTH: usize = 32;

const CONFIG: &str = r#"
name = "embeddings"
[model]
init = "FOLDER"
[data]
order = "sequential"
[[data.source]]
path = "FOLDER/rows.jsonl"
[embedding]
pooling = ["mean"]
scale = 20.0
exclude_duplicates = false
[optim]
lr = 1e-3
schedule = "constant"
weight_decay = 0.01
beta2 = 0.999
clip = 1.0
[train]
objective = "contrastive"
[checkpoint]
every = 0
"#;

#[derive(Parser)]
struct Args {
    /// Python with torch and sentence-transformers
    #[arg(long)]
    python: PathBuf,
    /// Rounds over both contestants
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Pairs that are compared with each other in a step
    #[arg(long, default_value_t = 512)]
    pairs: usize,
    /// Texts that are in memory at a time; a pair has two
    #[arg(long, default_value_t = 64)]
    chunk: usize,
    /// Steps of one measurement; the first does not count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..))]
    steps: u64,
    /// Only train in this folder, and print the figures
    #[arg(long, hide = true)]
    ours: Option<PathBuf>,
}

/// What one process measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Figures {
    /// Pairs per second of the step in the middle.
    rate: f64,
    /// Largest resident memory.
    peak: u64,
    /// Resident memory before the model was made.
    start: u64,
    parameters: u64,
    /// Of the last step.
    loss: f64,
}

/// Keeps the seconds and the loss of every step, and the size of the model.
#[derive(Debug, Default)]
struct Steps(Mutex<(Vec<(f64, f64)>, u64)>);

impl Observer for Steps {
    fn event(&self, event: &Event) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Step(step) => kept.0.push((step.seconds, step.loss)),
            Event::Started { parameters, .. } => kept.1 = *parameters,
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
    let folder = std::env::temp_dir().join(format!("planaria-embeddings-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = contest(&args, &folder);
    std::fs::remove_dir_all(&folder)?;
    let rounds = done?;
    print(&args, &machine, &rounds)
}

fn contest(args: &Args, folder: &Path) -> Result<Vec<[Figures; 2]>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tokenizer = root.join("testdata/embeddings/models/last_token");
    let mut make = Command::new(&args.python);
    let made = make.arg(script()).arg("make").arg(folder).arg(tokenizer).output()?;
    if !made.status.success() {
        bail!("{make:?} failed: {}", String::from_utf8_lossy(&made.stderr));
    }
    std::fs::write(folder.join("rows.jsonl"), rows(folder, args.pairs * args.steps as usize)?)?;
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let both = in_turn(round, || own_process(args, folder), || peer(args, folder))?;
        // The same model on the same pairs: the losses tell.
        if both[0].parameters != both[1].parameters
            || (both[0].loss - both[1].loss).abs() > 2e-2 * both[1].loss.abs()
        {
            bail!("not the same training: {both:?}");
        }
        eprintln!("round {} of {}: {both:?}", round + 1, args.rounds);
        rounds.push(both);
    }
    Ok(rounds)
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/embeddings.py")
}

/// Pairs of token ids, all of one length: both sides do the same work.
fn rows(folder: &Path, count: usize) -> Result<String> {
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
    let vocabulary = config["vocab_size"].as_u64().context("no vocab_size")?;
    let mut state = 1u64;
    let mut text = || -> Vec<u64> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % vocabulary
        };
        (0..LENGTH).map(|_| next()).collect()
    };
    let row = |_| serde_json::json!({ "query": text(), "positive": text() }).to_string();
    Ok((0..count).map(row).collect::<Vec<_>>().join("\n"))
}

/// Trains here and measures this process.
fn train(args: &Args, folder: &Path) -> Result<Figures> {
    let config = CONFIG.replace("FOLDER", &folder.display().to_string());
    let log = folder.join(format!("runs-{}", std::process::id()));
    let set = [
        format!("train.steps={}", args.steps),
        format!("train.global_batch={}", args.pairs),
        format!("train.micro_batch={}", (args.chunk / 2).max(1)),
        format!("data.sequence={}", 2 * LENGTH),
        format!("log.dir={}", log.display()),
    ];
    let start = status("VmRSS:").context("no VmRSS")?;
    let steps = Arc::new(Steps::default());
    let config = Sources::text("embeddings.toml", &config).set(set).resolve()?.config;
    Trainer::new(config).observer(steps.clone()).run(None)?;
    let (steps, parameters) = steps.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let seconds = median(steps.iter().skip(1).map(|(seconds, _)| *seconds)).context("too few steps")?;
    let loss = steps.last().context("no step")?.1;
    let peak = status("VmHWM:").context("no VmHWM")?;
    Ok(Figures { rate: args.pairs as f64 / seconds, peak, start, parameters, loss })
}

fn own_process(args: &Args, folder: &Path) -> Result<Figures> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--python").arg(&args.python).arg("--ours").arg(folder);
    let numbers = [("--pairs", args.pairs), ("--chunk", args.chunk), ("--steps", args.steps as usize)];
    for (name, number) in &numbers {
        command.args([name, number.to_string().as_str()]);
    }
    last_line(&mut command)
}

fn peer(args: &Args, folder: &Path) -> Result<Figures> {
    let mut command = Command::new(&args.python);
    let numbers = [processors(), args.pairs, args.chunk, args.steps as usize].map(|n| n.to_string());
    last_line(command.arg(script()).arg("train").arg(folder).args(numbers))
}

fn print(args: &Args, machine: &Machine, rounds: &[[Figures; 2]]) -> Result<()> {
    let more = [("sentence-transformers", version(&args.python, &["sentence_transformers"])?)];
    let parameters = rounds.first().context("no rounds")?[0].parameters as f64 / 1e6;
    let title = format!("Embeddings of a model of {parameters:.1} million parameters");
    let command = record::command("embeddings", &[("--python", "PYTHON")]);
    println!(
        "{}\n{} pairs of texts of {LENGTH} tokens in a step, {} in memory at a time, mean pooling, f32, AdamW, the norm clipped, {} threads. A \
         measurement is a process of its own, its figure the median of {} steps after the first; the table has medians of {} rounds, in which both take \
         turns. Peaks are the largest of all rounds; above start is without the program and its libraries.\n",
        record::head(&title, &command, machine, &more),
        args.pairs,
        args.chunk,
        processors(),
        args.steps - 1,
        args.rounds
    );
    let rate = |side: usize| median(rounds.iter().map(|round| round[side].rate)).unwrap_or(f64::NAN);
    let most = |side: usize, figure: fn(&Figures) -> u64| {
        rounds.iter().map(|round| figure(&round[side])).max().unwrap_or(0) >> 20
    };
    let ratios = || rounds.iter().map(|[ours, theirs]| ours.rate / theirs.rate);
    let (ratio, (least, largest)) =
        (median(ratios()).unwrap_or(f64::NAN), spread(ratios()).unwrap_or_default());
    let [ours, theirs] = [0, 1].map(|side| most(side, |f| f.peak));
    let [above, theirs_above] = [0, 1].map(|side| most(side, |f| f.peak.saturating_sub(f.start)));
    println!(
        "| pairs/s | theirs | ratio | least..most | peak MiB | theirs | above start | theirs |\n|---|---|---|---|---|---|---|---|"
    );
    println!(
        "| {:.0} | {:.0} | {ratio:.2} | {least:.2}..{largest:.2} | {ours} | {theirs} | {above} | {theirs_above} |",
        rate(0),
        rate(1)
    );
    if ratio < 1.0 || 2 * ours > theirs {
        bail!(
            "missed: {ratio:.2} times the pairs per second, the bar is 1; {ours} MiB, the bar is half of {theirs}"
        );
    }
    Ok(())
}
