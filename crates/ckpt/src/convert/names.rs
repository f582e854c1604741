//! Names on the way between formats.

use super::To;
use super::clock::{Face, POWERS, Power, Steps, USUAL};
use super::made::{Made, Origin};
use super::torch::Torch;
use crate::error::Result;
use crate::formats::{Key, Part};
use planaria_layout::{DType, Shape};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What decides the names and the optimizer state of a target.
pub(super) struct Target<'a> {
    pub(super) to: To,
    pub(super) torch: &'a Torch,
    /// What our folders hold beside tensors.
    pub(super) about: &'a Value,
    /// Steps of the run, where something but the optimizer tells them.
    pub(super) step: Option<u64>,
    /// Betas that were given.
    pub(super) betas: Option<(f64, f64)>,
}

impl Target<'_> {
    /// Gives the tensors the names and the state that the readers of the target expect; what had to be guessed.
    pub(super) fn translate(&self, made: &mut Vec<Made>) -> Result<Option<String>> {
        let guessed = match self.to {
            To::PaddleUnified | To::TorchDcp => self.clocks(made)?,
            To::HuggingFace | To::Planaria => false,
        };
        if self.to == To::TorchDcp {
            made.iter_mut().for_each(|made| made.key = self.torch.key(&made.key));
        }
        let (first, second) = DEFAULT_BETAS;
        let what = match self.to {
            To::TorchDcp => "the numbers of steps are found by trying usual ones".to_string(),
            _ => format!("{first} and {second} are assumed"),
        };
        Ok(guessed.then(|| format!("the betas of the optimizer are unknown: {what}")))
    }

    /// Steps where torch reads them, powers where Paddle does; whether betas had to be guessed.
    fn clocks(&self, made: &mut Vec<Made>) -> Result<bool> {
        let (none, one) = (Shape::new(&[])?, Shape::new(&[1])?);
        let mut weights: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for (number, made) in made.iter().enumerate().filter(|(_, made)| made.key.part == Part::Optimizer) {
            if let Some((weight, slot)) = made.key.name.rsplit_once('/') {
                weights.entry(weight.to_string()).or_default().insert(slot.to_string(), number);
            }
        }
        let mut guessed = false;
        let (mut gone, mut new) = (BTreeSet::new(), Vec::new());
        for (weight, slots) in &weights {
            let has = |slot: &str| slots.contains_key(slot);
            let adam = has("moment1_0") || has("moment2_0");
            let powers = POWERS.iter().any(|power| has(power));
            let wanted = match self.to {
                To::TorchDcp => !has("step") && (adam || powers),
                _ => !powers && adam,
            };
            let (betas, known) = self.betas(weight);
            let steps = self.steps(slots, made, (betas, known));
            let Some(steps) = steps.filter(|_| wanted) else { continue };
            let replaced = POWERS.iter().chain(&["step"]).filter_map(|slot| slots.get(*slot));
            gone.extend(replaced.copied());
            guessed |= !known && (self.to == To::PaddleUnified || matches!(steps, Steps::Powers(..)));
            let clock = |slot: &str, shape: &Shape, face| Made {
                key: Key { part: Part::Optimizer, name: format!("{weight}/{slot}") },
                dtype: DType::F32,
                shape: shape.clone(),
                from: Origin::Clock(steps.clone(), face),
            };
            match self.to {
                To::TorchDcp => new.push(clock("step", &none, Face::Count)),
                _ => new.extend(
                    POWERS.iter().zip([betas.0, betas.1]).map(|(p, beta)| clock(p, &one, Face::Power(beta))),
                ),
            }
        }
        let mut number = 0;
        made.retain(|_| {
            number += 1;
            !gone.contains(&(number - 1))
        });
        made.extend(new);
        Ok(guessed)
    }

    /// How the source tells the steps of a weight.
    fn steps(
        &self,
        slots: &BTreeMap<String, usize>,
        made: &[Made],
        betas: ((f64, f64), bool),
    ) -> Option<Steps> {
        let keys = |slot: &str| match &made.get(*slots.get(slot)?)?.from {
            Origin::Same(key) => Some(vec![key.clone()]),
            Origin::Agreed(keys) => Some(keys.clone()),
            _ => None,
        };
        if let Some(keys) = keys("step") {
            return Some(Steps::Counted(keys));
        }
        let betas = match betas {
            (betas, true) => [vec![betas.0], vec![betas.1]],
            (_, false) => USUAL.map(<[f64]>::to_vec),
        };
        let powers = POWERS.iter().zip(betas);
        let powers: Vec<Power> =
            powers.filter_map(|(power, betas)| Some(Power { keys: keys(power)?, betas })).collect();
        if !powers.is_empty() {
            return Some(Steps::Powers(powers, self.step));
        }
        self.step.map(Steps::Known)
    }

    /// The betas of a weight, and whether anything told them.
    fn betas(&self, weight: &str) -> ((f64, f64), bool) {
        let optim = &self.about["config"]["optim"];
        let configured = || Some((optim["beta1"].as_f64()?, optim["beta2"].as_f64()?));
        let known = self.betas.or_else(|| self.torch.betas(weight)).or_else(configured);
        (known.unwrap_or(DEFAULT_BETAS), known.is_some())
    }
}

/// What torch and Paddle begin with.
const DEFAULT_BETAS: (f64, f64) = (0.9, 0.999);

/// Weights that have optimizer state.
pub(super) fn trained(made: &[Made]) -> BTreeSet<String> {
    let slots = made.iter().filter(|made| made.key.part == Part::Optimizer);
    slots.filter_map(|made| Some(made.key.name.rsplit_once('/')?.0.to_string())).collect()
}

/// Where a model was not saved because its master weights are, they are the model.
pub(super) fn masters_for_missing(made: &mut [Made]) {
    let model = made.iter().filter(|made| made.key.part == Part::Model).map(|made| made.key.name.clone());
    let model: BTreeSet<String> = model.collect();
    for made in made.iter_mut().filter(|made| made.key.part == Part::MasterWeights) {
        if !model.contains(&made.key.name) {
            made.key.part = Part::Model;
        }
    }
}
