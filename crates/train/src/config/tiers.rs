//! `[[checkpoint.tiers]]`: further places that checkpoints go to, each with its own interval and number.

use super::require;
use crate::error::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a tier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TierKind {
    /// Shared memory of this machine: it outlives every process of the run, not the machine.
    #[default]
    Memory,
    /// Memory of another machine or process that `planaria agent` holds, reached under `path`, as in `peer://host:port/run`.
    Peer,
    /// A folder of this machine.
    Local,
    /// A folder or bucket elsewhere, such as `s3://bucket/run`.
    Remote,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TierKind::Memory => "memory",
            TierKind::Peer => "peer",
            TierKind::Local => "local",
            TierKind::Remote => "remote",
        })
    }
}

/// A further place that checkpoints go to, beside the run's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TierSection {
    /// What it is: `memory`, `peer`, `local` or `remote`.
    pub kind: TierKind,
    /// Where it is. Absent only for `memory`, which has a folder of its own in `/dev/shm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Steps between its checkpoints.
    pub every: u64,
    /// How many of the newest stay there.
    pub keep: usize,
}

impl Default for TierSection {
    fn default() -> TierSection {
        TierSection { kind: TierKind::Memory, path: None, every: 1, keep: 1 }
    }
}

impl TierSection {
    pub(super) fn check(&self) -> Result<()> {
        require("checkpoint.tiers.every", self.every > 0, self.every, "at least 1")?;
        require("checkpoint.tiers.keep", self.keep > 0, self.keep, "at least 1")?;
        let placed = self.kind == TierKind::Memory || self.path.is_some();
        require("checkpoint.tiers.path", placed, "missing", &format!("the place of the {} tier", self.kind))
    }
}
