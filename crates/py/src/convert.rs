//! Conversions between formats, and how far they have come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use planaria::ckpt::Error;
use planaria::ckpt::convert::{ConvertOptions, Observer, To, plan};
use planaria::ckpt::formats::{OpenOptions, open_url};
use pyo3::prelude::*;

use crate::dtype::optional;
use crate::error::exception;
use crate::gil::{Cancel, watched};
use crate::state::{bytes, program, tell};
use crate::target::{Beside, is_taken};

/// A format by its name.
pub(crate) fn format(py: Python<'_>, name: &str) -> PyResult<To> {
    Ok(match name {
        "planaria" => To::Planaria,
        "hf" => To::HuggingFace,
        "dcp" => To::TorchDcp,
        "paddle-unified" => To::PaddleUnified,
        _ => {
            let what = format!(
                "format {name:?} is not one that is written; use planaria, hf, dcp or paddle-unified"
            );
            return Err(exception(py, "ArgumentError", what));
        }
    })
}

/// Stops the work when it is told to, and counts.
pub(crate) struct Stop {
    stop: Arc<AtomicBool>,
    moved: AtomicU64,
    total: AtomicU64,
}

impl Stop {
    pub(crate) fn new(stop: &Arc<AtomicBool>) -> Stop {
        Stop { stop: stop.clone(), moved: AtomicU64::new(0), total: AtomicU64::new(0) }
    }
}

impl Observer for Stop {
    fn moved(&self, bytes: u64) -> bool {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        !self.stop.load(Ordering::Acquire)
    }
}

/// What a conversion answers: bytes, tensors, names of tensors left out, warnings.
type Answer = (u64, usize, Vec<String>, Vec<String>);

/// Converts a checkpoint; the target appears whole or not at all.
#[pyfunction]
pub(crate) fn convert_checkpoint(
    py: Python<'_>,
    source: String,
    target: String,
    to: &str,
    dtype: Option<&Bound<'_, PyAny>>,
    mapping: Option<String>,
    max_memory: Option<&Bound<'_, PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Answer> {
    let (to, mut options) = (format(py, to)?, ConvertOptions::default());
    options.dtype = optional(dtype)?;
    options.mapping = program(py, mapping)?.map(Into::into);
    if let Some(limit) = max_memory.filter(|limit| !limit.is_none()) {
        options.max_memory = bytes(limit, "max_memory")?;
    }
    let cancel = Cancel::default();
    let observer = Arc::new(Stop::new(&cancel.flag()));
    let seen = observer.clone();
    let moved = move || {
        let total = seen.total.load(Ordering::Relaxed);
        (total > 0).then(|| (seen.moved.load(Ordering::Relaxed).min(total), total))
    };
    let work = move || carry_out(&source, &target, to, &options, &observer);
    watched(py, &cancel, work, &mut tell(progress, moved))
}

fn carry_out(
    source: &str,
    target: &str,
    to: To,
    options: &ConvertOptions,
    observer: &Stop,
) -> Result<Answer, Error> {
    let opened = open_url(source, &OpenOptions::default())?;
    let conversion = plan(&opened, to, options)?;
    observer.total.store(conversion.bytes(), Ordering::Relaxed);
    if is_taken(target) {
        return Err(Error::Committed { folder: target.to_string() });
    }
    match planaria::store::local_path(target) {
        Some(_) => {
            let beside = Beside::of(target, "a conversion")?;
            let store = planaria::store::open(&beside.path.display().to_string())?;
            conversion.run(&*store, "made", observer)?;
            beside.publish("made")?;
        }
        None => {
            use planaria::store::StoreExt;
            let store = planaria::store::open(target)?;
            if !store.list("")?.is_empty() {
                return Err(Error::Committed { folder: target.to_string() });
            }
            conversion.run(&*store, "", observer).inspect_err(|_| {
                // The place was empty before.
                let _ = store.delete_all("");
            })?;
        }
    }
    let left_out = conversion.left_out().iter().map(|(key, why)| format!("{key}: {why}")).collect();
    Ok((conversion.bytes(), conversion.tensors().len(), left_out, conversion.warnings().to_vec()))
}
