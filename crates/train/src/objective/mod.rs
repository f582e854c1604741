//! What a run learns: what a sample is, what is generated if anything, and what the loss is.
//!
//! The trainer's loop does not know which objective it runs. It asks for data, for what goes into the model, and for the
//! loss at its end; batches, meshes, schedules, sums and checkpoints are its own business.

mod before;
mod contrastive;
mod dpo;
mod next_token;
mod rewarded;
mod sft;

pub(crate) use before::Passes;
pub use before::{AtEnd, Before, Draws, Purpose};
pub use contrastive::Contrastive;
pub use dpo::Dpo;
pub use next_token::NextToken;
pub use rewarded::Rewarded;
pub use sft::Sft;

use crate::config::{Config, OptimSection};
use crate::data::{Batch, Batches, Borders, Config as DataConfig, Data, Tokenizer};
use crate::error::{Error, Result, nearest};
use crate::geometry::Geometry;
use crate::rl::RewardFunctions;
use planaria_array::Array;
use planaria_nn::models::{Activations, Architecture, Loss, Models, Network, Shown};
use planaria_tensor::Tensor;
use planaria_tensor::ops::Documents;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// What a run learns. All methods are called with the same on every rank of a stage.
pub trait Objective: fmt::Debug + Send + Sync {
    /// Its name in `train.objective`.
    fn name(&self) -> &str;

    /// The same with the settings of a run, where it has any.
    fn configured(&self, _config: &Config) -> Result<Option<Arc<dyn Objective>>> {
        Ok(None)
    }

    /// The tokenizer that it reads and saves with.
    fn tokenizer(&self, tokenizer: Tokenizer) -> Result<Tokenizer> {
        Ok(tokenizer)
    }

    /// Changes the model's `config.json` where it needs another model than the one that was asked for.
    fn shape(&self, _model: &mut Map<String, Value>) -> Result<()> {
        Ok(())
    }

    /// The same for the model that is trained, where it must know it. `settings` gives the objects of JSON files beside the weights
    /// that the model starts from, empty ones where there is no such file.
    fn for_model(
        &self,
        _model: &dyn Architecture,
        _settings: &dyn Fn(&str) -> Result<Map<String, Value>>,
    ) -> Result<Option<Arc<dyn Objective>>> {
        Ok(None)
    }

    /// The same with a program's own judges of responses, where it asks any.
    fn with_rewards(&self, _functions: &RewardFunctions) -> Option<Arc<dyn Objective>> {
        None
    }

    /// Refuses a model that it cannot train.
    fn check(&self, _model: &dyn Architecture) -> Result<()> {
        Ok(())
    }

    /// The model that is trained, where that is more than the one that was asked for.
    fn model(&self, model: Arc<dyn Architecture>, _models: &Models) -> Result<Arc<dyn Architecture>> {
        Ok(model)
    }

    /// What it says of a second model that [`Objective::model`] has put beside the first.
    fn second(&self) -> Option<&Second> {
        None
    }

    /// Files to save beside the weights.
    fn files(&self, _model: &dyn Architecture) -> Result<BTreeMap<String, Vec<u8>>> {
        Ok(BTreeMap::new())
    }

    /// Files of what it must know again when a run goes on after `step`.
    fn state(&self, _step: u64) -> Result<BTreeMap<String, Vec<u8>>> {
        Ok(BTreeMap::new())
    }

    /// Takes up what it needs of the checkpoint that a run goes on from, after `step`; `read` gives its files.
    fn restore(&self, _step: u64, _read: &dyn Fn(&str) -> Result<Option<Vec<u8>>>) -> Result<()> {
        Ok(())
    }

    /// Names of the figures that it tells in every step: those that [`Objective::generate`] knows, and sums that come with the
    /// loss and are told over its count.
    fn figures(&self) -> Figures {
        Figures::default()
    }

    /// Bytes that a rank which has the model's end holds of a step, beside weights and activations.
    fn held(&self, _model: &dyn Architecture, _geometry: &Geometry) -> Result<Held> {
        Ok(Held::default())
    }

    /// Whether a sample is token ids with labels, which a program may make itself.
    fn streams(&self) -> bool {
        true
    }

    /// Opens the samples.
    fn open(&self, config: &DataConfig, tokenizer: &Tokenizer) -> Result<Data>;

    /// How samples come together in a step, where that is more than their order.
    fn batches(&self, _config: &Config) -> Batches {
        Batches::default()
    }

    /// Whether the documents of a sample are kept apart: every stage must then read where they begin.
    fn separates(&self, config: &DataConfig) -> bool {
        config.documents == Borders::Separate
    }

    /// Whether [`Objective::input`] is shorter than the samples: stages must then be told how long each is.
    fn trims(&self) -> bool {
        false
    }

    /// Whether the size of a micro-batch is a matter of memory alone: it need not divide the batch then, and the last one of each rank
    /// is filled up with rows that have no labels.
    fn uneven(&self) -> bool {
        false
    }

    /// Whether [`Objective::generate`] has the whole model make texts, for which ranks that have a part of it get a copy.
    fn generates(&self) -> bool {
        false
    }

    /// Whether the model continues texts, so that `log.samples` may ask it to. Not where it gives something else, and not where
    /// the texts of [`Objective::generate`] are kept in their place.
    fn continues(&self) -> bool {
        true
    }

    /// Texts that a rank has under way at once when it generates, and the tokens of each, prompts included: at most, where prompts leave
    /// room for a whole text.
    fn under_way(&self, _geometry: &Geometry, _stages: usize) -> [u64; 2] {
        [0, 0]
    }

    /// How many batches of `train.global_batch` samples are read for a step: one, as a rule.
    fn reads(&self, _step: u64) -> u64 {
        1
    }

    /// Whether [`Objective::generate`] may read more than that.
    fn reads_on(&self) -> bool {
        false
    }

    /// Makes the micro-batches of a step out of those that were read, before anything of it is computed. Only ranks that
    /// read data have any. Random numbers must follow from the step and the positions of the samples, so that a run
    /// that continues draws the same. As a rule nothing is generated.
    fn generate(&self, _before: &Before<'_>, batches: Vec<Batch>) -> Result<Vec<Batch>> {
        Ok(batches)
    }

    /// What goes into the model's first stage, and who sees whom.
    fn input(&self, batch: &Batch) -> Result<Input>;

    /// What a model that sees is shown beside these tokens; as a rule nothing.
    fn view(&self, _batch: &Batch) -> Result<Option<View>> {
        Ok(None)
    }

    /// The loss at the end of the model's last stage. Collective over its inner mesh.
    fn loss(&self, model: &dyn Network, last: &Activations, batch: &Batch) -> Result<Loss>;

    /// What the ops of a loss begin with, of tokens that nobody knows: [`crate::explain`] follows them. `labels` has no elements.
    fn explained(&self, model: &dyn Network, last: &Activations, labels: &Tensor) -> Result<Tensor> {
        Ok(model.loss(last, labels)?.total()?)
    }
}

/// A second model beside the one that is trained: how it begins and learns.
#[derive(Clone, Debug, PartialEq)]
pub struct Second {
    /// The folder of its first weights.
    pub folder: PathBuf,
    /// Parameters that the folder does not have.
    pub fresh: Vec<String>,
    /// How it learns; the schedule is that of the first.
    pub optim: OptimSection,
}

/// Bytes that an objective holds of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// At the worst moment before forward and backward begin.
    pub before: u64,
    /// Until they have ended.
    pub during: u64,
    /// Whether forward of one micro-batch is done before, and kept: on ranks that have all of the model.
    pub keeps: bool,
}

/// Names of figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Told before the step by [`Before::tell`].
    pub told: Vec<String>,
    /// Sums that come with the loss, in the order of [`Loss::figures`].
    pub counted: Vec<String>,
}

impl Figures {
    /// Only sums that come with the loss.
    pub fn counted(names: &[&str]) -> Figures {
        Figures { told: Vec::new(), counted: names.iter().map(ToString::to_string).collect() }
    }
}

/// What goes into a model.
#[derive(Clone, Debug)]
pub struct Input {
    /// Token ids `[samples, sequence]`.
    pub tokens: Tensor,
    /// The documents that do not see each other; absent where all tokens of a row do.
    pub documents: Option<Documents>,
}

/// What a model that sees is shown beside tokens.
#[derive(Clone, Debug)]
pub struct View {
    /// Where the tokens stand, `[3, samples, sequence]`.
    pub axes: Array,
    /// Pictures and videos.
    pub shown: Shown,
}

/// The known objectives by name.
#[derive(Clone, Debug)]
pub struct Objectives {
    known: Vec<Arc<dyn Objective>>,
}

impl Default for Objectives {
    /// Those that come with this crate.
    fn default() -> Objectives {
        Objectives {
            known: vec![
                Arc::new(NextToken),
                Arc::new(Sft::default()),
                Arc::new(Contrastive::default()),
                Arc::new(Dpo::default()),
                Arc::new(Rewarded::grpo()),
                Arc::new(Rewarded::ppo()),
            ],
        }
    }
}

impl Objectives {
    /// With one of one's own. One of the same name is replaced.
    #[must_use]
    pub fn with(mut self, objective: Arc<dyn Objective>) -> Objectives {
        self.known.retain(|known| known.name() != objective.name());
        self.known.push(objective);
        self
    }

    /// The one of this name.
    pub fn find(&self, name: &str) -> Result<Arc<dyn Objective>> {
        let names: Vec<&str> = self.known.iter().map(|known| known.name()).collect();
        let found = self.known.iter().find(|known| known.name() == name);
        found.cloned().ok_or_else(|| {
            let near = nearest(name, &names).map(|near| format!("; did you mean `{near}`?"));
            let expected = format!("one of {}{}", names.join(", "), near.unwrap_or_default());
            Error::Value { key: "train.objective".into(), found: format!("\"{name}\""), expected }
        })
    }
}
