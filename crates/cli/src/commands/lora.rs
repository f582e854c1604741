//! `planaria lora`: adapters from models, into models, and with each other.

use super::merge::{Output, Task, carry_out, ready, said_once};
use super::train::Started;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use planaria::merge::{
    AdapterLayout, CombineOptions, ExtractOptions, Majority, Options, combine, convert_adapter, extract,
    originals, plan_adapted, unmerge,
};
use std::path::Path;

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
    Unmerge(Unmerge),
    Combine(Combine),
    Extract(Extract),
    Convert(Convert),
}

/// Write a model with an adapter merged into its weights
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Sums are made in f32 or wider and rounded once. A head that is tied to the embedding and adapted gets a \
    tensor of its own. Subtracting does not give the bits of the model back: keep the model, or `--originals` for \
    `planaria lora unmerge`."
)]
struct Merge {
    /// The model
    model: String,
    /// The adapter, as peft or Paddle writes it
    adapter: String,
    /// Folder to write
    out: String,
    /// Keep what merging changes in this folder, so that `lora unmerge` can put it back
    #[arg(long, value_name = "FOLDER")]
    originals: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Write the model that an adapter was merged into, as it was
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Nothing is subtracted: the tensors that `lora merge --originals` kept are put back, bit for bit. Every tensor \
    is compared with its checksum first; a merged model that was changed since is refused."
)]
struct Unmerge {
    /// The model with the adapter in it
    merged: String,
    /// What `lora merge --originals` kept
    originals: String,
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
    after_help = "`exact` adds what the adapters do: side by side as `cat`, or with --svd-rank the best of that rank as `svd`. The \
    others add factors, which is not the same."
)]
struct Combine {
    /// Adapters, each with its weight: PATH or PATH=WEIGHT
    #[arg(required = true, value_name = "ADAPTER")]
    adapters: Vec<String>,
    /// Folder to write, as peft reads it
    #[arg(long, short, value_name = "FOLDER")]
    out: String,
    /// exact, linear, cat, svd, ties, dare_linear, dare_ties, magnitude_prune; the last four also as NAME_svd
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

/// Write an adapter in the layout of peft or of Paddle
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Paddle's factors lie the other way round, and it knows one rank and one alpha for all modules. What only \
    one of the two can say is refused."
)]
struct Convert {
    /// The adapter, as peft or Paddle writes it
    adapter: String,
    /// Folder to write
    out: String,
    /// Layout to write
    #[arg(long, value_enum, value_name = "LAYOUT")]
    layout: LayoutName,
    /// The model it is for: fused modules are divided as it has them, and of a PiSSA or OLoRA start one of twice the rank is
    /// written that fits the model as it is
    #[arg(long, value_name = "FOLDER")]
    model: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// A layout of adapters.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutName {
    /// `adapter_config.json` and `adapter_model.safetensors`
    Peft,
    /// `lora_config.json` and `peft_model-*.safetensors`
    Paddle,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    match &args.verb {
        Verb::Merge(args) => merge_into(args, terminal),
        Verb::Unmerge(args) => {
            let merge = planned(unmerge(&args.merged, &args.originals, &Options::default()))?;
            carry_out(&merge, &task("restoring", args), &args.out, &args.output, terminal)
        }
        Verb::Combine(args) => combine_all(args, terminal),
        Verb::Extract(args) => extract_from(args, terminal),
        Verb::Convert(args) => {
            let layout = match args.layout {
                LayoutName::Peft => AdapterLayout::Peft,
                LayoutName::Paddle => AdapterLayout::Paddle,
            };
            let model = args.model.as_deref();
            let merge = planned(convert_adapter(&args.adapter, layout, model, &Options::default()))?;
            carry_out(&merge, &task("converting", args), &args.out, &args.output, terminal)
        }
    }
}

/// What every rank of a job finds about a plan, the first one says.
fn planned(merge: planaria::merge::Result<planaria::merge::Merge>) -> Result<planaria::merge::Merge> {
    said_once(merge.map_err(Into::into))
}

/// What is done, and everything that was asked for.
fn task(doing: &'static str, asked: &impl std::fmt::Debug) -> Task {
    Task { doing, asked: format!("{doing} {asked:?}") }
}

fn merge_into(args: &Merge, terminal: &mut Terminal) -> Result<Exit> {
    let merge = planned(plan_adapted(&args.model, &args.adapter, &Options::default()))?;
    if let Some(folder) = args.originals.as_ref().filter(|_| !args.output.dry_run) {
        if Started::find()?.processes().is_some() {
            let message = "--originals is for one process, and this is one of several";
            return Err(Failure::usage(message).hint("merge without `planaria launch`").into());
        }
        let (kept, out) = (Path::new(folder), Path::new(&args.out));
        if kept.starts_with(out) || out.starts_with(kept) {
            let message = format!("'{folder}' and '{}' are one inside the other", args.out);
            return Err(Failure::usage(message).hint("keep the originals in another folder").into());
        }
        // Nothing is kept for a result that cannot be written, and no result appears before what it needs is kept.
        ready(&merge, &args.out, &args.output)?;
        let kept = originals(&merge, &args.model, &Options::default())?;
        carry_out(&kept, &task("keeping", args), folder, &args.output, terminal)?;
    }
    carry_out(&merge, &task("merging", args), &args.out, &args.output, terminal)
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
    let merge = planned(combine(&adapters, &asked, &Options::default()))?;
    carry_out(&merge, &task("combining", args), &args.out, &args.output, terminal)
}

fn extract_from(args: &Extract, terminal: &mut Terminal) -> Result<Exit> {
    let asked = ExtractOptions {
        max_rank: args.max_rank,
        sv_epsilon: args.sv_epsilon,
        distribute_scale: !args.no_distribute_scale,
        embed_lora: args.embed_lora,
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        memory: args.output.memory.0,
    };
    let merge = planned(extract(&args.model, &args.base, &asked, &Options::default()))?;
    carry_out(&merge, &task("extracting", args), &args.out, &args.output, terminal)
}
