//! Blocks one after the other: what every model of blocks does alike.

use super::architecture::Stage;
use super::network::{Activations, Recompute, Run};
use crate::error::{Error, Result};
use crate::layers::{AttentionStep, LayerCache, Positions, RowPlaces, with_dropout_key};
use crate::parallel::Lanes;
use planaria_tensor::{Tensor, recompute, selective};
use std::sync::Arc;

/// One block of a model. A clone shares the parameters.
pub trait Block: Clone + Send + Sync + 'static {
    /// The hidden state after this block and, from one with experts, how its tokens were routed. The key of `step` is
    /// that of this layer.
    fn forward(
        &self,
        x: &Tensor,
        step: &AttentionStep,
        cache: Option<&LayerCache>,
    ) -> planaria_tensor::Result<(Tensor, Option<Tensor>)>;
}

/// The blocks of a stage on hidden states; those that `run` names keep only their input and are computed again in
/// backward.
pub fn through<B: Block>(
    blocks: &[B],
    stage: &Stage,
    input: Activations,
    lanes: &Lanes,
    run: &Run<'_>,
) -> Result<Activations> {
    let Activations { hidden: mut x, mut routed } = input;
    let step = attention_step(lanes, run)?;
    for (place, (layer, block)) in stage.layers.clone().zip(blocks).enumerate() {
        let dropout = run.train.map(|key| key.fold(layer as u64));
        let step = AttentionStep { dropout, ..step.clone() };
        let cache = run.cache.and_then(|cache| cache.layers.get(place));
        let (y, stats) = match cache.is_none() && run.recompute.has(layer) {
            true => again(block, &x, step)?,
            false => {
                let forward = || with_dropout_key(dropout, || block.forward(&x, &step, cache));
                if run.recompute == Recompute::Selective { selective(forward)? } else { forward()? }
            }
        };
        x = y;
        routed = match (routed, stats) {
            (Some(before), Some(stats)) => Some(before.add(&stats)?),
            (before, stats) => before.or(stats),
        };
    }
    Ok(Activations { hidden: x, routed })
}

/// What attention is told in every layer.
pub(super) fn attention_step(lanes: &Lanes, run: &Run<'_>) -> Result<AttentionStep> {
    let (documents, mut rows) = (run.documents.clone(), None);
    let positions = match (run.cache, &documents, &run.positions) {
        (Some(_), Some(_), _) => {
            let message = "documents packed into one row cannot continue from a cache; give each its own row"
                .to_string();
            return Err(Error::Argument { what: "documents", message });
        }
        (None, Some(_), Positions::Rows { .. }) => run.positions.clone(),
        (None, Some(documents), _) => {
            let ids = lanes.batch(&Tensor::new(documents.positions()?))?;
            Positions::Ids { ids, end: documents.longest() }
        }
        (Some(_), None, Positions::Each(places)) => {
            let ids: Vec<i64> = places.iter().map(|&place| place as i64).collect();
            let ids = lanes.batch(&Tensor::from_slice(&ids, &[ids.len(), 1])?)?;
            let here = ids.local().to_vec::<i64>()?.into_iter().map(|place| place as usize).collect();
            let places = RowPlaces { all: places.clone(), here };
            let end = places.end();
            rows = Some(Arc::new(places));
            Positions::Ids { ids, end }
        }
        (None, _, Positions::Each(_)) => {
            let message = "rows that stand at places of their own need a cache".to_string();
            return Err(Error::Argument { what: "positions", message });
        }
        (Some(cache), None, Positions::From(first)) => Positions::From(first + cache.len()),
        (_, None, positions) => positions.clone(),
    };
    Ok(AttentionStep { positions, documents, rows, dropout: None })
}

/// A block that keeps only its input.
fn again<B: Block>(block: &B, x: &Tensor, step: AttentionStep) -> Result<(Tensor, Option<Tensor>)> {
    let block = block.clone();
    let mut list = recompute(&[x], move |inputs| {
        let (y, stats) = with_dropout_key(step.dropout, || block.forward(&inputs[0], &step, None))?;
        Ok(std::iter::once(y).chain(stats).collect())
    })?;
    let stats = if list.len() > 1 { list.pop() } else { None };
    let y = list.pop().ok_or(planaria_tensor::Error::Bug("a block gave nothing"))?;
    Ok((y, stats))
}
