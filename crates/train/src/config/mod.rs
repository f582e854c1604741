//! The configuration of a run: one TOML text, typed, with an origin for every value.
//!
//! Layers, later ones win: defaults, the file that `extends` names, the file, `PLANARIA_*` variables, `--set`. A relative path begins
//! where it is written: in the folder of its file, else in the current one.
//! A key that no section has is an error which names the nearest one and the line.

mod average;
mod device;
mod dpo;
mod embedding;
mod heal;
mod layers;
mod lora;
mod mesh;
mod model;
mod paths;
mod ppo;
mod rl;
mod rope;
mod schema;
mod sections;
mod sft;
#[cfg(test)]
mod tests;
mod tiers;

pub(crate) use average::Average;
pub use average::AverageSection;
pub use device::Compute;
pub use dpo::DpoSection;
pub use embedding::{EmbeddingSection, Negatives, TextAttention, TextLoss};
pub use heal::HealSection;
pub use layers::{Origin, Resolved, Sources};
pub use lora::{BaseWidth, LoraInit, LoraSection, Modules};
pub use mesh::MeshSection;
pub use model::{ModelKind, ModelSection, TokenIds};
pub use ppo::PpoSection;
pub use rl::{ResponsesFrom, RlSection};
pub use rope::RopeSection;
pub use schema::schema;
pub use sections::{
    Behind, CheckpointSection, LogSection, OptimKind, OptimSection, Precision, Recompute, Reduction,
    SamplesSection, ScheduleKind, Sharding, TrainSection,
};
pub use sft::SftSection;
pub use tiers::{TierKind, TierSection};

use crate::error::{Error, Result};
use planaria_nn::models::Models;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Everything a run is made from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// Name of the run; its folder is `log.dir/NAME`. The file's name without its ending when absent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Another configuration that this one changes, relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extends: Option<PathBuf>,
    /// How ranks are arranged: `"dp=2 tp=2"`, or a table. Axes are `pp dp ep tp`; a missing one has size 1, and a
    /// missing `dp` takes the ranks that are left.
    #[schemars(with = "mesh::MeshText")]
    pub mesh: MeshSection,
    /// Where ranks compute: `"cpu"`, or `"cuda:1"` for that NVIDIA device. `"cuda"` leaves the choice to a rank's
    /// place among those of its machine: with one GPU all share it, with several each takes the next.
    #[schemars(with = "String")]
    pub device: Compute,
    /// The model.
    pub model: ModelSection,
    /// What it learns from.
    pub data: crate::data::Config,
    /// How it learns.
    pub optim: OptimSection,
    /// Trains an adapter instead of the model's own weights, where it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSection>,
    /// Batch sizes, number of steps, and how the work is divided.
    pub train: TrainSection,
    /// What embeddings are made of and compared by, where the run learns those.
    pub embedding: EmbeddingSection,
    /// The loss of conversations, where the run learns from those.
    pub sft: SftSection,
    /// How two responses are compared, where the run learns from preferences.
    pub dpo: DpoSection,
    /// How responses are made and judged, where the run learns from those.
    pub rl: RlSection,
    /// How the critic learns, where the run has one.
    pub ppo: PpoSection,
    /// When to save and what to keep.
    pub checkpoint: CheckpointSection,
    /// How a run continues when ranks are lost or can no longer be trusted.
    pub heal: HealSection,
    /// What is written about the run.
    pub log: LogSection,
}

impl Config {
    /// The configuration of a text alone, without variables and overrides.
    pub fn parse(text: &str) -> Result<Config> {
        Ok(Sources::text("config", text).resolve()?.config)
    }

    /// The text form, which [`Config::parse`] reads back.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string_pretty(self)
            .map_err(|e| Error::Bug { what: format!("the configuration has no text: {e}") })
    }

    /// The same with absolute paths: what is recorded of a run means the same wherever it is read.
    pub fn recorded(&self) -> Result<Config> {
        paths::absolute(self)
    }

    /// The run's folder.
    pub fn run_dir(&self) -> PathBuf {
        self.log.dir.join(&self.name)
    }

    /// What does not depend on ranks or files: every value in its range, for these models.
    pub fn check(&self, models: &Models) -> Result<()> {
        self.check_model(models)?;
        require(
            "data.source",
            !self.data.source.is_empty(),
            "missing",
            "at least one `[[data.source]]` with a `path`",
        )?;
        self.check_rest()
    }

    /// The same for a run on samples that the program makes itself.
    pub fn check_with_own_data(&self, models: &Models) -> Result<()> {
        self.check_model(models)?;
        let none = self.data.source.is_empty();
        require("data.source", none, "given", "none beside the program's own data")?;
        require(
            "data.held_out",
            self.data.held_out == 0.0,
            self.data.held_out,
            "0 beside the program's own data",
        )?;
        self.check_rest()
    }

    fn check_model(&self, models: &Models) -> Result<()> {
        let name_ok =
            !self.name.is_empty() && !self.name.starts_with('.') && self.name.chars().all(fits_name);
        require("name", name_ok, &self.name, "letters, digits, `-`, `_` and `.`, not starting with a dot")?;
        self.mesh.check()?;
        self.model.check(models)
    }

    fn check_rest(&self) -> Result<()> {
        let data = &self.data;
        require(
            "data.sequence",
            (1..=1 << 24).contains(&data.sequence),
            data.sequence,
            "from 1 to 16777216",
        )?;
        require("data.prefetch", (1..=4096).contains(&data.prefetch), data.prefetch, "from 1 to 4096")?;
        self.optim.check()?;
        self.lora.as_ref().map_or(Ok(()), LoraSection::check)?;
        self.train.check()?;
        // What is computed with these sizes stays far from overflow.
        let tokens = self.train.global_batch.max(self.train.micro_batch) * data.sequence;
        let expected = "at most 1099511627776 tokens a step, with `data.sequence`";
        require("train.global_batch", tokens <= 1 << 40, tokens, expected)?;
        let measured = self.train.eval_every == 0 || data.held_out > 0.0 || !data.eval.is_empty();
        require(
            "train.eval_every",
            measured,
            self.train.eval_every,
            "0 without data to evaluate; set `data.held_out` above 0, or give `[[data.eval]]`",
        )?;
        self.checkpoint.check()?;
        self.heal.check()?;
        let comparable = self.heal.compare_every == 0 || self.train.zero < 3;
        let expected = "0 with `train.zero = 3`, where no weight is held twice";
        require("heal.compare_every", comparable, self.heal.compare_every, expected)?;
        require(
            "checkpoint.keep_best",
            !self.checkpoint.keep_best || self.train.eval_every > 0,
            true,
            "false without evaluations; set `train.eval_every` above 0",
        )?;
        if let Some(peak) = self.log.peak_flops {
            require("log.peak_flops", peak.is_finite() && peak > 0.0, peak, "a finite number above 0")?;
        }
        if let Some(samples) = &self.log.samples {
            samples.check()?;
        }
        require("log.every", self.log.every > 0, self.log.every, "at least 1")
    }
}

/// Whether the name of a run may have this character.
fn fits_name(c: char) -> bool {
    c.is_alphanumeric() || "-_.".contains(c)
}

/// A value outside what is allowed is an error that names both.
pub(crate) fn require(key: &str, holds: bool, found: impl std::fmt::Display, expected: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::Value { key: key.into(), found: found.to_string(), expected: expected.into() }),
    }
}
