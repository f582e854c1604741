//! `planaria generate`: continues a text with a trained model.

use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::train::{Generator, Sampling, Weights};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Continue a text with a trained model
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A run's folder, whose newest checkpoint is taken, or any folder of weights
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The text to continue
    #[arg(value_name = "TEXT")]
    text: String,
    /// Most tokens to make [default: as generation_config.json says, or 200]
    #[arg(long, value_name = "NUMBER")]
    tokens: Option<usize>,
    /// 0 takes the likeliest token; higher is more random [default: as generation_config.json says, or 0.8]
    #[arg(long, value_name = "NUMBER", value_parser = not_negative)]
    temperature: Option<f64>,
    /// Choose among this many of the likeliest tokens; 0 for all [default: as generation_config.json says, or 0]
    #[arg(long, value_name = "NUMBER")]
    top_k: Option<usize>,
    /// Choose among the likeliest tokens whose probabilities reach this sum [default: as generation_config.json says, or 1]
    #[arg(long, value_name = "SHARE", value_parser = not_negative)]
    top_p: Option<f64>,
    /// Above 1, tokens that are there already become less likely [default: as generation_config.json says, or 1]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    repetition_penalty: Option<f64>,
    /// Seed of the choices
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Take the running average of the weights, which runs with `optim.ema` keep
    #[arg(long)]
    ema: bool,
    /// Thread ranks that share each matrix
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
}

impl Args {
    /// What was asked for, and what the checkpoint says where nothing was.
    fn sampling(&self, own: Sampling) -> Sampling {
        Sampling {
            tokens: self.tokens.unwrap_or(own.tokens),
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            seed: self.seed,
        }
    }
}

fn positive(text: &str) -> Result<f64, String> {
    not_negative(text)
        .and_then(|value| if value > 0.0 { Ok(value) } else { Err("expected more than 0".into()) })
}

fn not_negative(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number such as 0.8".to_string())?;
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err("expected a number of at least 0".to_string())
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let which = if args.ema { Weights::Averaged } else { Weights::Trained };
    let generator = Generator::open(&args.run)?.weights(which);
    let sampling = args.sampling(generator.sampling());
    let fit = generator.check(&args.text, &sampling, args.ranks as usize)?;
    if fit < sampling.tokens {
        terminal.warn(format_args!("{fit} tokens fit into the model's positions behind this text"));
    }
    let json = terminal.json;
    let begun = AtomicBool::new(false);
    let each = |piece: &str| {
        if !json {
            let mut out = std::io::stdout().lock();
            // The text comes with the first word behind it: nothing is said where there is nothing to say.
            let before = if begun.swap(true, Ordering::Relaxed) { "" } else { &args.text };
            // A reader that went away is no error; the rest is computed for nobody, and soon over.
            let _ = write!(out, "{before}{piece}").and_then(|()| out.flush());
        }
    };
    let text = generator.generate(&args.text, &sampling, args.ranks as usize, &each)?;
    each("\n");
    if json {
        let told = json!({ "prompt": args.text, "text": text, "checkpoint": generator.folder() });
        terminal.object("planaria/generate/1", &told)?;
    }
    Ok(Exit::Success)
}
