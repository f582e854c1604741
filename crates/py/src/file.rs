//! One safetensors file, written as its readers expect it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use planaria::ckpt::Error;
use planaria::store::container::{Align, FileLayout, NewTensor};
use planaria::store::{Local, Sharing, Stoppable, Store};
use pyo3::prelude::*;

use crate::gil::{Cancel, blocking};
use crate::state::{Named, Part, parts};

/// Writes tensors to a file, which appears whole or not at all.
#[pyfunction]
pub(crate) fn write_file(
    py: Python<'_>,
    path: String,
    tensors: Vec<Named<'_>>,
    metadata: BTreeMap<String, String>,
) -> PyResult<()> {
    let parts = parts(&tensors)?;
    let cancel = Cancel::default();
    let stop = cancel.flag();
    blocking(py, &cancel, move || write(Path::new(&path), &parts, &metadata, stop))
}

/// Bytes written before somebody looks whether to stop.
const PIECE: usize = 64 << 20;

fn write(
    path: &Path,
    parts: &[Part],
    metadata: &BTreeMap<String, String>,
    stop: Arc<AtomicBool>,
) -> Result<(), Error> {
    let refused = || Error::Request { what: format!("'{}' does not name a file", path.display()) };
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(refused)?;
    let new = |part: &Part| NewTensor {
        name: part.name.clone(),
        dtype: part.array.dtype(),
        shape: part.array.shape().clone(),
        foreign: None,
    };
    let layout = FileLayout::new(name, parts.iter().map(new), metadata, Align::Word)?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let store = Stoppable::new(Local::new(folder), stop);
    let beside = format!(".{name}.{}.part", std::process::id());
    let filled = || -> Result<(), Error> {
        let file = store.writer(&beside, layout.file_len(), Sharing::Threads)?;
        file.write_at(0, layout.header())?;
        for part in parts {
            let Some((start, _)) = layout.place(&part.name) else { continue };
            let dense = part.array.contiguous()?;
            for (at, piece) in dense.bytes()?.chunks(PIECE).enumerate() {
                file.write_at(start + (at * PIECE) as u64, piece)?;
            }
        }
        Ok(file.finish()?)
    };
    filled().and_then(|()| publish(folder, &beside, path)).inspect_err(|_| {
        let _ = store.delete(&beside);
    })
}

/// Puts the finished file in its place, for good.
fn publish(folder: &Path, beside: &str, path: &Path) -> Result<(), Error> {
    let moved = std::fs::rename(folder.join(beside), path);
    let durable = moved.and_then(|()| std::fs::File::open(folder)?.sync_all());
    durable.map_err(|error| {
        let (name, message) = (path.display().to_string(), error.to_string());
        Error::Store(planaria::store::Error::Io { name, op: "move", kind: error.kind(), message })
    })
}
