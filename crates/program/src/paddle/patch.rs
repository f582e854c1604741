//! Version patches: what changed between two versions of the op definitions, as data, applied one step at a time.

use super::{action, downgrade as inverse};
use crate::error::{Error, Result};
use crate::program::{NEWEST, OLDEST, Program};
use serde::Deserialize;
use serde_json::Value as Json;
use std::fmt;

/// What changed in one version.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchFile {
    /// The version it leads to. Files of this version may be older than the patch, so it is applied to them too:
    /// every action changes nothing the second time.
    pub version: u64,
    /// Ops that did not exist before.
    #[serde(default)]
    pub new_ops: Vec<String>,
    /// Changes of single ops.
    #[serde(default)]
    pub op_patches: Vec<OpPatch>,
    /// Values passed from one op to another, added or removed.
    #[serde(default)]
    pub op_pair_patches: Vec<PairPatch>,
    /// Attribute kinds renamed everywhere.
    #[serde(default)]
    pub attr_patches: Vec<AttrPatch>,
    /// Types renamed or removed everywhere.
    #[serde(default)]
    pub type_patches: Vec<TypePatch>,
}

/// Changes of one op.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpPatch {
    /// The op, its dialect spelled out.
    pub op_name: String,
    /// What to do, in this order.
    pub actions: Vec<Action>,
}

/// Changes of two ops that pass a value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairPatch {
    /// Producer and consumer.
    pub op_pair: [String; 2],
    /// What to do.
    pub actions: Vec<Action>,
}

/// A kind of attribute renamed everywhere.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttrPatch {
    /// The kind, as `pir::FloatAttribute`.
    pub attr_name: String,
    /// What to do.
    pub actions: Vec<Action>,
}

/// A type renamed or removed everywhere.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypePatch {
    /// The type, as `pir::Float32Type`.
    pub type_name: String,
    /// What to do.
    pub actions: Vec<Action>,
}

/// One change.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// What to do, as `add_attr`.
    pub action: String,
    /// An attribute's name, an index, or a pair of them.
    #[serde(default)]
    pub object: Json,
    /// A kind, as `pir::Int64Attribute`.
    #[serde(default, rename = "type")]
    pub kind: Option<String>,
    /// A value, a new name, or the kinds inside an array.
    #[serde(default, alias = "default")]
    pub data: Json,
    /// The kind before, for the way back.
    #[serde(default)]
    pub was: Option<String>,
}

impl PatchFile {
    /// A patch from its JSON.
    ///
    /// # Errors
    /// JSON of another form.
    pub fn parse(text: &str) -> Result<PatchFile> {
        serde_json::from_str(text)
            .map_err(|error| Error::Patch { place: "the patch file".to_string(), what: error.to_string() })
    }

    /// Changes the program in place.
    ///
    /// # Errors
    /// An action that is not known, or does not fit the op.
    pub fn apply(&self, program: &mut Program) -> Result<Vec<Change>> {
        action::apply(self, program)
    }
}

/// One thing that a patch changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The version of the patch.
    pub version: u64,
    /// The op that was changed.
    pub op: String,
    /// What was changed.
    pub what: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: {}: {}", self.version, self.op, self.what)
    }
}

/// The patches between the versions we know.
fn known() -> Result<Vec<PatchFile>> {
    let texts =
        [include_str!("patches/2.json"), include_str!("patches/3.json"), include_str!("patches/4.json")];
    texts.into_iter().map(PatchFile::parse).collect()
}

/// Brings a program to the newest version, and says what that changed.
///
/// # Errors
/// A patch that does not fit an op of the program.
pub fn upgrade(program: &mut Program) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    if program.version == NEWEST {
        return Ok(changes);
    }
    let from = program.version;
    for patch in known()?.iter().filter(|patch| patch.version >= from) {
        changes.extend(patch.apply(program)?);
    }
    program.version = NEWEST;
    Ok(changes)
}

/// Takes a program back to an older version, and says what that changed. Nothing is rounded or lost.
///
/// # Errors
/// A version that is not known, and ops and values that the older version does not have.
pub fn downgrade(program: &mut Program, version: u64) -> Result<Vec<Change>> {
    if !(OLDEST..=NEWEST).contains(&version) {
        return Err(Error::Version { found: version, oldest: OLDEST, newest: NEWEST });
    }
    let mut changes = upgrade(program)?;
    for patch in known()?.iter().rev().filter(|patch| patch.version > version) {
        changes.extend(inverse::undo(patch, program)?);
    }
    program.version = version;
    Ok(changes)
}
