//! How an adapter begins: values that follow from the model's weights, or those of an adapter to resume from.

use super::rank::RankRun;
use super::resume;
use crate::error::{Error, Result};
use crate::gather::Pass;
use crate::pretrained::{Pretrained, Which};
use crate::weights::Files;
use planaria_ckpt::{Item, TensorKind, TrainState};
use planaria_nn::lora::starts;
use planaria_nn::models::BESIDE;

impl RankRun<'_> {
    /// Gives the adapter the values it begins with, once those of the model are there. Collective.
    pub(super) fn begin_adapter(&mut self) -> Result<()> {
        let job = self.job;
        let Some(adapted) = job.model.adapted() else { return Ok(()) };
        let start = adapted.config(0).factors()?;
        self.replica.enter(0, Pass::Forward);
        for part in 0..self.replica.parts.len() {
            for (name, values) in starts::values(&mut *self.replica.parts[part].model, start)? {
                let weight = self.replica.weights.iter().find(|weight| weight.spec.name == name);
                let weight =
                    weight.ok_or_else(|| Error::Bug { what: format!("no weight is called `{name}`") })?;
                weight.set_values(&values)?;
            }
        }
        self.replica.forget_gathered()?;
        match job.config.lora.as_ref().and_then(|lora| lora.adapter.as_ref()) {
            None => Ok(()),
            Some(path) => {
                let beside = |name: &str| job.objective.second().is_some() && name.starts_with(BESIDE);
                let wanted = |kind: &TensorKind, name: &str| *kind == TensorKind::Parameter && !beside(name);
                let weights = |item: &Item| wanted(&item.kind, &item.name);
                let items = resume::items(&self.replica, Files::Run, |array| Ok(array.clone()))?;
                let mut state = TrainState::new(items.into_iter().filter(weights).collect());
                state.known = Some(self.known.only(|tensor| wanted(&tensor.kind, &tensor.name))?);
                Pretrained::find(path)?.load(&*self.world, &mut state, Which::Trained, &job.models)?;
                Ok(())
            }
        }
    }
}
