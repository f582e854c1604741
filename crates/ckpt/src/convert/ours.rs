//! The end of a conversion to our own format: the manifest and the mark that makes it count.

use super::made::Made;
use crate::error::Result;
use crate::folder;
use crate::formats::write::NewFile;
use crate::formats::{Key, Part, STATE, Source};
use crate::manifest::{
    FileRecord, Manifest, OtherRecord, Role, SUM_BLOCK, TensorRecord, TileRecord, sums_text,
};
use crate::state::{TensorKey, TensorKind, TrainState};
use planaria_layout::Region;
use planaria_store::{Store, checksum};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes under one checksum.
pub(super) const BLOCK: u64 = SUM_BLOCK;

/// A file that is in the folder already.
pub(super) struct Small {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) sum: u32,
    pub(super) role: Role,
}

impl Small {
    pub(super) fn new(name: &str, bytes: &[u8], role: Role) -> Small {
        Small { name: name.to_string(), size: bytes.len() as u64, sum: checksum::crc32c(bytes), role }
    }
}

/// What our folders say beside their tensors, as far as it is known.
fn state_of(about: &Value) -> TrainState {
    let mut state = TrainState::new(Vec::new());
    let number = |name: &str| about[name].as_u64().unwrap_or(0);
    (state.step, state.samples, state.tokens) = (number("step"), number("samples"), number("tokens"));
    state.random = about["random"].clone();
    state.schedule = about["schedule"].clone();
    state.config = about["config"].clone();
    state.extra = about["extra"].clone();
    state.tied = serde_json::from_value(about["tied"].clone()).unwrap_or_default();
    state
}

/// Small files that a source of ours lists as its own.
pub(super) fn listed_files(source: &Source) -> Option<Vec<String>> {
    serde_json::from_value(source.extra.get(STATE)?["files"].clone()).ok()
}

/// What a tensor is to the training, as far as the source says.
fn tensor_key(key: &Key, buffers: &BTreeSet<&str>) -> TensorKey {
    let (kind, name) = match key.part {
        Part::Model if buffers.contains(key.name.as_str()) => (TensorKind::Buffer, key.name.as_str()),
        Part::Model => (TensorKind::Parameter, key.name.as_str()),
        Part::MasterWeights => (TensorKind::Master, key.name.as_str()),
        Part::Ema => (TensorKind::Ema, key.name.as_str()),
        Part::Optimizer => match key.name.rsplit_once('/') {
            Some((name, slot)) => (TensorKind::Slot(slot.to_string()), name),
            None => (TensorKind::Slot("state".to_string()), key.name.as_str()),
        },
    };
    TensorKey { kind, name: name.to_string() }
}

/// Buffers and ties under the names that a mapping gives them.
pub(super) fn rename(about: &mut Value, became: &BTreeMap<String, Vec<String>>, warnings: &mut Vec<String>) {
    if about.is_null() {
        return;
    }
    let buffers = about["buffers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let buffers: Vec<&String> = buffers.filter_map(|name| became.get(name)).flatten().collect();
    let buffers = json!(buffers);
    about["buffers"] = buffers;
    let ties = about["tied"].as_object().cloned().unwrap_or_default();
    let stays = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        became.get(name).is_some_and(|names| names.iter().any(|new| new == name))
    };
    let (kept, lost): (Vec<_>, Vec<_>) = ties.into_iter().partition(|(_, name)| stays(name));
    for (alias, name) in lost {
        warnings.push(format!("the mapping changes {name}, so '{alias}' is not tied to it any more"));
    }
    about["tied"] = Value::Object(kept.into_iter().collect());
}

/// Writes the manifest and commits.
pub(super) fn commit(
    (store, folder): (&dyn Store, &str),
    about: &Value,
    made: &[Made],
    files: &[(&NewFile, Vec<u32>)],
    small: Vec<Small>,
) -> Result<()> {
    let writers = files.len().max(1);
    let mut manifest = Manifest::new(&state_of(about), writers);
    manifest.derive = serde_json::from_value(about["derive"].clone()).ok().flatten();
    let buffers = about["buffers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    manifest.tensors = made
        .iter()
        .map(|made| TensorRecord::new(&tensor_key(&made.key, &buffers), made.dtype, &made.shape))
        .collect();
    for (number, (file, sums)) in files.iter().enumerate() {
        let (name, size, sums) = (file.name.clone(), file.len, sums_text(sums));
        manifest.files.push(FileRecord { name, size, sums });
        for slot in &file.slots {
            let whole = slot.region == Region::whole(&made[slot.tensor].shape);
            let region = (!whole).then(|| slot.region.to_string());
            manifest.tensors[slot.tensor].tiles.push(TileRecord {
                file: number,
                offset: slot.offset,
                region,
            });
        }
    }
    for Small { name, size, sum, role } in small {
        manifest.others.push(OtherRecord { name, size, sum: sums_text(&[sum]), role });
    }
    let text = serde_json::to_vec(&manifest).map_err(|error| crate::error::Error::Malformed {
        file: "manifest.json".to_string(),
        what: error.to_string(),
    })?;
    folder::commit(store, folder, &text)
}
