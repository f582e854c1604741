//! The `mesh` key: axes by name, as a text like `dp=2 tp=2` or as a table.

use super::require;
use crate::error::{Error, Result};
use planaria_layout::Mesh;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Sizes of the axes, outermost first: pipeline stages, data replicas, experts, tensor slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "MeshText", into = "MeshText")]
pub struct MeshSection {
    /// Pipeline stages.
    pub pp: usize,
    /// Data replicas; what the number of ranks leaves when absent.
    pub dp: Option<usize>,
    /// Ranks that share the experts and split the micro-batch.
    pub ep: usize,
    /// Ranks that share each matrix.
    pub tp: usize,
}

impl Default for MeshSection {
    fn default() -> MeshSection {
        MeshSection { pp: 1, dp: None, ep: 1, tp: 1 }
    }
}

/// Both forms of the key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum MeshText {
    /// `dp=2 tp=2`.
    Text(String),
    /// One key per axis.
    Table(Axes),
}

/// One key per axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Axes {
    /// Pipeline stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pp: Option<usize>,
    /// Data replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    dp: Option<usize>,
    /// Ranks that share the experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    ep: Option<usize>,
    /// Ranks that share each matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    tp: Option<usize>,
}

impl TryFrom<MeshText> for MeshSection {
    type Error = Error;

    fn try_from(text: MeshText) -> Result<MeshSection> {
        match text {
            MeshText::Text(text) => text.parse(),
            MeshText::Table(Axes { pp, dp, ep, tp }) => {
                Ok(MeshSection { pp: pp.unwrap_or(1), dp, ep: ep.unwrap_or(1), tp: tp.unwrap_or(1) })
            }
        }
    }
}

impl From<MeshSection> for MeshText {
    fn from(mesh: MeshSection) -> MeshText {
        MeshText::Text(mesh.to_string())
    }
}

impl fmt::Display for MeshSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut space = "";
        let all = [("pp", self.pp), ("dp", self.dp.unwrap_or(0)), ("ep", self.ep), ("tp", self.tp)];
        for (name, size) in all {
            let told = if name == "dp" { self.dp.is_some() } else { size != 1 };
            if told {
                write!(f, "{space}{name}={size}")?;
                space = " ";
            }
        }
        Ok(())
    }
}

impl FromStr for MeshSection {
    type Err = Error;

    fn from_str(text: &str) -> Result<MeshSection> {
        let mut mesh = MeshSection::default();
        if text.trim().is_empty() {
            return Ok(mesh);
        }
        let bad = |e: planaria_layout::Error| Error::Value {
            key: "mesh".into(),
            found: format!("\"{text}\""),
            expected: format!("axes like \"dp=2 tp=2\" ({e})"),
        };
        for axis in text.parse::<Mesh>().map_err(bad)?.axes() {
            match axis.name.as_str() {
                "pp" => mesh.pp = axis.size,
                "dp" => mesh.dp = Some(axis.size),
                "ep" => mesh.ep = axis.size,
                "tp" => mesh.tp = axis.size,
                other => {
                    return Err(Error::Value {
                        key: "mesh".into(),
                        found: format!("\"{text}\""),
                        expected: format!(
                            "axes `pp` (stages), `dp` (replicas), `ep` (experts) and `tp` (tensor slices); there is no `{other}`"
                        ),
                    });
                }
            }
        }
        Ok(mesh)
    }
}

impl MeshSection {
    pub(super) fn check(&self) -> Result<()> {
        for (key, size) in [
            ("mesh.pp", self.pp),
            ("mesh.dp", self.dp.unwrap_or(1)),
            ("mesh.ep", self.ep),
            ("mesh.tp", self.tp),
        ] {
            require(key, (1..=1 << 20).contains(&size), size, "from 1 to 1048576")?;
        }
        Ok(())
    }

    /// Ranks of one data replica.
    pub fn replica(&self) -> usize {
        self.pp.saturating_mul(self.ep).saturating_mul(self.tp)
    }

    /// The number of ranks that the section alone asks for; one replica when `dp` is absent.
    pub fn ranks(&self) -> usize {
        self.replica().saturating_mul(self.dp.unwrap_or(1))
    }

    /// The mesh of this many ranks. An absent `dp` takes what is left.
    pub fn on(&self, ranks: usize) -> Result<Mesh> {
        let replica = self.replica();
        let dp = match self.dp {
            Some(dp) => dp,
            None if replica > 0 && ranks.is_multiple_of(replica) => ranks / replica,
            None => 0,
        };
        if dp == 0 || replica.checked_mul(dp) != Some(ranks) {
            return Err(Error::Ranks {
                ranks,
                mesh: self.to_string(),
                needs: replica.saturating_mul(dp.max(1)),
            });
        }
        Ok(Mesh::new(&[("pp", self.pp), ("dp", dp), ("ep", self.ep), ("tp", self.tp)])?)
    }
}
