//! The frozen weights of a run with an adapter, kept in 8 or 4 bits and widened whenever they are computed with.

use super::rank::RankRun;
use crate::error::{Error, Result};
use crate::replica::to_tensor_error;
use crate::weights::Weight;
use planaria_array::Array;
use planaria_nn::lora::narrow::Narrow;
use planaria_nn::{Param, ParamKind, ParamSpec, Role, Source};
use planaria_tensor::{Fetch, Tensor};
use std::sync::Arc;

/// Whether a parameter is kept in few bits: a product's weight inside a block that nobody trains or saves.
pub(crate) fn is_narrow(spec: &ParamSpec) -> bool {
    spec.role == Role::Base && spec.kind == ParamKind::Matrix && spec.block.is_some()
}

impl RankRun<'_> {
    /// Lets go of the frozen weights but for a few bits of each, where the configuration says so.
    pub(super) fn narrow_base(&mut self) -> Result<()> {
        let Some(width) = self.job.config.lora.as_ref().and_then(|lora| lora.base.width()) else {
            return Ok(());
        };
        let replica = &mut self.replica;
        // What travels together shares memory: whoever stays takes a copy, or all of it would stay.
        let frozen =
            replica.bundles.iter_mut().filter(|bundle| !replica.weights[bundle.members[0]].trainable);
        for bundle in frozen {
            bundle.whole = None;
        }
        let mut kept: Vec<Option<Narrow>> = Vec::with_capacity(replica.weights.len());
        for weight in &mut replica.weights {
            kept.push(match is_narrow(&weight.spec) {
                true => Some(weight.narrow(width)?),
                false => None,
            });
            if !weight.trainable && !is_narrow(&weight.spec) {
                weight.keep_alone()?;
            }
        }
        let (mut place, mut failed) = (0, None);
        let mut kept = kept.into_iter();
        for part in &mut replica.parts {
            part.model.visit_mut(&mut |param| {
                let weight = &replica.weights[place];
                let fed = feed(param, weight, kept.next().flatten());
                failed = failed.take().or_else(|| fed.err());
                place += 1;
            });
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Has a parameter take its value from its few bits, or from the copy that its weight has now.
fn feed(param: &mut Param, weight: &Weight, narrow: Option<Narrow>) -> Result<()> {
    let shape = param.leaf().local().shape().clone();
    match (narrow, &weight.full) {
        (Some(narrow), _) => {
            param.set_array(Array::meta(&shape, param.leaf().dtype())?)?;
            param.set_source(Some(source(param.leaf().clone(), narrow)));
        }
        (None, Some(full)) if !weight.trainable => param.set_array(full.reshape(&shape)?)?,
        _ => {}
    }
    Ok(())
}

/// Widens a weight for each use; what backward needs of it is widened again then.
fn source(home: Tensor, narrow: Narrow) -> Source {
    let narrow = Arc::new(narrow);
    let fetch: Fetch = Arc::new(move || narrow.values().map_err(|error| to_tensor_error(Error::from(error))));
    Arc::new(move || {
        let value = match (home.layout(), home.world()) {
            (Some(layout), Some(world)) => Tensor::from_piece(fetch()?, layout, world)?,
            _ => Tensor::new(fetch()?),
        };
        Ok(value.fetched_by(fetch.clone()))
    })
}
