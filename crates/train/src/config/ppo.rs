//! The section `[ppo]`: the critic, and how advantages are made of what it expects.

use super::{OptimSection, require};
use crate::error::Result;
use crate::rl::KlKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The critic, and how advantages are made of what it expects; with `train.objective = "ppo"`, beside `[rl]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PpoSection {
    /// A folder with the first weights of the critic: a `*ForSequenceClassification` of one label, or a model without such a head,
    /// which gets a new one. The weights that the policy starts from when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic: Option<PathBuf>,
    /// The learning rate of the critic; the schedule is that of `[optim]`.
    pub critic_lr: f64,
    /// Its decay of the first moment; as in `[optim]` when absent, like the next four.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic_beta1: Option<f64>,
    /// Its decay of the second moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic_beta2: Option<f64>,
    /// What is added to its denominator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic_eps: Option<f64>,
    /// Its weight decay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic_weight_decay: Option<f64>,
    /// Its largest gradient norm; 0 does not clip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic_clip: Option<f64>,
    /// What a reward is worth one token earlier.
    pub gamma: f64,
    /// How much of the advantage of the next token counts.
    pub lambda: f64,
    /// How far a value may go from what it was when the rollout was made; 0 for as far as it likes.
    pub value_clip: f64,
    /// What leaving the reference costs a token, taken from its reward; 0 needs no reference.
    pub kl_coef: f64,
    /// How that is estimated, as `rl.kl` is.
    pub kl: KlKind,
    /// How far the policy should be from the reference, summed over a response: `kl_coef` follows how far it is, rollout after rollout. It
    /// stays as it is when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_target: Option<f64>,
    /// Responses over which it would double or halve, roughly.
    pub kl_horizon: f64,
    /// Whether the advantages of a rollout are made to have mean 0 and variance 1.
    pub whiten_advantages: bool,
    /// Whether its rewards are made to have variance 1.
    pub whiten_rewards: bool,
}

impl Default for PpoSection {
    fn default() -> PpoSection {
        PpoSection {
            critic: None,
            critic_lr: 1e-5,
            critic_beta1: None,
            critic_beta2: None,
            critic_eps: None,
            critic_weight_decay: None,
            critic_clip: None,
            gamma: 1.0,
            lambda: 0.95,
            value_clip: 0.2,
            kl_coef: 0.05,
            kl_target: None,
            kl_horizon: 10_000.0,
            kl: KlKind::K1,
            whiten_advantages: true,
            whiten_rewards: false,
        }
    }
}

impl PpoSection {
    /// How far a value may go, where that is bounded.
    pub fn clip(&self) -> Option<f64> {
        Some(self.value_clip).filter(|&clip| clip > 0.0)
    }

    /// How the critic learns, where the policy learns like this.
    pub(crate) fn optim(&self, policy: &OptimSection) -> OptimSection {
        OptimSection {
            lr: self.critic_lr,
            beta1: self.critic_beta1.unwrap_or(policy.beta1),
            beta2: self.critic_beta2.unwrap_or(policy.beta2),
            eps: self.critic_eps.unwrap_or(policy.eps),
            weight_decay: self.critic_weight_decay.unwrap_or(policy.weight_decay),
            clip: self.critic_clip.unwrap_or(policy.clip),
            ..policy.clone()
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let finite = |x: f64| x.is_finite() && x >= 0.0;
        for (key, value) in [
            ("ppo.critic_lr", self.critic_lr),
            ("ppo.critic_eps", self.critic_eps.unwrap_or(0.0)),
            ("ppo.critic_weight_decay", self.critic_weight_decay.unwrap_or(0.0)),
            ("ppo.critic_clip", self.critic_clip.unwrap_or(0.0)),
            ("ppo.value_clip", self.value_clip),
            ("ppo.kl_coef", self.kl_coef),
        ] {
            require(key, finite(value), value, "a finite number, at least 0")?;
        }
        for (key, value) in
            [("ppo.kl_target", self.kl_target.unwrap_or(1.0)), ("ppo.kl_horizon", self.kl_horizon)]
        {
            require(key, value.is_finite() && value > 0.0, value, "a finite number above 0")?;
        }
        for (key, value) in [("ppo.critic_beta1", self.critic_beta1), ("ppo.critic_beta2", self.critic_beta2)]
        {
            let value = value.unwrap_or(0.0);
            require(key, (0.0..1.0).contains(&value), value, "at least 0 and below 1")?;
        }
        let steers = self.kl_target.is_none() || self.kl_coef > 0.0;
        require("ppo.kl_coef", steers, self.kl_coef, "above 0 with `ppo.kl_target`, which it follows")?;
        for (key, value) in [("ppo.gamma", self.gamma), ("ppo.lambda", self.lambda)] {
            require(key, (0.0..=1.0).contains(&value), value, "from 0 to 1")?;
        }
        Ok(())
    }
}
