//! `planaria lora`: adapters from models, into models, and with each other.

use super::merge::{Output, carry_out};
use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use planaria::merge::{CombineOptions, ExtractOptions, Majority, Options, combine, extract, plan};

/// Work with LoRA adapters
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Adapters are trained by a `[lora]` section (docs/guide/finetune.md). In a recipe for merging an adapter \
    is put on top of a model by `MODEL+ADAPTER` (docs/guide/merge.md)."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Merge(Merge),
    Combine(Combine),
    Extract(Extract),
}

/// Write a model with an adapter merged into its weights
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Sums are made in f32 or wider and rounded once. A head that is tied to the embedding and adapted gets a \
    tensor of its own. There is no way back from the merged weights: keep the model and the adapter."
)]
struct Merge {
    /// The model
    model: String,
    /// The adapter, as peft or Paddle writes it
    adapter: String,
    /// Folder to write
    out: String,
    #[command(flatten)]
    output: Output,
}

/// How the majority sign is found.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MajorityName {
    Total,
    Frequency,
}

/// Combine several adapters into one
#[derive(Debug, clap::Args)]
#[command(
    after_help = "`cat` is exact. `svd` is the best of its rank. The others add factors, which is not the same as adding \
    what they do."
)]
struct Combine {
    /// Adapters, each with its weight: PATH or PATH=WEIGHT
    #[arg(required = true, value_name = "ADAPTER")]
    adapters: Vec<String>,
    /// Folder to write, as peft reads it
    #[arg(long, short, value_name = "FOLDER")]
    out: String,
    /// linear, cat, svd, ties, dare_linear, dare_ties, magnitude_prune; all but the first two also as NAME_svd
    #[arg(long, value_name = "METHOD", default_value = "cat")]
    method: String,
    /// Share of the elements that pruning keeps
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    density: f64,
    /// How the majority sign is found
    #[arg(long, value_enum, default_value = "total")]
    majority: MajorityName,
    /// Rank of factors that are taken from products [default: the largest of the adapters]
    #[arg(long, value_name = "RANK")]
    svd_rank: Option<usize>,
    /// Keep factors that are taken from products within this quantile of their values
    #[arg(long, value_name = "QUANTILE")]
    svd_clamp: Option<f64>,
    /// Seed of random pruning
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

/// Extract an adapter from what a model changed in its base
#[derive(Debug, clap::Args)]
struct Extract {
    /// The model
    model: String,
    /// What it was made from
    base: String,
    /// Folder to write, as peft reads it
    out: String,
    /// Largest rank of a module
    #[arg(long, default_value_t = 32)]
    max_rank: usize,
    /// Singular values up to this count as zero
    #[arg(long, default_value_t = 0.0)]
    sv_epsilon: f64,
    /// Put the singular values into the first factor alone
    #[arg(long)]
    no_distribute_scale: bool,
    /// Factors for embeddings and the head too, instead of copies
    #[arg(long)]
    embed_lora: bool,
    /// Only modules whose names this regular expression finds; may be given again
    #[arg(long, value_name = "REGEX")]
    include: Vec<String>,
    /// Leave out modules whose names this regular expression finds; may be given again
    #[arg(long, value_name = "REGEX")]
    exclude: Vec<String>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    match &args.verb {
        Verb::Merge(args) => merge_into(args, terminal),
        Verb::Combine(args) => combine_all(args, terminal),
        Verb::Extract(args) => extract_from(args, terminal),
    }
}

fn merge_into(args: &Merge, terminal: &mut Terminal) -> Result<Exit> {
    let quoted = |text: &str| serde_json::to_string(text);
    let (model, adapter) = (quoted(&args.model)?, quoted(&args.adapter)?);
    let recipe = format!(
        "merge_method: passthrough\nmodels:\n- model: {{model: {{path: {model}}}, lora: {{path: {adapter}}}}}\n"
    );
    let merge = plan(&recipe, &Options::default())?;
    carry_out(&merge, "merging", &args.out, &args.output, terminal)
}

fn combine_all(args: &Combine, terminal: &mut Terminal) -> Result<Exit> {
    let mut adapters = Vec::new();
    for text in &args.adapters {
        let (path, weight) = match text.rsplit_once('=') {
            None => (text.as_str(), 1.0),
            Some((path, weight)) => {
                let wrong = || format!("'{weight}' after '{path}' is not a weight; write PATH=0.5");
                (path, weight.parse().ok().filter(|w: &f64| w.is_finite()).with_context(wrong)?)
            }
        };
        adapters.push((path.to_string(), weight));
    }
    let asked = CombineOptions {
        combination: args.method.parse()?,
        density: args.density,
        majority: match args.majority {
            MajorityName::Total => Majority::Total,
            MajorityName::Frequency => Majority::Frequency,
        },
        rank: args.svd_rank,
        clamp: args.svd_clamp,
        seed: args.seed,
    };
    let merge = combine(&adapters, &asked, &Options::default())?;
    carry_out(&merge, "combining", &args.out, &args.output, terminal)
}

fn extract_from(args: &Extract, terminal: &mut Terminal) -> Result<Exit> {
    let asked = ExtractOptions {
        max_rank: args.max_rank,
        sv_epsilon: args.sv_epsilon,
        distribute_scale: !args.no_distribute_scale,
        embed_lora: args.embed_lora,
        include: args.include.clone(),
        exclude: args.exclude.clone(),
    };
    let merge = extract(&args.model, &args.base, &asked, &Options::default())?;
    carry_out(&merge, "extracting", &args.out, &args.output, terminal)
}
