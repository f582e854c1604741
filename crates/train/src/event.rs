//! What a run reports while it runs. Nothing here prints: whoever started the run listens.

use crate::data::chat::Report;
use planaria_telemetry::Sample;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::time::Duration;

/// Listens to a run. Called on rank 0 only, from its training thread; it should return quickly.
pub trait Observer: Send + Sync + Debug {
    /// Something happened.
    fn event(&self, event: &Event);
}

/// Listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _: &Event) {}
}

/// What happens in a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// All ranks are ready.
    Started {
        /// Ranks.
        ranks: usize,
        /// The mesh.
        mesh: String,
        /// Elements of the whole model.
        parameters: u64,
        /// How many of them are trained.
        trained: u64,
        /// Samples of the training set.
        samples: u64,
        /// First step to do, from 1.
        step: u64,
        /// Steps in all.
        steps: u64,
    },
    /// Arrays of GPUs go between ranks through the host, which is slow.
    ThroughHost {
        /// Why NCCL does not carry them.
        why: String,
    },
    /// What became of the rows of conversations that are trained on.
    Rows(Report),
    /// A name of `target_modules` that no module of the model has: it adapts nothing.
    Unmatched {
        /// The name.
        name: String,
    },
    /// Weights of the folder that a run begins with that its model has no place for, as where `config.json` tells of fewer layers.
    Unused {
        /// The folder.
        folder: String,
        /// Names of the weights.
        names: Vec<String>,
    },
    /// The state of an earlier run was loaded.
    Resumed {
        /// The checkpoint.
        folder: String,
        /// Steps it has done.
        step: u64,
        /// The mesh it was written on.
        mesh: Option<String>,
        /// Keys with other values than when it was saved, as in `optim.lr 0.001 -> 0.0003`.
        changed: Vec<String>,
        /// Newer checkpoints that could not be read, which a run that heals goes past.
        damaged: Vec<Damaged>,
    },
    /// A step is done.
    Step(StepReport),
    /// What the objective tells of the step that was just done, by name.
    Figures {
        /// Of this step.
        step: u64,
        /// Names and values.
        values: Vec<(String, f64)>,
    },
    /// A source of rewards failed, and some responses of a rollout have none; they count nothing.
    RewardFailed {
        /// The step that made them.
        step: u64,
        /// Responses without a reward.
        unscored: usize,
        /// Responses in all.
        responses: usize,
        /// What the source said.
        error: String,
    },
    /// Some texts that the model generated.
    Samples {
        /// The step that made them, or after which they were made.
        step: u64,
        /// The texts.
        samples: Vec<Sample>,
    },
    /// An evaluation is done.
    Evaluated {
        /// After this step.
        step: u64,
        /// Mean loss.
        loss: f64,
    },
    /// That evaluation is the best so far; its checkpoint will be saved and kept.
    Best {
        /// After this step.
        step: u64,
        /// Mean loss.
        loss: f64,
    },
    /// A save has begun; training continues.
    Saving {
        /// Of this step.
        step: u64,
    },
    /// A checkpoint is committed.
    Saved {
        /// Of this step.
        step: u64,
        /// Its folder.
        folder: String,
        /// How long training stood still for it.
        blocked: Duration,
        /// How long it took in all.
        took: Duration,
    },
    /// How far the save under way is; told after every step while there is one.
    SaveProgress(SaveProgress),
    /// A snapshot was not written because a newer one was there before its turn came.
    SaveDropped {
        /// Of this step.
        step: u64,
        /// The step of the newer one.
        by: u64,
    },
    /// Metrics cannot be written; told once, training continues.
    RecordsFailed {
        /// Why.
        error: String,
    },
    /// A checkpoint is saved, but older ones that should go could not be removed.
    NotRemoved {
        /// The step that is saved.
        step: u64,
        /// Why.
        error: String,
    },
    /// A save failed; training continues, and the last good checkpoint stays.
    SaveFailed {
        /// Of this step.
        step: u64,
        /// Why.
        error: String,
    },
}

/// How far a save is on rank 0.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SaveProgress {
    /// Of this step.
    pub step: u64,
    /// Bytes of this rank's part that are written.
    pub bytes: u64,
    /// Bytes of it in all.
    pub total: u64,
    /// Bytes per second since the last time, where it was told before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The tier it goes to; absent for the run's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
}

impl SaveProgress {
    /// From 0 to 1.
    pub fn share(&self) -> f64 {
        self.bytes as f64 / self.total.max(1) as f64
    }
}

/// A checkpoint that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// Its folder.
    pub folder: String,
    /// What is wrong with it.
    pub why: String,
}

/// One step in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepReport {
    /// Number of the step, from 1.
    pub step: u64,
    /// Mean loss per token.
    pub loss: f64,
    /// Norm of the gradient of the mean loss, before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Tokens of all ranks.
    pub tokens: u64,
    /// Samples consumed since the start of the run.
    pub samples: u64,
    /// Tokens consumed since the start of the run.
    pub consumed_tokens: u64,
    /// How often the training set was seen: samples consumed over samples there are.
    pub epoch: f64,
    /// Seconds.
    pub seconds: f64,
    /// FLOPs of the model, over all ranks, where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
    /// Model FLOPs per second over what the ranks can reach, where `log.peak_flops` says that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// How much of the save in progress rank 0 has written, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saving: Option<f64>,
    /// Factor on the loss; 1 except for f16.
    pub loss_scale: f64,
    /// True when the gradient was not finite and nothing was changed.
    pub skipped: bool,
    /// Most bytes of arrays that rank 0 had at once so far, without those of other ranks of its process. What `plan` foretells.
    pub peak_bytes: u64,
}

impl StepReport {
    /// Perplexity of the mean loss.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// Tokens per second of all ranks.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(1e-9)
    }
}
