//! Update rules over lists of shards, and the state they keep for each.

use crate::error::{Error, Result};
use crate::param::ParamKind;
use planaria_array::ops::{AdamW, AdamWArrays, Sgd, SgdArrays};
use planaria_array::{Array, DType};

/// How parameters follow their gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// Gradient descent, with momentum when it is not 0.
    Sgd(Sgd),
}

/// What a rule keeps for one shard. All arrays have its shape.
#[derive(Clone, Debug)]
pub struct OptimState {
    /// f32 values of a bf16 or f16 parameter.
    pub master: Option<Array>,
    /// Moments or velocity, each with the name it has in checkpoints.
    pub slots: Vec<(&'static str, Array)>,
}

/// One shard to update.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// The parameter, updated in place.
    pub param: &'a Array,
    /// Its gradient.
    pub grad: &'a Array,
    /// What the rule keeps, updated in place.
    pub state: &'a OptimState,
    /// What the parameter is for: only weights of products and token vectors decay.
    pub kind: ParamKind,
}

impl Rule {
    /// The names of the slots, as in checkpoints.
    pub fn slots(&self) -> &'static [&'static str] {
        match self {
            Rule::AdamW(_) => &["moment1_0", "moment2_0"],
            Rule::Sgd(sgd) if sgd.momentum != 0.0 => &["velocity_0"],
            Rule::Sgd(_) => &[],
        }
    }

    /// The state before the first step. Narrow parameters get f32 values of their own.
    pub fn state(&self, param: &Array) -> Result<OptimState> {
        let narrow = matches!(param.dtype(), DType::BF16 | DType::F16);
        let dtype = if narrow { DType::F32 } else { param.dtype() };
        let zeros = || Array::zeros_on(param.shape(), dtype, param.device());
        let master = narrow.then(|| param.cast(DType::F32)).transpose()?;
        let slots = self.slots().iter().map(|&name| Ok((name, zeros()?))).collect::<Result<_>>()?;
        Ok(OptimState { master, slots })
    }

    /// Step number `step` (from 1) at learning rate `lr`, with gradients multiplied by `scale` as they are read:
    /// where they are divided by counts of labels, unscaled and clipped, all at once.
    pub fn step(&self, step: u64, lr: f64, scale: f64, shards: &[Shard<'_>]) -> Result<()> {
        // Decay is a constant of a call, so those with and without go in two.
        for decays in [true, false] {
            let chosen: Vec<&Shard<'_>> = shards.iter().filter(|s| s.kind.decays() == decays).collect();
            if chosen.is_empty() {
                continue;
            }
            let kept = |decay: f64| if decays { decay } else { 0.0 };
            match self {
                Rule::AdamW(adamw) => {
                    let list = chosen.iter().map(|s| s.adamw()).collect::<Result<Vec<_>>>()?;
                    let weight_decay = kept(adamw.weight_decay);
                    AdamW { lr, weight_decay, grad_scale: adamw.grad_scale * scale, ..*adamw }
                        .step(step, &list)?;
                }
                Rule::Sgd(sgd) => {
                    let list = chosen.iter().map(|s| s.sgd()).collect::<Vec<_>>();
                    let weight_decay = kept(sgd.weight_decay);
                    Sgd { lr, weight_decay, grad_scale: sgd.grad_scale * scale, ..*sgd }.step(step, &list)?;
                }
            }
        }
        Ok(())
    }
}

impl ParamKind {
    /// True when weight decay applies.
    pub fn decays(self) -> bool {
        matches!(self, ParamKind::Matrix | ParamKind::Embedding)
    }
}

impl<'a> Shard<'a> {
    fn slot(&self, name: &str) -> Option<&'a Array> {
        self.state.slots.iter().find(|(slot, _)| *slot == name).map(|(_, array)| array)
    }

    fn adamw(&self) -> Result<AdamWArrays<'a>> {
        let slot = |name: &'static str| {
            self.slot(name).ok_or_else(|| Error::Argument {
                what: "adamw",
                message: format!("the state has no `{name}`; it was made by another rule"),
            })
        };
        Ok(AdamWArrays {
            param: self.param,
            grad: self.grad,
            exp_avg: slot("moment1_0")?,
            exp_avg_sq: slot("moment2_0")?,
            max_exp_avg_sq: None,
            master: self.state.master.as_ref(),
        })
    }

    fn sgd(&self) -> SgdArrays<'a> {
        let velocity = self.slot("velocity_0");
        SgdArrays { param: self.param, grad: self.grad, velocity, master: self.state.master.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(value: f64, dtype: DType) -> Array {
        Array::full(&[3], value, dtype).unwrap()
    }

    #[test]
    fn narrow_parameters_move_by_steps_smaller_than_their_last_place() {
        let rule = Rule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
        let (param, grad) = (filled(1.0, DType::BF16), filled(1.0, DType::F32));
        let state = rule.state(&param).unwrap();
        for step in 1..=20 {
            let shard = Shard { param: &param, grad: &grad, state: &state, kind: ParamKind::Norm };
            rule.step(step, 1e-4, 1.0, &[shard]).unwrap();
        }
        // bf16 has steps of 2^-8 below 1, far more than one update.
        let master = state.master.as_ref().unwrap();
        assert!(master.to_vec::<f32>().unwrap()[0] < 0.99);
        assert_eq!(param.cast(DType::F32).unwrap().to_vec::<f32>().unwrap(), vec![0.98828125f32; 3]);
    }

    #[test]
    fn biases_and_norms_do_not_decay_and_gradients_are_scaled() {
        let rule = Rule::AdamW(AdamW { weight_decay: 0.5, ..AdamW::default() });
        let params = [ParamKind::Matrix, ParamKind::Bias].map(|kind| (kind, filled(2.0, DType::F32)));
        let (grad, mut shards) = (filled(0.0, DType::F32), Vec::new());
        let states = params.clone().map(|(_, param)| rule.state(&param).unwrap());
        for ((kind, param), state) in params.iter().zip(&states) {
            shards.push(Shard { param, grad: &grad, state, kind: *kind });
        }
        rule.step(1, 0.1, 0.25, &shards).unwrap();
        assert_eq!(params[0].1.to_vec::<f32>().unwrap(), [1.9; 3]);
        assert_eq!(params[1].1.to_vec::<f32>().unwrap(), [2.0; 3]);
        grad.fill(8.0).unwrap();
        rule.step(2, 0.0, 0.25, &shards).unwrap();
        let (name, moment) = &states[0].slots[0];
        assert_eq!((*name, moment.to_vec::<f32>().unwrap()[0]), ("moment1_0", 0.1f32 * 2.0));
    }
}
