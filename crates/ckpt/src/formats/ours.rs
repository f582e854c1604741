//! Our own folders as a source: whatever reads the formats of others reads them too.

use super::roles::part_key;
use super::source::{Builder, Format, Source, Stored};
use crate::error::{Error, Result};
use crate::folder;
use crate::manifest::{Checkpoint, Role};
use crate::state::TensorKind;
use planaria_store::container::Foreign;
use planaria_store::{Store, join};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a source keeps what our folders hold beside tensors.
pub(crate) const STATE: &str = "planaria";

/// Where a state keeps the true element types of tensors whose bytes are carried.
pub(crate) const FOREIGN: &str = "foreign";

/// The checksums of a file that was written with them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileSums {
    /// Bytes under one sum.
    pub(crate) block: u64,
    /// CRC-32C of each block.
    pub(crate) sums: Vec<u32>,
}

/// A folder that was begun and not finished.
pub(super) fn unfinished(at: &str) -> Error {
    Error::Torn { what: format!("the save of '{at}' did not finish: it has no COMMIT mark") }
}

/// Whether `manifest.json` is one of ours.
pub(super) fn has_manifest(store: &Arc<dyn Store>, at: &str) -> Result<bool> {
    let reader = store.reader(&join(at, "manifest.json"))?;
    let head = reader.read(0, reader.size().min(HEAD) as usize)?;
    Ok(String::from_utf8_lossy(&head).contains(&format!("\"{}\"", crate::manifest::FORMAT)))
}

/// Where a manifest of ours has said what it is.
const HEAD: u64 = 256;

/// Opens a committed folder.
pub(super) fn open_folder(store: &Arc<dyn Store>, at: &str) -> Result<Source> {
    let checkpoint = folder::open(&**store, at)?;
    let mut builder = Builder::new(store, at, Format::Planaria);
    builder.extra.insert(STATE.to_string(), about(&checkpoint));
    for (key, tensor) in &checkpoint.tensors {
        let key = part_key(key);
        let foreign = checkpoint.state.extra[FOREIGN][key.to_string()].as_str().and_then(Foreign::named);
        let foreign = foreign.filter(|foreign| foreign.carrier == tensor.dtype);
        builder.declare(&key, "manifest.json", tensor.dtype, &tensor.shape)?;
        builder.carry(&key, "manifest.json", foreign)?;
        for tile in &tensor.tiles {
            let wrong = |problem| Error::Tiles { tensor: key.to_string(), problem };
            let shape = planaria_layout::Shape::from_dims(tile.region.extents()).map_err(wrong)?;
            let (offset, len) = (tile.holder.offset, tile.holder.len);
            let strides = None;
            let stored = Stored { dtype: tensor.dtype, shape, offset, len, strides, foreign };
            let file = join(at, &checkpoint.files[tile.holder.file].name);
            builder.tile(key.clone(), &file, &tensor.shape, tile.region.clone(), &stored)?;
        }
    }
    let sums: BTreeMap<String, Arc<FileSums>> = checkpoint
        .files
        .into_iter()
        .map(|file| (join(at, &file.name), Arc::new(FileSums { block: checkpoint.block, sums: file.sums })))
        .collect();
    let mut source = builder.finish()?;
    source.sums = sums;
    Ok(source)
}

/// Everything of the state but its tensors, as JSON.
fn about(checkpoint: &Checkpoint) -> Value {
    let state = &checkpoint.state;
    let names = |kind: &TensorKind| -> Vec<&str> {
        checkpoint.tensors.keys().filter(|key| key.kind == *kind).map(|key| key.name.as_str()).collect()
    };
    let files: Vec<&str> = checkpoint
        .others
        .iter()
        .filter(|file| file.role == Role::State)
        .map(|file| file.name.as_str())
        .collect();
    json!({
        "writer": checkpoint.writer,
        "ranks": checkpoint.ranks,
        "step": state.step,
        "samples": state.samples,
        "tokens": state.tokens,
        "random": state.random,
        "schedule": state.schedule,
        "config": state.config,
        "extra": state.extra,
        "tied": state.tied,
        "derive": checkpoint.derive,
        "files": files,
        "buffers": names(&TensorKind::Buffer),
    })
}
