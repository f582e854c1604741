//! `planaria eval`: loss and perplexity of a model on any text.

use crate::exit::Exit;
use crate::quantity::count;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::array::Device;
use planaria::nn::models::Models;
use planaria::train::data::{Borders, Config, Packing, Source, SourceKind};
use planaria::train::{Generator, MeasureOptions, Weights};
use serde_json::json;
use std::path::PathBuf;

/// Measure the loss and perplexity of a model on a text
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Every token but the first of a document is predicted from those before it, at most `--sequence` of them. With\n\
    `--packing documents` each document stands alone; with `stream` they follow each other as in training, and what does\n\
    not fill the last sample is left out. Documents end with the tokenizer's end token, which is predicted too."
)]
pub(crate) struct Args {
    /// A run's folder, whose newest checkpoint is used, or any folder of weights
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Put this adapter on top of the model; may be given again, then they add up
    #[arg(long, value_name = "ADAPTER")]
    lora: Vec<PathBuf>,
    /// Files, folders, or patterns with `*`, `?` and `**`: text, .jsonl, .csv, .tokens, also compressed
    #[arg(required = true, value_name = "DATA")]
    data: Vec<String>,
    /// What the files hold; inferred from their names if not given
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Option<super::tokenize::KindName>,
    /// The field of a JSON line, or the column of a table, that holds the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    field: String,
    /// Tokens of a sample [default: the model's positions, at most 1024]
    #[arg(long, value_name = "NUMBER")]
    sequence: Option<usize>,
    /// How documents share samples
    #[arg(long, value_enum, value_name = "PACKING", default_value = "documents")]
    packing: PackingName,
    /// Samples computed at a time
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Use the running average of the weights, which runs with `optim.ema` keep
    #[arg(long)]
    ema: bool,
    /// Where to compute: cpu, or an NVIDIA device such as cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Device,
    /// Precision to compute in
    #[arg(long, value_enum, value_name = "PRECISION", default_value = "f32")]
    precision: super::PrecisionName,
    /// Thread ranks that share each matrix
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
}

/// How documents share samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PackingName {
    /// Each document by itself
    Documents,
    /// One after the other, cut wherever a sample ends
    Stream,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let which = if args.ema { Weights::Averaged } else { Weights::Trained };
    let generator = Generator::open_adapted(&args.model, &args.lora, &Models::default())?.weights(which);
    let generator = generator.device(args.device).precision(args.precision.into());
    let source = |path: &String| {
        let mut source = Source::new(path);
        source.field.clone_from(&args.field);
        source.kind = args.kind.map(SourceKind::from);
        source
    };
    let sources: Vec<Source> = args.data.iter().map(source).collect();
    let mut data = Config::default();
    (data.packing, data.documents) = match args.packing {
        PackingName::Documents => (Packing::Documents, Borders::Separate),
        PackingName::Stream => (Packing::Stream, Borders::Joined),
    };
    let (batch, ranks) = (args.batch as usize, args.ranks as usize);
    let options = MeasureOptions { sequence: args.sequence, batch, ranks };
    let bar = terminal.counter("evaluating", "samples");
    let found = generator.measure(&sources, &data, &options, &|done, all| bar.show(done, all));
    bar.finish();
    let found = found?;
    if terminal.json {
        let told = json!({
            "loss": found.loss, "perplexity": found.perplexity, "tokens": found.tokens,
            "samples": found.samples, "sequence": found.sequence, "checkpoint": generator.folder(),
        });
        terminal.object("planaria/eval/1", &told)?;
    } else {
        let (loss, perplexity) = (found.loss, found.perplexity);
        let (tokens, samples) =
            (count(found.tokens as usize, "token"), count(found.samples as usize, "sample"));
        terminal.line(format!("loss {loss:.6}, perplexity {perplexity:.4}"))?;
        terminal.note(format!("{tokens} in {samples} of up to {}", found.sequence));
    }
    Ok(Exit::Success)
}
