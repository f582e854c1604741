//! The sections `[data] [optim] [train] [checkpoint] [log]`: their keys, defaults and ranges.

use super::average::AverageSection;
use super::require;
use super::tiers::TierSection;
use crate::error::Result;
use crate::objective::Objective;
use planaria_layout::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The optimizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimKind {
    /// Adam with decoupled weight decay.
    #[default]
    Adamw,
    /// Gradient descent with momentum.
    Sgd,
}

/// How the learning rate moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// It stays.
    Constant,
    /// Down to `min_lr` in a straight line.
    Linear,
    /// Down to `min_lr` along half a cosine.
    #[default]
    Cosine,
    /// It stays, then falls to `min_lr` over the last `decay` steps.
    Wsd,
}

/// How the model learns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OptimSection {
    /// The optimizer.
    pub kind: OptimKind,
    /// Highest learning rate.
    pub lr: f64,
    /// Learning rate at the end of the schedule.
    pub min_lr: f64,
    /// How the learning rate moves after the warm-up.
    pub schedule: ScheduleKind,
    /// Steps during which it rises from 0.
    pub warmup: u64,
    /// Steps of the schedule; `train.steps` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<u64>,
    /// Steps of the fall at the end of `wsd`; a tenth of the horizon when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<u64>,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to AdamW's denominator.
    pub eps: f64,
    /// Weight decay, of matrices; vectors (norms and biases) are left alone.
    pub weight_decay: f64,
    /// Momentum of SGD.
    pub momentum: f64,
    /// Largest gradient norm; 0 does not clip.
    pub clip: f64,
    /// Factor on the loss of an f16 model at the start; it adapts during training.
    pub loss_scale: f64,
    /// Decay of the running average of the weights; absent for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// Further running averages of the weights.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub averages: Vec<AverageSection>,
}

impl Default for OptimSection {
    fn default() -> OptimSection {
        OptimSection {
            kind: OptimKind::Adamw,
            lr: 1e-3,
            min_lr: 0.0,
            schedule: ScheduleKind::Cosine,
            warmup: 0,
            horizon: None,
            decay: None,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            momentum: 0.9,
            clip: 1.0,
            loss_scale: 65536.0,
            ema: None,
            averages: Vec::new(),
        }
    }
}

impl OptimSection {
    pub(super) fn check(&self) -> Result<()> {
        let below_one = |v: f64| (0.0..1.0).contains(&v);
        let rate = |v: f64| v.is_finite() && v >= 0.0;
        for (key, value) in [
            ("optim.lr", self.lr),
            ("optim.min_lr", self.min_lr),
            ("optim.eps", self.eps),
            ("optim.weight_decay", self.weight_decay),
            ("optim.clip", self.clip),
        ] {
            require(key, rate(value), value, "a finite number, at least 0")?;
        }
        for (key, value) in
            [("optim.beta1", self.beta1), ("optim.beta2", self.beta2), ("optim.momentum", self.momentum)]
        {
            require(key, below_one(value), value, "at least 0 and below 1")?;
        }
        let scale = self.loss_scale;
        require("optim.loss_scale", scale.is_finite() && scale > 0.0, scale, "a finite number above 0")?;
        if let Some(ema) = self.ema {
            require("optim.ema", below_one(ema), ema, "at least 0 and below 1")?;
        }
        self.averages().map(drop)
    }
}

/// Dtype of weights and activations; the optimizer computes in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with the range of f32.
    Bf16,
    /// 16 bits with a loss scale.
    F16,
}

impl Precision {
    /// The dtype it names.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => DType::F16,
        }
    }
}

/// Which activations are recomputed in backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    /// None.
    #[default]
    None,
    /// All blocks.
    Full,
    /// The blocks of `recompute_blocks`.
    Blocks,
    /// No block as a whole, but in each what norms and gated activations give: about a third of what is kept, for a few percent of
    /// the time.
    Selective,
}

/// When gradients are summed over data ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// After each micro-batch, in the order of the micro-batches: the same bits for every way to split a batch.
    #[default]
    Exact,
    /// Once a step, after each rank has summed its own: less to send, other bits for other splits.
    Step,
}

/// How parameters are sharded over data ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// The parameters of a bucket end to end, in equal ranges: each rank has as much, and nothing is packed.
    #[default]
    Flat,
    /// Each parameter by itself.
    Parameter,
}

/// Batch sizes, number of steps, and how the work is divided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TrainSection {
    /// Steps in all.
    pub steps: u64,
    /// What is learned: `next_token`, `sft` (conversations, see `[data.chat]`), `contrastive` (sentence embeddings, see `[data.texts]` and `[embedding]`), `dpo` (preferences, see `[dpo]`), `grpo` and `ppo` (rewards, see `[rl]` and `[ppo]`), or one that a program of your own brings along.
    pub objective: String,
    /// Samples of a step.
    pub global_batch: usize,
    /// Samples that one replica computes at a time.
    pub micro_batch: usize,
    /// Seed of weights, order of samples, dropout.
    pub seed: u64,
    /// Dtype of weights and activations.
    pub precision: Precision,
    /// What is sharded over data ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights. Sums of
    /// gradients are divided in every stage; 1 and 2 differ only with `reduce = "step"`, where 2 keeps no whole sum.
    pub zero: u8,
    /// How parameters are sharded over data ranks; the results are the same, and checkpoints fit both.
    pub shard: Sharding,
    /// When gradients are summed over data ranks. With `zero` 2 and 3 always after each micro-batch.
    pub reduce: Reduction,
    /// Bytes of gradients or weights sent at a time, at most; of gradients no more than a 32nd of them all, where that is above 64 KiB.
    pub bucket_bytes: usize,
    /// Which activations are recomputed in backward.
    pub recompute: Recompute,
    /// Blocks to recompute, with `recompute = "blocks"`.
    pub recompute_blocks: Vec<usize>,
    /// Parameters that are frozen, by name with `*` for any text: `["model.embed_tokens.*"]`.
    pub freeze: Vec<String>,
    /// Pipeline schedule: `f_then_b`, `1f1b`, `interleaved`, `zb_h1`, `zbv`.
    pub schedule: String,
    /// Model parts of one stage, for schedules that interleave.
    pub chunks: usize,
    /// Blocks of each part of the model, in its order: `[16, 8]`. Empty: so that all parts take about as long.
    pub stages: Vec<usize>,
    /// Activations between blocks are cut along the sequence over `tp`.
    pub sequence_parallel: bool,
    /// Steps between evaluations; 0 for none.
    pub eval_every: u64,
    /// Batches of `global_batch` samples in an evaluation; fewer where there are not as many samples.
    pub eval_batches: usize,
    /// The run fails after this many steps in a row whose gradient is not finite; 0 for no limit. With f16 they count once
    /// the loss scale is down to 1.
    pub max_skipped: u64,
    /// Seconds a rank waits for the others.
    pub timeout: u64,
    /// Threads that each rank computes with; when absent, the processors of the machine divided by the ranks on it. Results do
    /// not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
}

impl Default for TrainSection {
    fn default() -> TrainSection {
        TrainSection {
            steps: 100,
            objective: "next_token".into(),
            global_batch: 8,
            micro_batch: 1,
            seed: 0,
            precision: Precision::F32,
            zero: 1,
            shard: Sharding::Flat,
            reduce: Reduction::Exact,
            bucket_bytes: 4 << 20,
            recompute: Recompute::None,
            recompute_blocks: Vec::new(),
            freeze: Vec::new(),
            schedule: "1f1b".into(),
            chunks: 1,
            stages: Vec::new(),
            sequence_parallel: false,
            eval_every: 0,
            eval_batches: 4,
            max_skipped: 20,
            timeout: 600,
            threads: None,
        }
    }
}

impl TrainSection {
    /// What is recomputed, as a model is told.
    pub(crate) fn recomputed(&self) -> planaria_nn::models::Recompute {
        use planaria_nn::models::Recompute as Told;
        match self.recompute {
            Recompute::None => Told::None,
            Recompute::Full => Told::Full,
            Recompute::Blocks => Told::Blocks(self.recompute_blocks.iter().copied().collect()),
            Recompute::Selective => Told::Selective,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        for (key, samples) in
            [("train.global_batch", self.global_batch), ("train.micro_batch", self.micro_batch)]
        {
            let expected = format!("from 1 to {MOST_SAMPLES}");
            require(key, (1..=MOST_SAMPLES).contains(&samples), samples, &expected)?;
        }
        require("train.zero", self.zero <= 3, self.zero, "0, 1, 2 or 3")?;
        require("train.bucket_bytes", self.bucket_bytes > 0, self.bucket_bytes, "at least 1")?;
        require("train.chunks", (1..=64).contains(&self.chunks), self.chunks, "from 1 to 64")?;
        let blocks = format!("{:?}", self.recompute_blocks);
        let chosen = self.recompute == Recompute::Blocks;
        let key = "train.recompute_blocks";
        require(
            key,
            chosen || self.recompute_blocks.is_empty(),
            &blocks,
            "`train.recompute = \"blocks\"` with it",
        )?;
        require(key, !chosen || !self.recompute_blocks.is_empty(), &blocks, "at least one block")?;
        require("train.eval_batches", self.eval_batches > 0, self.eval_batches, "at least 1")?;
        require("train.timeout", self.timeout > 0, self.timeout, "at least 1")?;
        let threads = self.threads.unwrap_or(1);
        require("train.threads", (1..=4096).contains(&threads), threads, "from 1 to 4096")
    }
}

/// When to save and what to keep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CheckpointSection {
    /// Steps between saves; 0 saves only at the end and on request.
    pub every: u64,
    /// How many of the newest checkpoints are kept.
    pub keep: usize,
    /// Checkpoints of every step that is a multiple of this are kept for good; 0 for none.
    pub keep_every: u64,
    /// After an evaluation with the lowest loss so far, save, and keep that checkpoint until a better one is saved. Needs
    /// `train.eval_every`.
    pub keep_best: bool,
    /// Continue from the newest checkpoint of the run's folder; false refuses a folder that has any.
    pub resume: bool,
    /// The checkpoint to continue from instead of the newest: `step-00000004` of the run's folder, or the path of
    /// another run's. Checkpoints after it are removed when the first new one is saved. Started again with the same value, the
    /// run resumes from its own newest checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Save at the end.
    pub final_save: bool,
    /// What happens when a snapshot is due and the one before it is not written yet: `"wait"` holds training up, `"drop"` continues and
    /// writes the newest as soon as it can. Absent: `drop` with `every = 1`, else `wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<Behind>,
    /// Bytes of a rank that snapshots may take beside the state itself. Absent for as much as three of them; where there is less,
    /// training waits for what is being written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Hosts share no file system: each file of a checkpoint lies in the run's folder on this many of them, all of them if there are
    /// fewer. With 2 any one host may be lost. Absent where the run's folder is the same for all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<usize>,
    /// Further places that checkpoints go to, each with its own interval and number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierSection>,
}

/// What happens when writing is slower than training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Behind {
    /// Training waits.
    Wait,
    /// Training continues, and older snapshots that are not being written yet are dropped.
    Drop,
}

impl Default for CheckpointSection {
    fn default() -> CheckpointSection {
        CheckpointSection {
            every: 0,
            keep: 2,
            keep_every: 0,
            keep_best: false,
            resume: true,
            from: None,
            final_save: true,
            behind: None,
            memory: None,
            copies: None,
            tiers: Vec::new(),
        }
    }
}

impl CheckpointSection {
    /// What happens when writing is slower than training.
    pub(crate) fn pace(&self) -> Behind {
        let often = self.every == 1 || self.tiers.iter().any(|tier| tier.every == 1);
        self.behind.unwrap_or(if often { Behind::Drop } else { Behind::Wait })
    }

    /// True where anything is saved before the end.
    pub(crate) fn is_regular(&self) -> bool {
        self.every > 0 || self.keep_best || !self.tiers.is_empty()
    }

    pub(super) fn check(&self) -> Result<()> {
        require("checkpoint.keep", self.keep > 0, self.keep, "at least 1")?;
        require(
            "checkpoint.copies",
            self.copies != Some(0),
            0,
            "at least 1, or nothing where hosts share a folder",
        )?;
        self.tiers.iter().try_for_each(TierSection::check)?;
        let from = self.from.as_deref().unwrap_or("none");
        let fits = self.resume || self.from.is_none();
        require("checkpoint.from", fits, from, "`checkpoint.resume` not to be false beside it")
    }
}

/// What is written about the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LogSection {
    /// Folder of all runs.
    pub dir: PathBuf,
    /// Steps between lines.
    pub every: u64,
    /// Also write TensorBoard files.
    pub tensorboard: bool,
    /// FLOP/s that one rank can reach, such as 989e12 for bf16 on an H100; with it `mfu` is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_flops: Option<f64>,
    /// Prompts that the model continues now and then, to be read on the board.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<SamplesSection>,
}

impl Default for LogSection {
    fn default() -> LogSection {
        LogSection { dir: "runs".into(), every: 1, tensorboard: true, peak_flops: None, samples: None }
    }
}

/// Prompts that the model continues now and then, always with the likeliest token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SamplesSection {
    /// The prompts.
    pub prompts: Vec<String>,
    /// Steps between; the last step has some too.
    pub every: u64,
    /// Most tokens of what is generated.
    pub max_new_tokens: usize,
}

impl Default for SamplesSection {
    fn default() -> SamplesSection {
        SamplesSection { prompts: Vec::new(), every: 100, max_new_tokens: 64 }
    }
}

impl SamplesSection {
    pub(crate) fn check(&self) -> Result<()> {
        let empty = self.prompts.is_empty() || self.prompts.iter().any(String::is_empty);
        let found = format!("{:?}", self.prompts);
        require("log.samples.prompts", !empty, found, "at least one prompt, and none without text")?;
        require("log.samples.every", self.every > 0, self.every, "at least 1")?;
        require("log.samples.max_new_tokens", self.max_new_tokens > 0, self.max_new_tokens, "at least 1")
    }

    /// Refuses prompts for an objective whose model continues none.
    pub(crate) fn check_for(&self, objective: &dyn Objective) -> Result<()> {
        let expected =
            "none where the model continues no texts, and where its own responses are kept (grpo, ppo)";
        let found = format!("prompts with `train.objective = \"{}\"`", objective.name());
        require("log.samples", objective.continues(), found, expected)
    }
}

/// Samples of a step.
const MOST_SAMPLES: usize = 1 << 24;
