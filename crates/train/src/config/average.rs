//! `[[optim.averages]]`: running averages of the weights.

use super::require;
use super::sections::OptimSection;
use crate::error::Result;
use planaria_nn::optim::Ema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A running average of the weights. Its first value is that of the first update it sees, whatever the start was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AverageSection {
    /// Exponential: what the average so far counts in the next, at least 0 and below 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<f64>,
    /// A power function instead: its width as part of the run so far, such as 0.1. Two of them, saved often, are what `planaria average`
    /// makes every other width from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
    /// Updates of the optimizer between two of the average.
    pub every: u64,
}

impl Default for AverageSection {
    fn default() -> AverageSection {
        AverageSection { decay: None, sigma: None, every: 1 }
    }
}

/// A running average: how values count, and how many updates lie between two of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Average {
    pub(crate) profile: Ema,
    pub(crate) every: u64,
}

impl AverageSection {
    fn average(&self) -> Result<Average> {
        let key = "optim.averages";
        let text = if self.decay.is_some() { "given both" } else { "given neither" };
        require(key, self.decay.is_some() != self.sigma.is_some(), text, "either `decay` or `sigma`")?;
        require("optim.averages.every", self.every > 0, self.every, "at least 1")?;
        let made = match (self.decay, self.sigma) {
            (Some(decay), _) => (Ema::new(decay), decay, "a decay at least 0 and below 1"),
            (_, sigma) => {
                let sigma = sigma.unwrap_or(0.0);
                (Ema::power(sigma), sigma, "a sigma above 0.0001 and at most 0.2887")
            }
        };
        let (profile, found, expected) = made;
        require(key, profile.is_ok(), found, expected)?;
        Ok(Average { profile: profile?, every: self.every })
    }
}

impl OptimSection {
    /// All running averages: that of `ema` first.
    pub(crate) fn averages(&self) -> Result<Vec<Average>> {
        let first = self.ema.map(|decay| AverageSection { decay: Some(decay), ..AverageSection::default() });
        first.iter().chain(&self.averages).map(AverageSection::average).collect()
    }
}
