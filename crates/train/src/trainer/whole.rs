//! The whole model on every rank, to generate with where training divides it or has an adapter beside it: stages and ZeRO parts become
//! one network on the inner mesh, moved from rank to rank by the planner, and adapters a part of the weights.

use super::rank::RankRun;
use crate::error::{Error, Result};
use crate::gather::Pass;
use crate::replica::Replica;
use crate::weights::Zero;
use planaria_array::{Array, Device};
use planaria_layout::Mesh;
use planaria_nn::lora::merge_into_weights;
use planaria_nn::models::{Architecture, Network, Stage};
use planaria_nn::{Init, Parallel, Param};
use planaria_tensor::{Tensor, World, no_grad};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a rank needs to have the whole model for a while.
pub(super) struct Whole<'a> {
    model: &'a Arc<dyn Architecture>,
    init: Init,
    device: Device,
    parallel: Option<&'a Parallel>,
    merges: bool,
    mesh: &'a Mesh,
    positions: &'a [Vec<Stage>],
    world: World,
    replica: &'a Replica,
}

impl<'a> Whole<'a> {
    /// Absent where the model of this rank is whole already.
    pub(super) fn of(run: &'a RankRun<'_>) -> Option<Whole<'a>> {
        let (job, train, parallel) = (run.job, &run.job.config.train, run.near.parallel.as_ref());
        let divided = run.place.stages > 1 || run.replica.zero == Zero::Weights;
        // Texts side by side are made by plain weights of one rank; those that are kept in few bits stay so.
        let wide = job.config.lora.as_ref().is_some_and(|lora| lora.base.width().is_none());
        let merges = wide && parallel.is_none();
        if !divided && !merges {
            return None;
        }
        // Its elements come from elsewhere.
        let device = if parallel.is_none() { Device::Meta } else { job.device };
        Some(Whole {
            // A critic is never asked for tokens.
            model: job.model.first().unwrap_or(&job.model),
            init: Init { seed: train.seed, dtype: train.precision.dtype(), device },
            device: job.device,
            parallel,
            merges,
            mesh: &run.place.mesh,
            positions: &run.positions,
            world: World::new(run.world.clone()),
            replica: &run.replica,
        })
    }

    /// Every parameter from the stage that has it to all ranks, cut on the inner mesh as before. Collective over all ranks.
    pub(super) fn build(&self) -> Result<Box<dyn Network>> {
        let mut network = self.model.build(&Stage::whole(&**self.model), self.parallel, &self.init)?;
        let (owners, own) = (self.owners()?, self.own());
        self.replica.enter(0, Pass::Forward);
        let mut arrays = BTreeMap::new();
        for param in network.params().iter().filter(|param| param.tied().is_none()) {
            let own = own.get(param.name()).map(|own| no_grad(|| own.value())).transpose()?;
            let own = own.map(|own| own.local().clone());
            let array = match (self.positions, own) {
                ([_], Some(own)) => own,
                (_, own) => self.moved(param, own, owners.get(param.name()))?,
            };
            arrays.insert(param.name().to_string(), array);
        }
        self.replica.forget_gathered()?;
        let mut failed = None;
        network.visit_mut(&mut |param| {
            let array = arrays.get(param.tied().unwrap_or(param.name())).cloned();
            let set = array.map_or(Ok(()), |array| param.set_array(array));
            failed = failed.take().or_else(|| set.err());
        });
        failed.map_or(Ok(()), Err)?;
        if self.merges {
            merge_into_weights(&mut *network)?;
        }
        Ok(network)
    }

    /// A parameter that the stage at `position` has, `own` where that is here, on every stage. Collective over all ranks.
    fn moved(&self, param: &Param, own: Option<Array>, position: Option<&usize>) -> Result<Array> {
        let lost = || Error::Bug { what: format!("no stage has `{}`", param.name()) };
        let position = *position.ok_or_else(lost)?;
        let from = param.spec().layout(&self.mesh.fix(&[("pp", position)])?)?;
        let to = param.spec().layout(self.mesh)?;
        let none = || Array::zeros_on(&[0], param.leaf().dtype(), self.device);
        let piece = Tensor::from_piece(own.map_or_else(none, Ok)?, &from, &self.world)?;
        Ok(no_grad(|| piece.reshard(&to))?.local().clone())
    }

    /// The position along `pp` that has each parameter.
    fn owners(&self) -> Result<BTreeMap<String, usize>> {
        let mut owners = BTreeMap::new();
        for (position, stages) in self.positions.iter().enumerate() {
            for stage in stages {
                let table = self.model.parameters(stage)?;
                owners.extend(table.into_iter().map(|spec| (spec.name, position)));
            }
        }
        Ok(owners)
    }

    /// The parameters of this rank.
    fn own(&self) -> BTreeMap<String, Param> {
        let params = self.replica.parts.iter().flat_map(|part| part.model.params());
        params.map(|param| (param.name().to_string(), param)).collect()
    }
}
