//! `planaria generate`: continues texts with a trained model.

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use planaria::array::Device;
use planaria::data::chat::Json;
use planaria::nn::models::Models;
use planaria::train::{BatchTime, Continuation, Generator, Sampling, Weights};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Continue a text, or several, with a trained model
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without a temperature the most likely token is taken, unless the checkpoint's generation_config.json says `do_sample`.\n\
    `--top-k` and `--top-p` sample at temperature 1 where none is given. With `--json` every text is one line."
)]
pub(crate) struct Args {
    /// A run's folder, whose newest checkpoint is used, or any folder of weights
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Put this adapter on top of the model; may be given again, then they add up
    #[arg(long, value_name = "ADAPTER")]
    lora: Vec<PathBuf>,
    /// The text to continue; `-` reads it from standard input
    #[arg(value_name = "TEXT", required_unless_present = "prompts")]
    text: Option<String>,
    /// Continue every line of this file; of a .jsonl file the field `prompt`; `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    prompts: Option<PathBuf>,
    /// At most this many new tokens [default: as generation_config.json says, or 200]
    #[arg(long, value_name = "NUMBER")]
    tokens: Option<usize>,
    /// 0 takes the most likely token; higher is more random [default: as generation_config.json says, or 0]
    #[arg(long, value_name = "NUMBER", value_parser = not_negative)]
    temperature: Option<f64>,
    /// Choose among this many of the most likely tokens; 0 for all [default: as generation_config.json says, or 0]
    #[arg(long, value_name = "NUMBER")]
    top_k: Option<usize>,
    /// Choose among the most likely tokens whose probabilities add up to this [default: as generation_config.json says, or 1]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    top_p: Option<f64>,
    /// Above 1, tokens that are there already become less likely [default: as generation_config.json says, or 1]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    repetition_penalty: Option<f64>,
    /// Take every text as what a user says, written with the folder's chat template, and answer it
    #[arg(long)]
    chat: bool,
    /// A picture to show before the text, in a model that sees; may be given several times
    #[arg(long, value_name = "FILE", requires = "text", conflicts_with = "prompts")]
    image: Vec<PathBuf>,
    /// System prompt of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Random seed for sampling
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Use the running average of the weights, which runs with `optim.ema` keep
    #[arg(long)]
    ema: bool,
    /// Where to compute: cpu, or an NVIDIA device such as cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    /// Precision to compute in
    #[arg(long, value_enum, value_name = "PRECISION", default_value = "f32")]
    precision: super::PrecisionName,
    /// At most this many texts are continued at once
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: u32,
    /// Thread ranks that share each matrix
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
}

impl Args {
    /// What was asked for, and what the checkpoint says where nothing was.
    fn sampling(&self, own: Sampling) -> Sampling {
        let chosen = self.top_k.is_some() || self.top_p.is_some();
        let otherwise = if chosen && own.temperature == 0.0 { 1.0 } else { own.temperature };
        Sampling {
            tokens: self.tokens.unwrap_or(own.tokens),
            temperature: self.temperature.unwrap_or(otherwise),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            seed: self.seed,
        }
    }

    /// The texts to continue.
    fn texts(&self) -> Result<Vec<String>> {
        match (&self.prompts, self.text.as_deref()) {
            (Some(file), _) => read_prompts(file),
            (None, Some("-")) => Ok(vec![standard_input()?]),
            (None, text) => Ok(text.map(str::to_string).into_iter().collect()),
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    not_negative(text)
        .and_then(|value| if value <= 1.0 { Ok(value) } else { Err("expected a share from 0 to 1".into()) })
}

fn positive(text: &str) -> Result<f64, String> {
    not_negative(text)
        .and_then(|value| if value > 0.0 { Ok(value) } else { Err("expected more than 0".into()) })
}

pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number such as 0.8".to_string())?;
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err("expected a number of at least 0".to_string())
    }
}

fn standard_input() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}

/// One prompt a line; lines without any text are passed over.
fn read_prompts(file: &Path) -> Result<Vec<String>> {
    let name = file.display();
    let text = match file.as_os_str() == "-" {
        true => standard_input()?,
        false => {
            std::fs::read_to_string(file).map_err(|e| Failure::usage(format!("cannot read '{name}': {e}")))?
        }
    };
    let is_json = file.extension().is_some_and(|ending| ending == "jsonl");
    let mut out = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        out.push(match is_json {
            false => line.to_string(),
            true => prompt_field(line).ok_or_else(|| {
                let message = format!("{name}:{}: there is no text in the field 'prompt'", number + 1);
                Failure::usage(message).hint("each line is one JSON object, as in {\"prompt\": \"The \"}")
            })?,
        });
    }
    match out.is_empty() {
        true => Err(Failure::usage(format!("'{name}' has no prompt")).hint("write one on each line").into()),
        false => Ok(out),
    }
}

fn prompt_field(line: &str) -> Option<String> {
    let value: Value = serde_json::from_str(line).ok()?;
    value.get("prompt")?.as_str().map(str::to_string)
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let which = if args.ema { Weights::Averaged } else { Weights::Trained };
    let mut generator = Generator::open_adapted(&args.run, &args.lora, &Models::default())?.weights(which);
    if args.system.is_some() && !args.chat && args.image.is_empty() {
        return Err(Failure::usage("`--system` is told to a conversation").hint("add `--chat`").into());
    }
    if args.chat && args.image.is_empty() {
        generator = generator.asked(args.system.as_deref())?;
    }
    let generator = generator.device(args.device).precision(args.precision.into()).batch(args.batch as usize);
    let sampling = args.sampling(generator.sampling());
    let texts = args.texts()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    if !args.image.is_empty() {
        return answer(args, &generator, &sampling, texts[0], terminal);
    }
    for (number, text) in texts.iter().enumerate() {
        let fit = generator.check(text, &sampling, args.ranks as usize)?;
        if fit < sampling.tokens {
            let which = if texts.len() == 1 { "this text".into() } else { format!("text {}", number + 1) };
            let more = count(fit, "more token");
            terminal.warn(format_args!("only {more} fit into the model's positions after {which}"));
        }
    }
    let writer = Writer { texts: &texts, chat: args.chat, json: terminal.json, begun: AtomicUsize::new(0) };
    let each = |number: usize, piece: &str| writer.piece(number, piece);
    let made = generator.generate_all(&texts, &sampling, args.ranks as usize, &each)?;
    if let Some(BatchTime { texts, tokens, first, rest }) = &made.time {
        let rate = *tokens as f64 / (first + rest);
        let later = tokens.saturating_sub(*texts) as f64 / rest.max(1e-9);
        terminal.detail(format_args!(
            "{} in {:.3} s, {tokens} tokens: the first of each after {first:.4} s, then {later:.0} tokens/s; {rate:.0} in all",
            count(*texts, "text"),
            first + rest
        ));
    }
    if terminal.json {
        for (prompt, made) in texts.iter().zip(&made.texts) {
            terminal.object("planaria/generate/1", &told(&generator, prompt, made))?;
        }
    } else {
        writer.begin(texts.len());
        write("\n");
    }
    Ok(Exit::Success)
}

/// Answers a question about pictures.
fn answer(
    args: &Args,
    generator: &Generator,
    sampling: &Sampling,
    text: &str,
    terminal: &mut Terminal,
) -> Result<Exit> {
    let image = |file: &PathBuf| json!({ "type": "image", "image": file.display().to_string() });
    let mut parts: Vec<Value> = args.image.iter().map(image).collect();
    parts.push(json!({ "type": "text", "text": text }));
    let system = args.system.iter().map(|text| json!({ "role": "system", "content": text }));
    let messages = system.chain([json!({ "role": "user", "content": parts })]);
    let messages = messages.map(|message| Json::parse(&message.to_string()).map_err(Failure::usage));
    let prepared = generator.prepare(messages.collect::<Result<_, _>>()?, Path::new("."))?;
    let each = |piece: &str| {
        if !terminal.json {
            write(piece);
        }
    };
    let made = generator.answer(&prepared, sampling, args.ranks as usize, &each)?;
    match terminal.json {
        true => terminal.object("planaria/generate/1", &told(generator, text, &made))?,
        false => write("\n"),
    }
    Ok(Exit::Success)
}

fn told(generator: &Generator, prompt: &str, made: &Continuation) -> Value {
    let Continuation { text, prompt_ids, ids, ended } = made;
    json!({
        "prompt": prompt, "text": text, "prompt_ids": prompt_ids, "ids": ids,
        "finish": if *ended { "stop" } else { "length" }, "checkpoint": generator.folder(),
    })
}

/// Writes texts as they come, an empty line between two of them.
struct Writer<'a> {
    texts: &'a [&'a str],
    /// Answers stand alone; other texts are continued.
    chat: bool,
    json: bool,
    /// How many texts have been begun.
    begun: AtomicUsize,
}

impl Writer<'_> {
    fn piece(&self, number: usize, piece: &str) {
        if !self.json {
            self.begin(number + 1);
            write(piece);
        }
    }

    /// Begins all texts up to this count: one that the model ended at once has had no piece.
    fn begin(&self, count: usize) {
        for number in self.begun.swap(count, Ordering::Relaxed)..count {
            write(if number > 0 { "\n\n" } else { "" });
            write(if self.chat { "" } else { self.texts[number] });
        }
    }
}

/// A reader that went away is not an error; the rest is computed for nobody, and soon over.
pub(super) fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "{text}").and_then(|()| out.flush());
}
