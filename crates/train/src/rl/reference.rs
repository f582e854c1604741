//! A model that only judges: the reference of a policy, whole on every rank that asks it.

use crate::data::Batch;
use crate::error::{Error, Result};
use crate::objective::Input;
use crate::opened::Opened;
use planaria_array::ops::{Keep, Reduction};
use planaria_array::{Array, DType, Device};
use planaria_comm::alone;
use planaria_nn::Init;
use planaria_nn::models::{Models, Network, Run};
use planaria_tensor::ops::{CrossEntropyOptions, cross_entropy, wide};
use planaria_tensor::{Tensor, no_grad};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A folder of weights that never change, loaded when they are first asked; all thread ranks share them.
#[derive(Clone)]
pub(crate) struct Reference {
    path: PathBuf,
    dtype: DType,
    device: Device,
    loaded: Arc<Mutex<Option<Arc<dyn Network>>>>,
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reference({})", self.path.display())
    }
}

impl Reference {
    pub(crate) fn new(path: &Path, dtype: DType, device: Device) -> Reference {
        Reference { path: path.to_path_buf(), dtype, device, loaded: Arc::default() }
    }

    fn network(&self) -> Result<Arc<dyn Network>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = &*loaded {
            return Ok(network.clone());
        }
        let init = Init { dtype: self.dtype, device: self.device, ..Init::default() };
        let network = Opened::open(&self.path, &[], &Models::default())?.load(&alone(), &init)?;
        Ok(loaded.insert(network.into()).clone())
    }

    /// Log-probabilities of the labels of a micro-batch, `[rows, tokens]`; 0 where there is none.
    pub(crate) fn logprobs(&self, input: Input, batch: &Batch, temperature: f64) -> Result<Array> {
        let network = self.network()?;
        no_grad(|| {
            let Input { tokens, documents } = input;
            let last = network.forward(tokens.into(), &Run { documents, ..Run::default() })?;
            let found = label_logprobs(&*network, &last.hidden, batch, temperature)?;
            Ok(found.local().clone())
        })
    }
}

/// Log-probabilities of labels under the scores of hidden states over a temperature, `[rows, tokens]`, in f32 or wider; 0 where
/// there is no label. Collective over the inner mesh.
pub(crate) fn label_logprobs(
    model: &dyn Network,
    hidden: &Tensor,
    batch: &Batch,
    temperature: f64,
) -> Result<Tensor> {
    let head = model.head(hidden)?;
    let [rows, length, _] = head.states.shape()[..] else {
        return Err(Error::Bug { what: format!("hidden states of shape {}", head.states.shape()) });
    };
    let labels = batch.labels.narrow(1, 0, length)?.contiguous()?.to(head.states.local().device())?;
    let labels = head.lanes.batch(&Tensor::new(labels))?;
    let scores = head.logits()?;
    let scores = scores.cast(wide(scores.dtype()))?;
    let scores = if temperature == 1.0 { scores } else { scores.mul_scalar(1.0 / temperature)? };
    let options = CrossEntropyOptions { reduction: Reduction::None, ..CrossEntropyOptions::default() };
    let losses = cross_entropy(&scores, &labels, &options)?;
    Ok(losses.neg()?.reshape(&[rows, length])?)
}

/// The entropy of the scores of hidden states over a temperature, `[rows, tokens]`. Collective over the inner mesh.
pub(crate) fn label_entropy(model: &dyn Network, hidden: &Tensor, temperature: f64) -> Result<Tensor> {
    let scores = model.logits(hidden)?;
    let all = scores.cast(wide(scores.dtype()))?.mul_scalar(1.0 / temperature)?.log_softmax(-1)?;
    Ok(all.exp()?.mul(&all)?.sum(&[-1], Keep::No)?.neg()?)
}

/// What a model with a head of values gives every token, `[rows, tokens]`, in f32 or wider: that of the place that predicts a
/// token. Collective over the inner mesh.
pub(crate) fn label_values(model: &dyn Network, input: Input) -> Result<Tensor> {
    let Input { tokens, documents } = input;
    let last = model.forward(tokens.into(), &Run { documents, ..Run::default() })?;
    let values = model.logits(&last.hidden)?.squeeze(&[-1])?;
    Ok(values.cast(wide(values.dtype()))?)
}
