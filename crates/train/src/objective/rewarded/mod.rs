//! Learning from rewards: a sample is a prompt, the policy answers it itself, and answers that are worth more become more likely.
//! `grpo` compares the answers to a prompt with each other, `ppo` compares them with what a critic expected.
//!
//! A rollout is the answers to some prompts. Several steps may learn from one: its prompts are shared out over updates, and all
//! of them are gone through several times. What is drawn follows from the seed, the step, the prompt's position and
//! the number of the answer: rollouts are the same on every mesh and after a resume, which inside a rollout takes up the stored one.

mod answer;
mod keep;
mod learn;
mod make;
mod record;
mod setup;
mod show;
mod worth;

use self::answer::MOST_ROWS;
use super::{Before, Figures, Input, Objective, Purpose, Second};
use crate::config::{Config, PpoSection, ResponsesFrom, RlSection};
use crate::data::{Batch, Config as DataConfig, Data, Tokenizer};
use crate::error::{Error, Result};
use crate::generate::named_ends;
use crate::geometry::Geometry;
use crate::pretrained::Pretrained;
use crate::rl::{KlKind, PolicyConfig, Reference, RewardFunctions, ScoreModel};
use planaria_comm::CommExt as _;
use planaria_nn::models::{Activations, Architecture, Beside, Loss, Models, Network};
use planaria_tensor::Tensor;
use record::{Memory, Rollout};
use serde_json::{Map, Value};
use setup::valued;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Figures of an update.
static COUNTED: [&str; 5] =
    ["clip_fraction_low", "clip_fraction_high", "approx_kl_k1", "approx_kl_k3", "entropy"];
/// The file of what a run must know again: a rollout that it is inside of, and what that leaves to the next.
const FILE: &str = "rollout.json";

/// Keeps what numbers are divided by away from 0.
const TINY: f64 = 1e-8;

/// What a response is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    /// The other responses to its prompt.
    Grpo,
    /// What a critic expected.
    Ppo,
}

/// GRPO or PPO. How responses are made and judged says `[rl]`, how a critic learns says `[ppo]`.
#[derive(Clone, Debug)]
pub struct Rewarded {
    kind: Algorithm,
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
    /// Tokens that end a response by what stands beside the weights that the policy starts from.
    ends: Vec<u32>,
    reference: Option<Reference>,
    second: Option<Second>,
    /// What the data is opened with, for those who judge.
    opened: Arc<Mutex<Option<Arc<Opened>>>>,
    /// The newest rollouts: thread ranks share them, and one may be a step ahead of another.
    kept: Arc<Mutex<Vec<Arc<Rollout>>>>,
    /// The reward models, in the order of the rewards.
    scorers: Vec<Option<ScoreModel>>,
    /// The program's own judges.
    functions: RewardFunctions,
}

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
        Rewarded::new(Algorithm::Grpo)
    }

    /// PPO, before a run says anything.
    pub fn ppo() -> Rewarded {
        Rewarded::new(Algorithm::Ppo)
    }

    fn new(kind: Algorithm) -> Rewarded {
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
            ends: Vec::new(),
            reference: None,
            second: None,
            opened: Arc::default(),
            kept: Arc::default(),
            scorers: Vec::new(),
            functions: RewardFunctions::new(),
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
        self.kind == Algorithm::Ppo || self.steps() > 1
    }

    /// Whether the distance from the reference is a part of the loss.
    fn loss_has_reference(&self) -> bool {
        self.section.kl_coef > 0.0
    }

    /// Whether it is estimated there from the tokens that were drawn.
    fn loss_estimates_distance(&self) -> bool {
        self.loss_has_reference() && self.section.kl != KlKind::Full
    }

    /// Whether it is computed there over the whole vocabulary.
    fn loss_has_distance(&self) -> bool {
        self.loss_has_reference() && self.section.kl == KlKind::Full
    }

    /// Whether rewards are taken by the distance over the whole vocabulary.
    fn shapes_by_distance(&self) -> bool {
        self.kind == Algorithm::Ppo && self.ppo.kl_coef > 0.0 && self.ppo.kl == KlKind::Full
    }

    fn policy(&self) -> PolicyConfig {
        let high = if self.kind == Algorithm::Ppo { 0.2 } else { 0.28 };
        PolicyConfig { clip_high: self.section.clip_high.unwrap_or(high), ..self.section.policy() }
    }

    fn opened(&self) -> Result<Arc<Opened>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        opened.ok_or_else(|| Error::Bug { what: "prompts that were not opened".into() })
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

impl Objective for Rewarded {
    fn name(&self) -> &str {
        match self.kind {
            Algorithm::Grpo => "grpo",
            Algorithm::Ppo => "ppo",
        }
    }

    fn configured(&self, config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        let section = config.rl.clone();
        let is_ppo = self.kind == Algorithm::Ppo;
        let mut own = Rewarded {
            ppo: config.ppo.clone(),
            seed: config.train.seed,
            group: section.samples_per_prompt.unwrap_or(if is_ppo { 1 } else { 8 }),
            epochs: section.epochs.unwrap_or(if is_ppo { 4 } else { 1 }),
            update: config.train.global_batch,
            micro: config.train.micro_batch,
            sequence: config.data.sequence,
            section,
            functions: self.functions.clone(),
            ..Rewarded::new(self.kind)
        };
        own.name_functions();
        own.section.check(own.group, if is_ppo { 1 } else { 2 })?;
        own.check_run(config)?;
        if is_ppo {
            own.ppo.check()?;
            own.second = Some(own.find_critic(config)?);
        }
        own.find_updates()?;
        own.reference = own.find_reference(config)?;
        own.scorers = own.find_scorers(config)?;
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

    fn for_model(
        &self,
        _: &dyn Architecture,
        settings: &dyn Fn(&str) -> Result<Map<String, Value>>,
    ) -> Result<Option<Arc<dyn Objective>>> {
        let ends = named_ends(&settings("generation_config.json")?, &settings("config.json")?);
        Ok(Some(Arc::new(Rewarded { ends, ..self.clone() })))
    }

    fn with_rewards(&self, functions: &RewardFunctions) -> Option<Arc<dyn Objective>> {
        Some(Arc::new(Rewarded { functions: functions.clone(), ..self.clone() }))
    }

    fn second(&self) -> Option<&Second> {
        self.second.as_ref()
    }

    fn state(&self, step: u64) -> Result<BTreeMap<String, Vec<u8>>> {
        let Some(rollout) = self.newest(step) else { return Ok(BTreeMap::new()) };
        let bytes = match (rollout.has(step + 1), rollout.memory == Memory::default()) {
            (true, _) => rollout.to_bytes()?,
            (false, true) => return Ok(BTreeMap::new()),
            // It is used up; what it left is not.
            (false, false) => {
                let (first, steps, memory) = (rollout.first, rollout.steps, rollout.memory.clone());
                Rollout { first, steps, memory, ..Rollout::default() }.to_bytes()?
            }
        };
        Ok([(FILE.to_string(), bytes)].into())
    }

    fn restore(&self, step: u64, read: &dyn Fn(&str) -> Result<Option<Vec<u8>>>) -> Result<()> {
        if let Some(bytes) = read(FILE)? {
            let rollout = Arc::new(Rollout::from_bytes(&bytes)?);
            let samples = self.update * self.updates * self.group;
            let fits = (rollout.steps, rollout.records.len()) == (self.steps(), samples);
            if !fits && !rollout.records.is_empty() {
                let what = format!(
                    "the checkpoint of step {step} is inside a rollout of {} responses for {} steps, but the run asks for {samples} and {}; keep `[rl]` as it was",
                    rollout.records.len(),
                    rollout.steps,
                    self.steps()
                );
                return Err(Error::Run { what });
            }
            self.keep(&rollout);
        }
        if self.begins(step + 1) { Ok(()) } else { self.stored(step + 1).map(|_| ()) }
    }

    fn figures(&self) -> Figures {
        let distance: &[&str] = if self.loss_has_reference() { &["kl"] } else { &[] };
        let critic: &[&str] =
            if self.kind == Algorithm::Ppo { &["value_loss", "value_clip_fraction"] } else { &[] };
        Figures { told: self.told(), ..Figures::counted(&[&COUNTED[..], distance, critic].concat()) }
    }

    fn streams(&self) -> bool {
        false
    }

    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data> {
        self.check_functions()?;
        let (data, rows) = config.open_prompts(tokenizer)?;
        let opened = Arc::new(Opened { rows, tokenizer: tokenizer.clone() });
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(data)
    }

    fn separates(&self, _: &DataConfig) -> bool {
        // Every stage generates, and so reads.
        true
    }

    fn trims(&self) -> bool {
        true
    }

    fn continues(&self) -> bool {
        false
    }

    fn generates(&self) -> bool {
        self.section.responses == ResponsesFrom::Policy
    }

    fn under_way(&self, geometry: &Geometry, stages: usize) -> [u64; 2] {
        let batches = (self.updates as u64 * geometry.accumulation).div_ceil(stages.max(1) as u64);
        let all = batches * geometry.micro_batch * self.group as u64;
        [all.min(self.section.rows.unwrap_or(MOST_ROWS) as u64), self.sequence as u64]
    }

    fn reads(&self, step: u64) -> u64 {
        if self.begins(step) { self.updates as u64 } else { 0 }
    }

    fn reads_on(&self) -> bool {
        self.section.max_gen_batches.is_some()
    }

    fn generate(&self, before: &Before<'_>, batches: Vec<Batch>) -> Result<Vec<Batch>> {
        if before.purpose == Purpose::Evaluation {
            return Err(Error::Bug { what: "an evaluation of responses".into() });
        }
        let rollout = match self.begins(before.step) {
            true => Arc::new(self.make(before, batches)?),
            false => self.stored(before.step)?,
        };
        self.keep(&rollout);
        for (name, value) in rollout.names.iter().zip(&rollout.told) {
            before.tell(name, *value);
        }
        let mut batches = self.update_of(before, &rollout)?;
        self.attach_base(before, &mut batches)?;
        Ok(batches)
    }

    fn input(&self, batch: &Batch) -> Result<Input> {
        // What fills rows up stands behind them, where no token sees it.
        Ok(Input { tokens: Tensor::new(batch.tokens.clone()), documents: None })
    }

    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss> {
        self.learn(model, last, batch)
    }
}
