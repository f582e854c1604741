//! The state of a run as a checkpoint has it: out of a rank's arrays, and back into them on any other mesh.

use super::Job;
use crate::config::Precision;
use crate::data::{Sampler, SamplerState};
use crate::error::{Error, Result};
use crate::replica::Replica;
use crate::weights::{Files, Tie};
use planaria_array::{Array, DType, Device};
use planaria_ckpt::{Item, TrainState};
use planaria_layout::Mesh;
use planaria_nn::optim::LossScale;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How far a run has come. Everything else follows from the configuration and this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Steps done.
    pub(crate) step: u64,
    /// Samples consumed.
    pub(crate) samples: u64,
    /// Tokens consumed.
    pub(crate) tokens: u64,
    /// Updates of the optimizer: steps that were not skipped.
    pub(crate) updates: u64,
    /// State of the loss scale.
    pub(crate) scale: Option<Scale>,
    /// What positions in the data mean.
    pub(crate) sampler: Option<SamplerState>,
    /// The best evaluation so far, where the run keeps its checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) best: Option<Best>,
    /// Samples consumed before the present data began, with `data.continue = "new"`.
    #[serde(default)]
    pub(crate) before: u64,
    /// The mesh it was written on.
    pub(crate) mesh: String,
    /// What `checkpoint.from` said when the run continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// The hash of the weights under an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<String>,
    /// Where the program's own data continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stream: Option<Value>,
}

/// The evaluation with the lowest loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Best {
    pub(crate) step: u64,
    pub(crate) loss: f64,
}

/// The factor on the loss, and how many steps it has held.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scale {
    pub(crate) factor: f64,
    good: u64,
}

impl Scale {
    /// After a step whose gradient was finite or not.
    pub(crate) fn update(&mut self, finite: bool) {
        let mut scale = LossScale { scale: self.factor, good: self.good, ..LossScale::default() };
        scale.update(finite);
        (self.factor, self.good) = (scale.scale, scale.good);
    }
}

impl Progress {
    /// Nothing is done.
    pub(super) fn first(job: &Job, sampler: &Sampler, mesh: &Mesh) -> Progress {
        let scaled = job.config.train.precision == Precision::F16;
        Progress {
            step: 0,
            samples: 0,
            tokens: 0,
            updates: 0,
            scale: scaled.then_some(Scale { factor: job.config.optim.loss_scale, good: 0 }),
            sampler: Some(sampler.state().clone()),
            best: None,
            before: 0,
            mesh: mesh.to_string(),
            from: None,
            base: None,
            stream: None,
        }
    }

    /// Takes what there is from here on: other data begins at its first sample, and what a state of others lacks is new.
    pub(super) fn go_on(&mut self, first: Progress) {
        if self.sampler != first.sampler {
            (self.sampler, self.before) = (first.sampler, self.samples);
        }
        self.scale = self.scale.or(first.scale);
        self.base = first.base.or(self.base.take());
    }

    /// The position in the data.
    pub(super) fn position(&self) -> u64 {
        self.samples.saturating_sub(self.before)
    }
}

/// The arrays of this rank as checkpoint items, each passed through `hold`.
pub(super) fn items(
    replica: &Replica,
    files: Files,
    hold: impl Fn(&Array) -> planaria_array::Result<Array>,
) -> Result<Vec<Item>> {
    let mut all = Vec::new();
    for weight in &replica.weights {
        // A twin has the elements of the other; under an adapter's names a copy may be asked for all the same.
        if matches!(weight.tie, Tie::Into(_)) && (files == Files::Model || !weight.is_copied()) {
            continue;
        }
        weight.items(&mut |kind, array, range| {
            all.extend(weight.item(&kind, &hold(array)?, range, files)?);
            Ok(())
        })?;
    }
    Ok(all)
}

/// The whole state of now. Arrays are held by copy-on-write: training continues, the state stays.
pub(super) fn snapshot(job: &Job, replica: &Replica, progress: &Progress) -> Result<TrainState> {
    let kept = job.kept()?;
    let mut files = kept.files.clone();
    let objective = [job.objective.files(&*job.model)?, job.objective.state(progress.step)?];
    files.extend(objective.into_iter().flatten().map(|(name, text)| (name, text.into())));
    let mut state = TrainState::new(items(replica, Files::Run, Array::snapshot)?);
    (state.step, state.samples, state.tokens) = (progress.step, progress.samples, progress.tokens);
    state.config = kept.config.clone();
    state.random = serde_json::json!({ "seed": job.config.train.seed });
    state.schedule = serde_json::json!({ "step": progress.step, "updates": progress.updates });
    let stream = job.stream.as_ref().and_then(|stream| stream.state(progress.position()));
    let progress = Progress { stream, ..progress.clone() };
    state.extra = serde_json::to_value(progress).map_err(|e| Error::Bug { what: e.to_string() })?;
    state.files = files;
    state.tied.clone_from(&kept.tied);
    Ok(state)
}

/// Makes what every save needs, so that the first costs what later ones do: the files that never change and, on the host, as much
/// touched memory as training moves to while a snapshot is written, which the allocator then keeps. The sums of gradients, which come with the
/// first step, would take their memory from that: there is as much more.
pub(super) fn prepare(job: &Job, replica: &Replica) -> Result<()> {
    job.kept()?;
    if job.device != Device::Cpu {
        return Ok(());
    }
    let held = RefCell::new(Vec::new());
    items(replica, Files::Run, |array| {
        held.borrow_mut().push(array.snapshot()?);
        Ok(array.clone())
    })?;
    let arrays = held.into_inner();
    let trained = replica.lanes.iter().filter_map(|&lane| replica.weights[lane].state.as_ref());
    let sums: Vec<usize> = trained.map(|state| state.range.len()).collect();
    let touch = || -> planaria_array::Result<()> {
        // All at once, or each would have the memory of the one before.
        let mut held = arrays.iter().map(Array::copy).collect::<planaria_array::Result<Vec<_>>>()?;
        for &numel in &sums {
            held.push(Array::full(&[numel], 1, DType::F32)?);
        }
        Ok(())
    };
    // By a thread of its own: it is no part of what the rank is found to take.
    let touched = std::thread::scope(|scope| scope.spawn(touch).join());
    touched
        .map_err(|_| Error::Bug { what: "the thread that prepares saves panicked".into() })?
        .map_err(Error::from)
}

/// What every checkpoint of a run has and no step changes: made by the first save, shared by all.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The files that stand beside the weights.
    files: BTreeMap<String, Arc<[u8]>>,
    /// The configuration of the run.
    config: Value,
    /// Names that stand for other tensors.
    tied: BTreeMap<String, String>,
}

impl Job {
    fn kept(&self) -> Result<&Kept> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept);
        }
        let mut files = self.tokenizer.files()?;
        files.insert("config.json".into(), model_config(self));
        files.insert("config.toml".into(), self.config.recorded()?.to_toml()?.into_bytes());
        if let Some(model) = self.model.adapted() {
            files.insert("adapter_config.json".into(), model.config(0).to_text().into_bytes());
        }
        files.insert("generation_config.json".into(), generation_config(self));
        files.extend(self.seeing.iter().map(|(name, text)| (name.clone(), text.clone().into_bytes())));
        let files = files.into_iter().map(|(name, text)| (name, text.into())).collect();
        // An adapter has none of the model's tied tensors.
        let adapter = self.model.adapted().is_some();
        let tied = if adapter { BTreeMap::new() } else { planaria_nn::models::ties(&*self.model)? };
        Ok(self.kept.get_or_init(|| Kept { files, config: self.config_json(), tied }))
    }
}

/// `config.json` with the dtype of the weights, under the key of today and the one that older readers know.
fn model_config(job: &Job) -> Vec<u8> {
    let mut config = job.model.to_value();
    let dtype = match job.config.train.precision {
        Precision::F32 => "float32",
        Precision::Bf16 => "bfloat16",
        Precision::F16 => "float16",
    };
    for key in ["dtype", "torch_dtype"] {
        config[key] = dtype.into();
    }
    format!("{config:#}\n").into_bytes()
}

/// What the weights that the run began with came with, and the tokens of its tokenizer where that names none.
fn generation_config(job: &Job) -> Vec<u8> {
    let frame = job.tokenizer.frame();
    let mut map = job.generation.clone();
    for (key, id) in [("bos_token_id", frame.bos), ("eos_token_id", frame.eos), ("pad_token_id", frame.pad)] {
        if let Some(id) = id.filter(|_| map.get(key).is_none_or(Value::is_null)) {
            map.insert(key.into(), id.into());
        }
    }
    format!("{:#}\n", Value::Object(map)).into_bytes()
}

/// True for a state that a run saved; what `convert` makes of a state of others says nothing of a run.
pub(super) fn is_of_a_run(state: &TrainState) -> bool {
    state.extra.get("step").is_some()
}

/// How far the loaded state had come. What no run wrote, as a converted state of torch, has the steps of its optimizer.
pub(super) fn progress(state: &TrainState) -> Result<Progress> {
    if !is_of_a_run(state) {
        return Ok(Progress {
            step: state.step,
            samples: state.samples,
            tokens: state.tokens,
            updates: state.step,
            scale: None,
            sampler: None,
            best: None,
            before: 0,
            mesh: String::new(),
            from: None,
            base: None,
            stream: None,
        });
    }
    serde_json::from_value(state.extra.clone()).map_err(|e| Error::Run {
        what: format!("the checkpoint of step {} was not written by this trainer: {e}", state.step),
    })
}

/// How many updates of the optimizer a saved state has seen.
pub(crate) fn updates_of(state: &TrainState) -> Result<u64> {
    Ok(progress(state)?.updates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_no_run_wrote_has_the_steps_of_its_optimizer() {
        let torch = serde_json::json!({ "torch": { "groups": [] } });
        let state = TrainState { step: 7, extra: torch, ..TrainState::new(Vec::new()) };
        let mut found = progress(&state).unwrap();
        assert_eq!((found.step, found.updates, found.position(), found.sampler.clone()), (7, 7, 0, None));
        let first = Progress { scale: Some(Scale { factor: 8.0, good: 0 }), step: 0, ..found.clone() };
        found.go_on(first);
        assert_eq!((found.step, found.scale.map(|scale| scale.factor)), (7, Some(8.0)));
        let broken = TrainState { extra: serde_json::json!({ "step": "x" }), ..TrainState::new(Vec::new()) };
        assert!(progress(&broken).unwrap_err().to_string().contains("not written by this trainer"));
    }
}
