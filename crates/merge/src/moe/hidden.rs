//! Hidden states of prompts: the base runs over them layer by layer, with the weights of one layer in memory.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::values::whole;
use planaria_array::Array;
use planaria_nn::Init;
use planaria_nn::models::{Activations, Architecture, Models, Network, Run, Stage};
use planaria_tensor::{Tensor, no_grad};

/// Which positions of a prompt count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Positions {
    /// The last one.
    Last,
    /// The mean of all.
    Mean,
}

/// What goes into every layer: a vector for every set of prompts, the mean over its prompts.
pub(super) fn states(
    base: &Model,
    layers: usize,
    sets: &[Vec<Vec<u32>>],
    positions: Positions,
) -> Result<Vec<Vec<Vec<f64>>>> {
    let wrong = |error: planaria_nn::Error| Error::model(&base.name, error.to_string());
    let model = Models::default().open(base.config.clone()).map_err(wrong)?;
    let embed = Stage { layers: 0..0, embed: true, head: false };
    let embedding = built(base, &*model, &embed)?;
    let mut hidden: Vec<Vec<Activations>> = Vec::new();
    for set in sets {
        let mut of_set = Vec::new();
        for tokens in set {
            let ids: Vec<i64> = tokens.iter().map(|id| i64::from(*id)).collect();
            let tokens = Tensor::new(Array::from_slice(&ids, &[1, ids.len()])?);
            of_set.push(no_grad(|| embedding.forward(tokens.into(), &Run::default())).map_err(wrong)?);
        }
        hidden.push(of_set);
    }
    let mut by_layer = Vec::new();
    for layer in 0..layers {
        let of_layer: Result<Vec<Vec<f64>>> = hidden.iter().map(|set| mean(set, positions)).collect();
        by_layer.push(of_layer?);
        if layer + 1 == layers {
            break;
        }
        let stage = Stage { layers: layer..layer + 1, embed: false, head: false };
        let network = built(base, &*model, &stage)?;
        for state in hidden.iter_mut().flatten() {
            *state = no_grad(|| network.forward(state.clone(), &Run::default())).map_err(wrong)?;
        }
    }
    Ok(by_layer)
}

/// A stage with the weights of the base.
fn built(base: &Model, model: &dyn Architecture, stage: &Stage) -> Result<Box<dyn Network>> {
    let wrong = |error: planaria_nn::Error| Error::model(&base.name, error.to_string());
    let mut network = model.build(stage, None, &Init::default()).map_err(wrong)?;
    let mut failed = Ok(());
    network.visit_mut(&mut |param| {
        let set = || -> Result<Array> {
            let values = base.tensor(param.name())?;
            let numbers: Vec<f32> = whole(&**values)?.into_iter().map(|value| value as f32).collect();
            Ok(Array::from_slice(&numbers, values.shape())?)
        };
        let done = set().and_then(|array| param.set_array(array).map_err(wrong));
        if failed.is_ok() {
            failed = done;
        }
    });
    failed.map(|()| network)
}

/// The mean over the prompts of a set.
fn mean(set: &[Activations], positions: Positions) -> Result<Vec<f64>> {
    let mut sum: Vec<f64> = Vec::new();
    for state in set {
        let hidden = state.hidden.local();
        let (length, width) = (hidden.shape()[1], hidden.shape()[2]);
        let values = hidden.to_vec::<f32>()?;
        let from = if positions == Positions::Last { length.saturating_sub(1) } else { 0 };
        let part = 1.0 / (length - from).max(1) as f64 / set.len() as f64;
        sum.resize(width, 0.0);
        for line in values[from * width..].chunks(width) {
            sum.iter_mut().zip(line).for_each(|(sum, x)| *sum += part * f64::from(*x));
        }
    }
    Ok(sum)
}
