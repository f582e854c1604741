//! Conversions between formats, and how far they have come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use planaria::ckpt::convert::{Conversion, ConvertOptions, Observer, To, plan};
use planaria::ckpt::{Error, Existing, OutputFolder};
use pyo3::prelude::*;

use crate::dtype::optional;
use crate::error::{Raise, exception};
use crate::gil::{Cancel, watched};
use crate::open::opened;
use crate::state::{bytes, program, tell};

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
#[derive(Debug)]
struct Stop {
    stop: Arc<AtomicBool>,
    moved: AtomicU64,
    total: AtomicU64,
}

impl Stop {
    fn new(stop: &Arc<AtomicBool>) -> Stop {
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
pub(crate) type Answer = (u64, usize, Vec<String>, Vec<String>);

/// How a conversion is asked for beside what it reads.
#[derive(FromPyObject)]
pub(crate) struct Asked<'py> {
    #[pyo3(item)]
    target: String,
    #[pyo3(item)]
    to: String,
    #[pyo3(item)]
    max_memory: Option<Bound<'py, PyAny>>,
    #[pyo3(item)]
    max_file_size: Option<Bound<'py, PyAny>>,
    #[pyo3(item)]
    overwrite: bool,
    #[pyo3(item)]
    progress: Option<Py<PyAny>>,
}

/// A conversion to be carried out on a thread of its own, and what watches it.
pub(crate) struct Carrier {
    pub(crate) to: To,
    pub(crate) options: ConvertOptions,
    target: String,
    existing: Existing,
    observer: Arc<Stop>,
    cancel: Cancel,
    progress: Option<Py<PyAny>>,
}

impl Asked<'_> {
    pub(crate) fn carrier(self, py: Python<'_>) -> PyResult<Carrier> {
        let (to, mut options) = (format(py, &self.to)?, ConvertOptions::default());
        if let Some(limit) = &self.max_memory {
            options.max_memory = bytes(limit, "max_memory")?;
        }
        if let Some(limit) = &self.max_file_size {
            options.max_shard_size = bytes(limit, "max_file_size")?;
        }
        let cancel = Cancel::default();
        let observer = Arc::new(Stop::new(&cancel.flag()));
        let existing = if self.overwrite { Existing::Replace } else { Existing::Refuse };
        Ok(Carrier { to, options, target: self.target, existing, observer, cancel, progress: self.progress })
    }
}

impl Carrier {
    /// Runs `work`, which is handed what writes a conversion.
    pub(crate) fn run<E: Raise + From<Error> + Send + 'static>(
        self,
        py: Python<'_>,
        work: impl FnOnce(&Writer, To, ConvertOptions) -> Result<Answer, E> + Send + 'static,
    ) -> PyResult<Answer> {
        let seen = self.observer.clone();
        let moved = move || {
            let total = seen.total.load(Ordering::Relaxed);
            (total > 0).then(|| (seen.moved.load(Ordering::Relaxed).min(total), total))
        };
        let writer = Writer { target: self.target, existing: self.existing, observer: self.observer };
        let (to, options) = (self.to, self.options);
        watched(py, &self.cancel, move || work(&writer, to, options), &mut tell(self.progress, moved))
    }
}

/// Writes a conversion to its place, which gets it whole or not at all.
pub(crate) struct Writer {
    target: String,
    existing: Existing,
    observer: Arc<Stop>,
}

impl Writer {
    pub(crate) fn write<'a>(
        &self,
        sources: impl IntoIterator<Item = &'a str>,
        conversion: &'a Conversion<'_>,
    ) -> Result<Answer, Error> {
        self.observer.total.store(conversion.bytes(), Ordering::Relaxed);
        let carried = conversion.carried().iter().map(String::as_str);
        let names = conversion.files().map(|(name, _)| name).chain(carried);
        let folder = OutputFolder::check(sources, &self.target, self.existing, names)?;
        conversion.write_to(&folder, None, &*self.observer, None)?;
        let left_out = conversion.left_out().iter().map(|(key, why)| format!("{key}: {why}")).collect();
        let warnings =
            conversion.warnings().iter().cloned().chain(conversion.out_of_range_warning()).collect();
        Ok((conversion.bytes(), conversion.tensors().len(), left_out, warnings))
    }
}

/// Converts a checkpoint; the target appears whole or not at all.
#[pyfunction]
pub(crate) fn convert_checkpoint(
    py: Python<'_>,
    source: String,
    dtype: Option<&Bound<'_, PyAny>>,
    mapping: Option<String>,
    asked: Asked<'_>,
) -> PyResult<Answer> {
    let mut carrier = asked.carrier(py)?;
    carrier.options.dtype = optional(dtype)?;
    carrier.options.mapping = program(py, mapping)?.map(Into::into);
    carrier.run(py, move |writer, to, options| {
        let from = opened(&source)?;
        writer.write([&*source], &plan(&from, to, &options)?)
    })
}
