//! What a kind of model is, before it has weights: the interface that plans, trainers and generators consume.

use super::cost::{self, Cost, Segment, Sizes};
use super::network::Network;
use super::qwen2_vl::Marks;
use crate::error::{Error, Result};
use crate::parallel::Parallel;
use crate::param::{Init, ParamSpec};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The part of a model that one pipeline stage holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stage {
    /// The blocks.
    pub layers: Range<usize>,
    /// True when it begins with what stands before the blocks: token vectors.
    pub embed: bool,
    /// True when it ends with what stands after them: the last norm and the head.
    pub head: bool,
}

impl Stage {
    /// All of a model.
    pub fn whole(model: &dyn Architecture) -> Stage {
        Stage { layers: 0..model.blocks(), embed: true, head: true }
    }

    /// Refuses blocks that a model does not have.
    pub fn check(&self, model: &dyn Architecture) -> Result<()> {
        let (layers, blocks) = (&self.layers, model.blocks());
        if layers.start > layers.end || layers.end > blocks {
            let what = format!("a stage of layers {layers:?} of a model with {blocks}");
            return Err(Error::Sizes { what });
        }
        Ok(())
    }
}

/// A model as its `config.json` describes it. What is computed from it is the same on every rank.
pub trait Architecture: fmt::Debug + Send + Sync {
    /// `model_type` of its `config.json`.
    fn model_type(&self) -> &str;

    /// The object to write as `config.json`; [`Models::open`](super::Models::open) reads it back.
    fn to_value(&self) -> Value;

    /// How many blocks there are. A model is cut into stages between them.
    fn blocks(&self) -> usize;

    /// How many tokens it knows.
    fn vocab_size(&self) -> usize;

    /// The longest sequence it is trained on.
    fn positions(&self) -> usize;

    /// The parameters of one stage, in the order in which its network shows them. Nothing is built.
    fn parameters(&self, stage: &Stage) -> Result<Vec<ParamSpec>>;

    /// A stage with first values, on one rank or on the inner mesh of several.
    fn build(&self, stage: &Stage, parallel: Option<&Parallel>, init: &Init) -> Result<Box<dyn Network>>;

    /// The longest sequence that makes sense, where that is more than it is trained on.
    fn reach(&self) -> usize {
        self.positions()
    }

    /// Refuses an inner mesh that the model cannot be cut on.
    fn check_parallel(&self, parallel: &Parallel) -> Result<()> {
        parallel.check_axes()
    }

    /// What one segment costs a rank for one micro-batch; stages are balanced by it. As a rule an estimate from the
    /// table of parameters.
    fn cost(&self, segment: Segment, sizes: &Sizes) -> Result<Cost> {
        Ok(cost::from_table(&self.parameters(&segment.stage())?, self.width()?, segment, sizes))
    }

    /// Values that a run compares with those of the checkpoint it resumes from. As a rule all of `config.json`.
    fn settings(&self) -> Vec<Setting> {
        let Value::Object(map) = self.to_value() else { return Vec::new() };
        let counts =
            |key: &str| !["architectures", "dtype", "torch_dtype", "transformers_version"].contains(&key);
        let setting = |(key, value): (String, Value)| Setting {
            key,
            value: value.to_string(),
            effect: Effect::Function,
        };
        map.into_iter().filter(|(key, _)| counts(key)).map(setting).collect()
    }

    /// Whether the weight of a product lies `[in, out]`, as some old models have it.
    fn is_turned(&self, _weight: &ParamSpec) -> bool {
        false
    }

    /// The adapters on it, where this is a model with some.
    fn adapted(&self) -> Option<&crate::lora::Adapted> {
        None
    }

    /// The model without the second one that is trained beside it, where there is one.
    fn first(&self) -> Option<&Arc<dyn Architecture>> {
        None
    }

    /// Which tokens stand for pictures and videos, in a model that sees.
    fn sight(&self) -> Option<Marks> {
        None
    }

    /// How names in files may begin instead, of whoever wrote them: what ours begin with, and what theirs do.
    fn other_names(&self) -> &[(&str, &str)] {
        &[]
    }

    /// The `config.json` that goes with these names.
    fn other_config(&self) -> Option<Value> {
        None
    }

    /// The width of a hidden state between blocks: that of the token vectors.
    fn width(&self) -> Result<usize> {
        let table = self.parameters(&Stage { layers: 0..0, embed: true, head: false })?;
        let width = table.first().and_then(|spec| spec.shape.last().copied());
        width.ok_or_else(|| Error::Sizes { what: "no parameter stands before the blocks".to_string() })
    }
}

/// One value of a model's configuration, for comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As in `config.json`.
    pub key: String,
    /// As a text.
    pub value: String,
    /// What another value would change.
    pub effect: Effect,
}

/// What another value of a setting changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// What the model computes with the same weights.
    Function,
    /// How it is trained.
    Training,
}

/// The names of tied parameters, each with the one whose values it has.
pub fn ties(model: &dyn Architecture) -> Result<BTreeMap<String, String>> {
    let table = model.parameters(&Stage::whole(model))?;
    Ok(table.into_iter().filter_map(|spec| Some((spec.name, spec.tied?))).collect())
}

/// Elements of the whole model; tied ones count once.
pub fn parameter_count(model: &dyn Architecture) -> Result<u64> {
    let table = model.parameters(&Stage::whole(model))?;
    Ok(table.iter().filter(|spec| spec.tied.is_none()).map(|spec| spec.shape.numel() as u64).sum())
}
