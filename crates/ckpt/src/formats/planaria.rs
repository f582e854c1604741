//! Our own committed folders, seen as those of others are.

use super::source::{Builder, Format, Key, Part, Source, Stored};
use crate::error::Result;
use crate::folder;
use crate::manifest::{Checkpoint, Role};
use crate::state::{Group, TensorKey};
use planaria_layout::Shape;
use planaria_store::{Store, StoreExt, join};
use serde_json::{Value, json};
use std::sync::Arc;

/// Largest small file whose text is looked at.
const SMALL: u64 = 1 << 20;

/// A folder with a commit mark; its manifest says where everything lies.
pub(super) fn open_folder(store: &Arc<dyn Store>, at: &str) -> Result<Source> {
    let checkpoint = folder::open(&**store, at)?;
    let mut builder = Builder::new(store, at, Format::Planaria);
    for (key, tensor) in &checkpoint.tensors {
        let key = source_key(key);
        for tile in &tensor.tiles {
            let file = &checkpoint.files[tile.holder.file].name;
            let stored = Stored {
                dtype: tensor.dtype,
                shape: Shape::from_dims(tile.region.extents())?,
                offset: tile.holder.offset,
                len: tile.holder.len,
                strides: None,
            };
            builder.tile(key.clone(), &join(at, file), &tensor.shape, tile.region.clone(), &stored)?;
        }
    }
    builder.extra.insert("state".to_string(), about(&checkpoint));
    for file in
        checkpoint.others.iter().filter(|file| file.role == Role::State && file.name.ends_with(".json"))
    {
        let text = store.read(&join(at, &file.name), SMALL).ok();
        if let Some(value) = text.and_then(|text| serde_json::from_slice(&text).ok()) {
            builder.extra.insert(file.name.clone(), value);
        }
    }
    builder.finish()
}

/// The part of a training state, and the name in the files.
fn source_key(key: &TensorKey) -> Key {
    let part = match key.kind.group() {
        Group::Model => Part::Model,
        Group::Masters => Part::MasterWeights,
        Group::Optimizer => Part::Optimizer,
        Group::Ema => Part::Ema,
    };
    Key { part, name: key.in_file() }
}

/// What is not a tensor.
fn about(checkpoint: &Checkpoint) -> Value {
    let state = &checkpoint.state;
    json!({
        "step": state.step,
        "samples": state.samples,
        "tokens": state.tokens,
        "random": state.random,
        "schedule": state.schedule,
        "config": state.config,
        "extra": state.extra,
        "tied": state.tied,
        "writer": checkpoint.writer,
        "ranks": checkpoint.ranks,
    })
}
