//! Learning from rewards: a sample is a prompt, the policy answers it itself, and answers that are worth more become more likely.
//! `grpo` compares the answers to a prompt with each other, `ppo` compares them with what a critic expected.
//!
//! A rollout is the answers to some prompts. Several steps may learn from one: its prompts are shared out over updates, and all
//! of them are gone through several times. What is drawn follows from the seed, the step, the prompt's position and
//! the number of the answer: rollouts are the same on every mesh and after a resume, which inside a rollout takes up the stored one.

mod learn;
mod make;
mod record;

use super::{Before, Figures, Input, Objective, Purpose, Second};
use crate::config::{Config, PpoSection, RlSection};
use crate::data::{Batch, Config as DataConfig, Data, Tokenizer};
use crate::error::{Error, Result};
use crate::pretrained::Pretrained;
use crate::rl::{PolicyConfig, Reference, RewardKind, RolloutBatching, RolloutGeometry};
use planaria_comm::CommExt as _;
use planaria_nn::models::{Activations, Architecture, Beside, Loss, Models, Network};
use planaria_tensor::Tensor;
use record::Rollout;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Figures of a rollout.
static TOLD: [&str; 7] =
    ["reward", "reward_std", "response_tokens", "finished", "degenerate_groups", "unscored", "reference_kl"];
/// Figures of an update.
static COUNTED: [&str; 6] = [
    "clip_fraction_low",
    "clip_fraction_high",
    "approx_kl_k1",
    "approx_kl_k3",
    "value_loss",
    "value_clip_fraction",
];
/// The file of a checkpoint inside a rollout.
const FILE: &str = "rollout.json";

/// What a response is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The other responses to its prompt.
    Grpo,
    /// What a critic expected.
    Ppo,
}

/// GRPO or PPO. How responses are made and judged says `[rl]`, how a critic learns says `[ppo]`.
#[derive(Clone, Debug)]
pub struct Rewarded {
    kind: Kind,
    section: RlSection,
    ppo: PpoSection,
    seed: u64,
    /// Responses to a prompt.
    group: usize,
    /// Prompts of an update, and of a micro-batch.
    update: usize,
    micro: usize,
    /// Updates of one pass over a rollout, and passes.
    updates: usize,
    epochs: usize,
    /// Most tokens of a prompt with its response.
    sequence: usize,
    reference: Option<Reference>,
    second: Option<Second>,
    /// What the data is opened with, for those who judge.
    opened: Arc<Mutex<Option<Arc<Opened>>>>,
    kept: Arc<Mutex<Option<Kept>>>,
}

/// The rollout that steps learn from, and the last step that did.
type Kept = (u64, Arc<Rollout>);

/// The rows of the prompts, and what turns tokens into text.
#[derive(Debug)]
struct Opened {
    rows: Vec<Value>,
    tokenizer: Tokenizer,
}

impl Opened {
    fn row(&self, number: usize) -> Result<&Value> {
        self.rows.get(number).ok_or_else(|| Error::Bug { what: format!("there is no row {number}") })
    }
}

fn refuse<T>(key: &str, found: impl ToString, expected: impl Into<String>) -> Result<T> {
    Err(Error::Value { key: key.into(), found: found.to_string(), expected: expected.into() })
}

impl Rewarded {
    /// GRPO, before a run says anything.
    pub fn grpo() -> Rewarded {
        Rewarded::new(Kind::Grpo)
    }

    /// PPO, before a run says anything.
    pub fn ppo() -> Rewarded {
        Rewarded::new(Kind::Ppo)
    }

    fn new(kind: Kind) -> Rewarded {
        Rewarded {
            kind,
            section: RlSection::default(),
            ppo: PpoSection::default(),
            seed: 0,
            group: 1,
            update: 1,
            micro: 1,
            updates: 1,
            epochs: 1,
            sequence: 1,
            reference: None,
            second: None,
            opened: Arc::default(),
            kept: Arc::default(),
        }
    }

    /// Steps that learn from one rollout.
    fn steps(&self) -> u64 {
        (self.updates * self.epochs) as u64
    }

    /// Whether a step is the first of a rollout.
    fn begins(&self, step: u64) -> bool {
        (step.max(1) - 1).is_multiple_of(self.steps())
    }

    /// Whether updates need to know what the policy thought when its responses were made.
    fn looks_back(&self) -> bool {
        self.kind == Kind::Ppo || self.steps() > 1
    }

    /// Whether the distance from the reference is a part of the loss.
    fn loss_has_reference(&self) -> bool {
        self.section.kl_coef > 0.0
    }

    fn policy(&self) -> PolicyConfig {
        let high = if self.kind == Kind::Ppo { 0.2 } else { 0.28 };
        PolicyConfig { clip_high: self.section.clip_high.unwrap_or(high), ..self.section.policy() }
    }

    fn opened(&self) -> Result<Arc<Opened>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.ok_or_else(|| Error::Bug { what: "prompts that were not opened".into() })
    }

    fn check_run(&self, config: &Config) -> Result<()> {
        let name = self.name();
        if config.mesh.pp > 1 {
            let expected = format!("`pp=1` with `{name}`: a rank makes responses with the whole model");
            return refuse("mesh", format!("pp={}", config.mesh.pp), expected);
        }
        if config.train.zero > 2 {
            let expected = format!("at most 2 with `{name}`: a rank makes responses with whole weights");
            return refuse("train.zero", config.train.zero, expected);
        }
        if config.train.eval_every > 0 {
            let expected = format!("0 with `{name}`: its rewards are told in every step");
            return refuse("train.eval_every", config.train.eval_every, expected);
        }
        let asks = |kind| matches!(kind, RewardKind::Command | RewardKind::Http);
        if (config.mesh.tp > 1 || config.mesh.ep > 1) && self.section.reward.iter().any(|r| asks(r.kind)) {
            let expected =
                "one that needs nobody else on a mesh with `tp` or `ep`, whose ranks would each ask";
            return refuse("rl.reward.kind", "command or http", expected);
        }
        if self.kind == Kind::Ppo && config.lora.is_some() {
            return refuse("lora", "given", "none with `ppo`, whose critic is trained whole");
        }
        Ok(())
    }

    /// The updates of a pass over a rollout, checked before anything is read.
    fn find_updates(&mut self) -> Result<()> {
        let prompts = self.section.prompts_per_rollout.unwrap_or(self.update);
        let geometry = RolloutGeometry::derive(&RolloutBatching {
            prompts_per_rollout: prompts as i64,
            samples_per_prompt: self.group as i64,
            prompts_per_update: Some(self.update as i64),
            data_ranks: 1,
            per_device: self.group as i64,
            epochs: Some(self.epochs as i64),
            ..RolloutBatching::default()
        });
        match geometry {
            Ok(geometry) => self.updates = geometry.updates_per_epoch,
            Err(error) => {
                let expected =
                    format!("a multiple of `train.global_batch`, the prompts of an update ({error})");
                return refuse("rl.prompts_per_rollout", prompts, expected);
            }
        }
        Ok(())
    }

    /// Where the critic begins: its own folder, or that of the policy with a new head.
    fn find_critic(&self, config: &Config) -> Result<Second> {
        let Some(folder) = self.ppo.critic.as_ref().or(config.model.init.as_ref()) else {
            return refuse("model.init", "missing", "a folder of weights with `ppo`");
        };
        let has_head = is_valued(&Pretrained::find(folder)?.model_config()?);
        let fresh = if has_head { Vec::new() } else { vec!["score.weight".to_string()] };
        Ok(Second { folder: folder.clone(), fresh, lr: self.ppo.critic_lr })
    }

    fn find_reference(&self, config: &Config) -> Result<Option<Reference>> {
        let in_reward = self.kind == Kind::Ppo && self.ppo.kl_coef > 0.0;
        if !in_reward && !self.loss_has_reference() {
            return Ok(None);
        }
        match self.section.reference.as_ref().or(config.model.init.as_ref()) {
            Some(path) => {
                Ok(Some(Reference::new(path, config.train.precision.dtype(), config.device.device())))
            }
            None => refuse("rl.reference", "missing", "a folder of weights where `kl_coef` is above 0"),
        }
    }

    /// The stored rollout that a step inside it learns from.
    fn stored(&self, step: u64) -> Result<Arc<Rollout>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let fits = |rollout: &Rollout| (rollout.first..rollout.first + rollout.steps).contains(&step);
        kept.map(|(_, rollout)| rollout).filter(|rollout| fits(rollout)).ok_or_else(|| Error::Run {
            what: format!(
                "step {step} is inside a rollout that is not there; go on from a step after a multiple of {}",
                self.steps()
            ),
        })
    }

    /// This rank's micro-batches of an update.
    fn update_of(&self, before: &Before<'_>, rollout: &Rollout) -> Result<Vec<Batch>> {
        let number = (before.step - rollout.first) as usize % self.updates;
        let samples = self.update * self.group;
        let all = &rollout.records[number * samples..][..samples];
        let (ranks, rank, each) = (before.data.size(), before.data.rank(), self.micro * self.group);
        let own = all.chunks(each).enumerate().filter(|(number, _)| number % ranks == rank);
        own.map(|(_, records)| self.learnable(records, all)).collect()
    }
}

/// Whether a `config.json` is of a model with a head of values.
fn is_valued(config: &Map<String, Value>) -> bool {
    let named = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
    named.is_some_and(|name| name.ends_with("ForSequenceClassification"))
}

/// The same model with a head of values.
fn valued(mut config: Map<String, Value>) -> Value {
    if !is_valued(&config) {
        let named = config.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let base = named.map_or("", |name| name.split("For").next().unwrap_or(name));
        let name = format!("{}ForSequenceClassification", base.trim_end_matches("Model"));
        config.insert("architectures".into(), json!([name]));
        config.insert("id2label".into(), json!({ "0": "LABEL_0" }));
        config.insert("tie_word_embeddings".into(), json!(false));
    }
    Value::Object(config)
}

impl Objective for Rewarded {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Grpo => "grpo",
            Kind::Ppo => "ppo",
        }
    }

    fn configured(&self, config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        let section = config.rl.clone();
        let is_ppo = self.kind == Kind::Ppo;
        let mut own = Rewarded {
            ppo: config.ppo.clone(),
            seed: config.train.seed,
            group: section.samples_per_prompt.unwrap_or(if is_ppo { 1 } else { 8 }),
            epochs: section.epochs.unwrap_or(if is_ppo { 4 } else { 1 }),
            update: config.train.global_batch,
            micro: config.train.micro_batch,
            sequence: config.data.sequence,
            section,
            ..Rewarded::new(self.kind)
        };
        own.section.check(own.group, if is_ppo { 1 } else { 2 })?;
        own.check_run(config)?;
        if is_ppo {
            own.ppo.check()?;
            own.second = Some(own.find_critic(config)?);
        }
        own.find_updates()?;
        own.reference = own.find_reference(config)?;
        Ok(Some(Arc::new(own)))
    }

    fn model(&self, model: Arc<dyn Architecture>, models: &Models) -> Result<Arc<dyn Architecture>> {
        let Some(second) = &self.second else { return Ok(model) };
        let critic = models.open(valued(Pretrained::find(&second.folder)?.model_config()?))?;
        if critic.vocab_size() < model.vocab_size() {
            let expected = format!("a critic that knows the {} tokens of the policy", model.vocab_size());
            return refuse("ppo.critic", format!("{} tokens", critic.vocab_size()), expected);
        }
        Ok(Arc::new(Beside::new(model, critic)))
    }

    fn second(&self) -> Option<&Second> {
        self.second.as_ref()
    }

    fn files(&self, _: &dyn Architecture) -> Result<BTreeMap<String, Vec<u8>>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unfinished = kept.filter(|(step, rollout)| step + 1 < rollout.first + rollout.steps);
        let file = unfinished.map(|(_, rollout)| Ok((FILE.to_string(), rollout.to_bytes()?)));
        file.into_iter().collect()
    }

    fn restore(&self, step: u64, read: &dyn Fn(&str) -> Result<Option<Vec<u8>>>) -> Result<()> {
        if self.begins(step + 1) {
            return Ok(());
        }
        if let Some(bytes) = read(FILE)? {
            let rollout = Arc::new(Rollout::from_bytes(&bytes)?);
            let samples = self.update * self.updates * self.group;
            if (rollout.steps, rollout.records.len()) != (self.steps(), samples) {
                let what = format!(
                    "the checkpoint of step {step} is inside a rollout of {} responses for {} steps, but the run asks for {samples} and {}; keep `[rl]` as it was",
                    rollout.records.len(),
                    rollout.steps,
                    self.steps()
                );
                return Err(Error::Run { what });
            }
            *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((step, rollout));
        }
        self.stored(step + 1).map(|_| ())
    }

    fn figures(&self) -> Figures {
        let told = if self.reference.is_some() { TOLD.len() } else { TOLD.len() - 1 };
        let counted = if self.kind == Kind::Ppo { COUNTED.len() } else { COUNTED.len() - 2 };
        Figures { told: &TOLD[..told], counted: &COUNTED[..counted] }
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        let (data, rows) = config.open_prompts(tokenizer)?;
        let opened = Arc::new(Opened { rows, tokenizer: tokenizer.clone() });
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(data)
    }

    fn trims(&self) -> bool {
        true
    }

    fn reads(&self, step: u64) -> u64 {
        if self.begins(step) { self.updates as u64 } else { 0 }
    }

    fn generate(&self, before: &Before<'_>, batches: Vec<Batch>) -> Result<Vec<Batch>> {
        let [model] = before.parts[..] else {
            return Err(Error::Bug { what: "responses of a model that is not all here".into() });
        };
        if before.purpose == Purpose::Evaluation {
            return Err(Error::Bug { what: "an evaluation of responses".into() });
        }
        let rollout = match self.begins(before.step) {
            true => Arc::new(self.make(model, before, &batches)?),
            false => self.stored(before.step)?,
        };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some((before.step, rollout.clone()));
        for (name, value) in self.figures().told.iter().zip(&rollout.told) {
            before.tell(name, *value);
        }
        self.update_of(before, &rollout)
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        // What fills rows up stands behind them, where no token sees it.
        Ok(Input { tokens: Tensor::new(batch.tokens.clone()), documents: None })
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        self.learn(model, last, batch)
    }
}
