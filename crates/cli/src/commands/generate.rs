//! `planaria generate`: continues a text with a trained model.

use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria_train::{Generator, Sampling};
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;

/// Continue a text with a trained model
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A run's folder, whose newest checkpoint is taken, or any folder of weights
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The text to continue
    #[arg(value_name = "TEXT")]
    text: String,
    /// Most tokens to make
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    tokens: usize,
    /// 0 takes the likeliest token; higher is more random
    #[arg(long, value_name = "NUMBER", default_value_t = 0.8, value_parser = not_negative)]
    temperature: f64,
    /// Choose among this many of the likeliest tokens; 0 for all
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    top_k: usize,
    /// Choose among the likeliest tokens whose probabilities reach this sum
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = not_negative)]
    top_p: f64,
    /// Seed of the choices
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,
    /// Thread ranks that share each matrix
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
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
    let generator = Generator::open(&args.run)?;
    let Args { tokens, temperature, top_k, top_p, seed, .. } = *args;
    let sampling = Sampling { tokens, temperature, top_k, top_p, seed };
    let json = terminal.json;
    let each = |piece: &str| {
        if !json {
            let mut out = std::io::stdout().lock();
            // A reader that went away is no error; the rest is computed for nobody, and soon over.
            let _ = write!(out, "{piece}").and_then(|()| out.flush());
        }
    };
    each(&args.text);
    let text = generator.generate(&args.text, &sampling, args.ranks as usize, &each)?;
    each("\n");
    if json {
        let told = json!({ "prompt": args.text, "text": text, "checkpoint": generator.folder() });
        terminal.object("planaria/generate/1", &told)?;
    }
    Ok(Exit::Success)
}
