//! Golden runners: oracle cases read from files and checked against planaria.

mod aoa;
mod cases;
mod checkpoints;
mod embeddings;
mod indexing;
mod learned;
mod lora;
mod mapped;
mod merge;
mod mixed;
mod pipeline;
mod programs;
mod qwen2_vl;
mod reshard;
mod rl;
mod sft;
mod spmd;
mod values;

pub use cases::{Outcome, Verdict, each_case};
pub use mixed::mixed_program;
pub use reshard::run_reshards;
pub use sft::run_with_assets as run_sft;

use anyhow::{Result, bail};
use std::path::Path;

/// Runs all cases at a path.
type Runner = fn(&Path) -> Result<Outcome>;

/// Every kind of golden; a new kind is one line here and one file beside this one.
const KINDS: &[(&str, Runner)] = &[
    ("aoa", aoa::run),
    ("embeddings", embeddings::run),
    ("indexing", indexing::run),
    ("indexing-tensor", indexing::run_tensor),
    ("lora", lora::run),
    ("merge", merge::run),
    ("paddle-checkpoints", checkpoints::run),
    ("paddle-programs", programs::run),
    ("pipeline", pipeline::run),
    ("qwen2-vl", qwen2_vl::run),
    ("reshard", reshard::run),
    ("rl", rl::run),
    ("sft", sft::run),
    ("spmd", spmd::run),
    ("torch-dcp", checkpoints::run),
];

/// Names of the known kinds.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(name, _)| *name)
}

/// Runs the cases of one kind found at `path`: a `.jsonl` or `.jsonl.gz` file or a folder of them,
/// or a folder of checkpoints.
/// An error means that the cases could not be read at all.
pub fn run(kind: &str, path: &Path) -> Result<Outcome> {
    match KINDS.iter().find(|(name, _)| *name == kind) {
        Some((_, runner)) => runner(path),
        None => bail!("unknown kind '{kind}'; known kinds: {}", kinds().collect::<Vec<_>>().join(", ")),
    }
}
