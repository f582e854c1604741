//! The section `[dpo]`: which loss compares two responses.

use super::require;
use crate::error::Result;
use crate::rl::{Preference, PreferenceLoss};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Which loss compares two responses; with `train.objective = "dpo"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DpoSection {
    /// `sigmoid`, `robust`, `hinge`, `ipo`, `sigmoid-norm`, `simpo`, `orpo`, `dpop`, `apo-zero`, `sppo-hard`, `nca-pair`.
    pub loss: PreferenceLoss,
    /// How much the policy may leave the reference: less is more.
    pub beta: f64,
    /// Share of pairs whose order is wrong.
    pub label_smoothing: f64,
    /// The margin of `simpo`.
    pub gamma: f64,
    /// The weight of what `orpo` and `dpop` add.
    pub lambda: f64,
    /// Whether the reference counts nothing.
    pub reference_free: bool,
    /// What the loss of the better response, per token, counts beside.
    pub sft_coef: f64,
    /// A folder with the weights of the reference; those that the run starts from when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<PathBuf>,
}

impl Default for DpoSection {
    fn default() -> DpoSection {
        let Preference { loss, beta, label_smoothing, gamma, lambda, reference_free, sft_coef } =
            Preference::default();
        DpoSection { loss, beta, label_smoothing, gamma, lambda, reference_free, sft_coef, reference: None }
    }
}

impl DpoSection {
    /// The loss.
    pub fn preference(&self) -> Preference {
        let DpoSection { loss, beta, label_smoothing, gamma, lambda, reference_free, sft_coef, .. } = *self;
        Preference { loss, beta, label_smoothing, gamma, lambda, reference_free, sft_coef }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let positive = self.beta.is_finite() && self.beta > 0.0;
        require("dpo.beta", positive, self.beta, "a finite number above 0")?;
        let smooth = (0.0..0.5).contains(&self.label_smoothing);
        require("dpo.label_smoothing", smooth, self.label_smoothing, "at least 0 and below 0.5")?;
        for (key, value) in
            [("dpo.gamma", self.gamma), ("dpo.lambda", self.lambda), ("dpo.sft_coef", self.sft_coef)]
        {
            require(key, value.is_finite(), value, "a finite number")?;
        }
        Ok(())
    }
}
