//! The section `[heal]`: how a run continues when ranks are lost or can no longer be trusted.

use super::mesh::{MeshSection, MeshText};
use super::require;
use crate::error::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a run continues when ranks are lost or can no longer be trusted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HealSection {
    /// Meshes to continue with, the best first: `["dp=4", "dp=2"]`. The first that the ranks left can make is taken. Empty: the largest
    /// that the model, the batch and `memory` allow.
    #[schemars(with = "Vec<MeshText>")]
    pub meshes: Vec<MeshSection>,
    /// Bytes that a rank has; meshes that need more are not chosen. Absent for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Steps between comparisons of the weights that data ranks replicate, by a hash of their bits; a rank that differs is named and the
    /// run stops. Saves compare too. 0 for none; with `train.zero = 3` there is nothing to compare.
    pub compare_every: u64,
    /// Stop, naming the rank, when the loss of one data rank is not finite while that of others is, instead of skipping the step.
    pub odd_loss: bool,
}

impl HealSection {
    pub(super) fn check(&self) -> Result<()> {
        for mesh in &self.meshes {
            mesh.check()?;
            let text = mesh.to_string();
            require(
                "heal.meshes",
                mesh.dp.is_some() || mesh.replica() > 1,
                &text,
                "meshes with the size of every axis",
            )?;
        }
        let memory = self.memory.unwrap_or(1);
        require("heal.memory", memory > 0, memory, "at least 1")
    }
}
