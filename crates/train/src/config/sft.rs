//! The section `[sft]`: the loss of conversations.

use super::require;
use crate::error::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The loss of conversations, with `train.objective = "sft"`; what is learned of them says `[data.chat]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SftSection {
    /// Share of every label that is spread evenly over the vocabulary. Above 0 all scores of a micro-batch are in memory at once.
    pub label_smoothing: f64,
}

impl SftSection {
    pub(crate) fn check(&self) -> Result<()> {
        let smooth = (0.0..1.0).contains(&self.label_smoothing);
        require("sft.label_smoothing", smooth, self.label_smoothing, "at least 0 and below 1")
    }
}
