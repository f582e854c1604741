//! Models as programs: the scores of a sequence, one step of decoding, pictures and prompts with pictures, or a loss with its
//! gradients.

mod export;
mod seeing;

pub use export::{Extent, lowered, to_onnx};
pub use seeing::with_marks;

use crate::error::{Error, Result};
use crate::opened::Opened;
use planaria_array::{Array, DType};
use planaria_comm::alone;
use planaria_nn::layers::Positions;
use planaria_nn::models::{Activations, Cache, Models, Network, Run};
use planaria_nn::{Init, ParamKind};
use planaria_program::{Captured, Function, capture, gradients};
use planaria_tensor::{GradOptions, Tensor, no_grad};
use std::path::Path;

/// The sizes a program is captured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows.
    pub batch: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Tokens that came before, of a step of decoding.
    pub past: usize,
}

/// What of a model becomes a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `input_ids` to `logits`.
    Forward,
    /// `input_ids`, `position_ids` and the keys and values so far (`past.N.key`, `past.N.value`) to `logits` and those with
    /// the new ones behind (`present.N.key`, `present.N.value`).
    Decode,
    /// Of a model that sees: `pixel_values` and `image_grid_thw` (frames, rows and columns of patches of each picture) to
    /// `image_embeds`, vectors of tokens.
    Vision,
    /// Of a model that sees: `input_ids`, `position_ids` on three axes and the `image_embeds` that take the places of marked
    /// tokens, to `logits` and keys and values for [`Part::Decode`] (`present.N.key`, `present.N.value`).
    Prompt,
    /// `input_ids` and `labels` to `loss`, a sum over all labels, and the gradient `NAME.grad` of each parameter.
    Gradients,
}

/// A model with the weights of a checkpoint, on one rank in f32.
///
/// # Errors
/// Weights that are not there, or are those of a model that is not known.
pub fn open(path: &Path, models: &Models) -> Result<Box<dyn Network>> {
    let init = Init { dtype: DType::F32, ..Init::default() };
    Opened::open(path, &[], models)?.load(&alone(), &init)
}

/// The parameters of a network by structured name; tied ones once.
pub fn parameters(network: &dyn Network) -> Vec<(String, Tensor)> {
    let own = network.params().into_iter().filter(|param| param.tied().is_none());
    own.map(|param| (param.name().to_string(), param.leaf().clone())).collect()
}

/// How many tokens a network knows: the rows of its first table.
///
/// # Errors
/// A network without such a table.
pub fn vocabulary(network: &dyn Network) -> Result<usize> {
    let params = network.params();
    let table = params.iter().find(|param| param.kind() == ParamKind::Embedding);
    table.map(|table| table.spec().shape[0]).ok_or_else(|| Error::Value {
        key: "the model".into(),
        found: "no table of token vectors".into(),
        expected: "a model of tokens".into(),
    })
}

/// Captures part of a model that is whole on this rank. The values of its inputs play no part.
///
/// # Errors
/// An op that a program cannot hold, and what the model says.
pub fn capture_model(network: &dyn Network, part: Part, sizes: &Sizes) -> Result<Captured> {
    let function = Function {
        inputs: inputs(network, part, sizes)?,
        parameters: parameters(network),
        settings: vec![("part".to_string(), format!("{part:?}"))],
    };
    let captured = match part {
        Part::Forward => no_grad(|| capture(&function, |given| forward(network, given))),
        Part::Decode => no_grad(|| capture(&function, |given| decode(network, given))),
        Part::Vision => no_grad(|| capture(&function, |given| seeing::vision(network, given))),
        Part::Prompt => no_grad(|| capture(&function, |given| seeing::prompt(network, given))),
        Part::Gradients => capture(&function, |given| joint(network, given, &function.parameters)),
    };
    Ok(captured?)
}

/// Inputs of the right kinds for a part of a model.
///
/// # Errors
/// What the model says to them.
pub fn inputs(network: &dyn Network, part: Part, sizes: &Sizes) -> Result<Vec<(String, Tensor)>> {
    let Sizes { batch, length, past } = *sizes;
    match part {
        Part::Vision => return seeing::patches(network, sizes),
        Part::Prompt => return seeing::tokens(network, sizes),
        Part::Forward | Part::Decode | Part::Gradients => {}
    }
    let ids = |length: usize| Ok::<_, Error>(Tensor::new(Array::zeros(&[batch, length], DType::I64)?));
    let named = |name: &str, tensor: Tensor| (name.to_string(), tensor);
    let mut all = vec![named("input_ids", ids(length)?)];
    match part {
        Part::Forward | Part::Vision | Part::Prompt => {}
        Part::Gradients => all.push(named("labels", ids(length)?)),
        Part::Decode => {
            let places = Array::arange(past as i64, (past + length) as i64, 1, DType::I64)?;
            let places = places.broadcast_to(&[batch, length])?.contiguous()?;
            all.push(named("position_ids", Tensor::new(places)));
            let cache = network.cache(past.max(1));
            no_grad(|| {
                network
                    .forward((&ids(past.max(1))?).into(), &Run { cache: Some(&cache), ..Run::default() })
                    .map_err(Error::from)
            })?;
            for (layer, (keys, values)) in cache.tensors()?.into_iter().enumerate() {
                let own = |x: Tensor| Ok::<_, Error>(Tensor::new(x.local().narrow(2, 0, past)?.copy()?));
                all.push((format!("past.{layer}.key"), own(keys)?));
                all.push((format!("past.{layer}.value"), own(values)?));
            }
        }
    }
    Ok(all)
}

fn forward(network: &dyn Network, given: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    let last = network.forward((&given[0]).into(), &Run::default())?;
    Ok(vec![("logits".to_string(), network.logits(&last.hidden)?)])
}

/// One step of decoding: the same ops as without a program, with the cache as values.
fn decode(network: &dyn Network, given: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    let pairs = given[2..].chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    let cache = Cache::growing(pairs.collect());
    let end = cache.len() + given[0].shape()[1];
    let positions = Positions::Ids { ids: given[1].clone(), end };
    let run = Run { cache: Some(&cache), positions, ..Run::default() };
    let last = network.forward((&given[0]).into(), &run)?;
    with_cache(network, &last, &cache)
}

/// Scores, and the keys and values that a step of decoding continues with.
fn with_cache(network: &dyn Network, last: &Activations, cache: &Cache) -> Result<Vec<(String, Tensor)>> {
    let mut all = vec![("logits".to_string(), network.logits(&last.hidden)?)];
    for (layer, (keys, values)) in cache.tensors()?.into_iter().enumerate() {
        all.push((format!("present.{layer}.key"), keys));
        all.push((format!("present.{layer}.value"), values));
    }
    Ok(all)
}

/// A loss and its gradients, forward and backward in one.
fn joint(network: &dyn Network, given: &[Tensor], of: &[(String, Tensor)]) -> Result<Vec<(String, Tensor)>> {
    let last = network.forward((&given[0]).into(), &Run::default())?;
    let loss = network.head(&last.hidden)?.cross_entropy(&given[1])?.sum;
    let mut all = gradients(&loss, of, GradOptions::default())?;
    all.insert(0, ("loss".to_string(), loss));
    Ok(all)
}

/// Runs the same part of a model without a program, for comparison.
///
/// # Errors
/// What the model says.
pub fn eager(network: &dyn Network, part: Part, given: &[Tensor]) -> Result<Vec<(String, Tensor)>> {
    match part {
        Part::Forward => no_grad(|| forward(network, given)),
        Part::Decode => no_grad(|| decode(network, given)),
        Part::Vision => no_grad(|| seeing::shown(network, given)),
        Part::Prompt => no_grad(|| seeing::prompt(network, given)),
        Part::Gradients => joint(network, given, &parameters(network)),
    }
}
