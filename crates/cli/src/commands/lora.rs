//! `planaria lora`: adapters from models.

use super::merge::{Output, carry_out};
use crate::exit::Exit;
use crate::terminal::Terminal;
use anyhow::Result;
use clap::Subcommand;
use planaria::merge::{ExtractOptions, Options, extract};

/// Work with LoRA adapters
#[derive(Debug, clap::Args)]
#[command(
    after_help = "An adapter is put on top of a model by a recipe: `MODEL+ADAPTER` (docs/guide/merge.md)."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Extract(Extract),
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
    /// Singular values up to this count as none
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
    /// No modules whose names this regular expression finds; may be given again
    #[arg(long, value_name = "REGEX")]
    exclude: Vec<String>,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let Verb::Extract(args) = &args.verb;
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
