//! Checkpoints that are looked into: names, shapes, and parts of tensors read when they are asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use planaria::array::Index;
use planaria::ckpt::formats::{Entry, Key, OpenOptions, Part, Source, open};
use planaria::ckpt::stream::Feed;
use planaria::ckpt::{Error, newest};
use planaria::store::{Store, locate};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::array::PyArray;
use crate::dtype::PyDType;
use crate::error::{Raise, exception};
use crate::gil::{Cancel, blocking, compute};
use crate::index::expression;
use crate::{display, picks};

/// An open checkpoint of any format.
#[pyclass(frozen, name = "Source", module = "planaria._planaria")]
#[derive(Debug)]
pub(crate) struct PySource {
    source: Arc<Source>,
    closed: Arc<AtomicBool>,
}

/// Opens a checkpoint; reads no tensor data.
#[pyfunction]
pub(crate) fn open_source(py: Python<'_>, url: String) -> PyResult<PySource> {
    let source = blocking(py, &Cancel::default(), move || opened(&url))?;
    Ok(PySource { source: Arc::new(source), closed: Arc::default() })
}

/// The store and the folder or file in it; the folder of a run stands for its newest checkpoint.
pub(crate) fn located(url: &str) -> Result<(Arc<dyn Store>, String), Error> {
    let (store, given) = locate(url)?;
    let at = newest(&*store, &given)?;
    Ok((store, at))
}

/// Opens what a path or URL stands for.
pub(crate) fn opened(url: &str) -> Result<Source, Error> {
    let (store, at) = located(url)?;
    open(&store, &at, &OpenOptions::default())
}

/// A name as Python sees it: parts other than the model stand before a colon.
fn key_of(name: &str) -> Key {
    let parts = [Part::MasterWeights, Part::Optimizer, Part::Ema];
    let found = parts.into_iter().find_map(|part| {
        let rest = name.strip_prefix(part.name())?.strip_prefix(':')?;
        Some(Key { part, name: rest.to_string() })
    });
    found.unwrap_or_else(|| Key::model(name))
}

#[pymethods]
impl PySource {
    /// The names of all tensors, in order.
    fn names(&self) -> Vec<String> {
        self.source.tensors.keys().map(ToString::to_string).collect()
    }

    /// Who wrote it.
    #[getter]
    fn format(&self) -> &'static str {
        self.source.format.name()
    }

    /// The files that hold tensors.
    #[getter]
    fn files(&self) -> Vec<String> {
        self.source.files.clone()
    }

    /// Bytes of all tensors.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.source.total_bytes()
    }

    /// What is not a tensor, as JSON.
    fn extra(&self) -> PyResult<String> {
        serde_json::to_string(&self.source.extra).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// A tensor by name.
    fn stored(&self, name: &str) -> PyResult<PyStored> {
        let key = key_of(name);
        if !self.source.tensors.contains_key(&key) {
            return Err(PyKeyError::new_err(name.to_string()));
        }
        Ok(PyStored { source: self.source.clone(), closed: self.closed.clone(), key })
    }

    /// From now on reads are refused.
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Release);
        py.detach(|| self.source.close_mapped());
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl PySource {
    /// The source, while it is open.
    pub(crate) fn source(&self, _py: Python<'_>) -> PyResult<Arc<Source>> {
        check_open(&self.closed)?;
        Ok(self.source.clone())
    }
}

fn check_open(closed: &AtomicBool) -> PyResult<()> {
    match closed.load(Ordering::Acquire) {
        true => Err(PyValueError::new_err("the checkpoint is closed; open it again")),
        false => Ok(()),
    }
}

/// A tensor in files: indexing it reads what is asked for and no more. A whole tensor of a local file that is cached is mapped, not
/// copied; its checksums are compared all the same, and what is written to it stays in this process.
///
/// >>> import planaria, tempfile
/// >>> place = tempfile.mkdtemp() + "/c"
/// >>> _ = planaria.save({"w": planaria.array([[1, 2], [3, 4]])}, place)
/// >>> with planaria.open(place) as ckpt:
/// ...     ckpt["w"].shape, ckpt["w"][..., 0].tolist()
/// ((2, 2), [1, 3])
#[pyclass(frozen, name = "Stored", module = "planaria")]
#[derive(Debug)]
pub(crate) struct PyStored {
    source: Arc<Source>,
    closed: Arc<AtomicBool>,
    key: Key,
}

#[pymethods]
impl PyStored {
    /// Its name.
    #[getter]
    fn name(&self) -> String {
        self.key.to_string()
    }

    /// Extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.entry(py)?;
        PyTuple::new(py, self.source.extents(&self.key).iter())
    }

    /// Element type; the name of one that arrays do not have.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let entry = self.entry(py)?;
        match self.source.foreign.get(&self.key) {
            Some(foreign) => Ok(PyString::new(py, foreign.name).into_any()),
            None => Ok(Bound::new(py, PyDType(entry.dtype))?.into_any()),
        }
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        let entry = self.entry(py)?;
        Ok(entry.shape.numel() * entry.dtype.size())
    }

    /// Number of dims.
    #[getter]
    fn ndim(&self, py: Python<'_>) -> PyResult<usize> {
        self.entry(py)?;
        Ok(self.source.extents(&self.key).len())
    }

    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<PyArray> {
        self.check_readable(py)?;
        let index = expression(index)?;
        if index.iter().any(|entry| matches!(entry, Index::Bool(_) | Index::Mask(_))) {
            let what = "masks cannot index a stored tensor; use integers, slices, None, ... or integer lists";
            return Err(exception(py, "ArrayIndexError", what));
        }
        let (source, key) = (self.source.clone(), self.key.clone());
        blocking(py, &Cancel::default(), move || picks::read(&Feed::new(&source), &key, &index)).map(PyArray)
    }

    /// All of it as an array.
    fn read(&self, py: Python<'_>) -> PyResult<PyArray> {
        self.check_readable(py)?;
        if let Some(array) = compute(py, || picks::at_once(&self.source, &self.key))? {
            return Ok(PyArray(array));
        }
        let (source, key) = (self.source.clone(), self.key.clone());
        blocking(py, &Cancel::default(), move || picks::whole(&source, &key)).map(PyArray)
    }

    /// All of it as a NumPy array.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyArray::numpy(&Bound::new(py, self.read(py)?)?)
    }

    /// All of it as a torch tensor.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PyArray::torch(&Bound::new(py, self.read(py)?)?)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.entry(py)?;
        match self.source.extents(&self.key).first() {
            Some(&len) => Ok(len),
            None => Err(pyo3::exceptions::PyTypeError::new_err("a 0-d tensor has no length")),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (dtype, shape) = (self.dtype(py)?.str()?, self.source.extents(&self.key));
        Ok(format!("Stored '{}' {}", self.key, display::header(dtype.to_cow()?, shape)))
    }
}

impl PyStored {
    /// Refuses reads of a closed checkpoint, and of elements that no array has.
    fn check_readable(&self, py: Python<'_>) -> PyResult<()> {
        check_open(&self.closed)?;
        let Some(foreign) = self.source.foreign.get(&self.key) else { return Ok(()) };
        let what = format!("tensor '{}' has dtype {}, which arrays do not have", self.key, foreign.name);
        Err(exception(py, "DTypeError", format!("{what}; convert() carries it unchanged")))
    }

    fn entry(&self, py: Python<'_>) -> PyResult<&Entry> {
        self.source.get(&self.key).map_err(|error: Error| error.raise(py))
    }
}
