//! Ranks whose letters a program of Python's carries: what goes out is taken by its threads, what comes is left by them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use planaria::array::Array;
use planaria::comm::letters::{Connection, Depot, Options};
use pyo3::prelude::*;

use crate::array::PyArray;
use crate::comm::{PyComm, check_process};
use crate::error::Raise;
use crate::gil::{Cancel, blocking, compute, seconds};

/// Letters of one rank on their way out and in.
#[pyclass(frozen, name = "Depot", module = "planaria._planaria")]
#[derive(Debug)]
pub(crate) struct PyDepot {
    depot: Arc<Depot>,
    connection: Mutex<Option<Connection>>,
    comm: Py<PyComm>,
    process: u32,
}

impl Drop for PyDepot {
    fn drop(&mut self) {
        // A forked child has none of the threads that closing a connection waits for.
        if self.process != std::process::id() {
            let connection = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(connection.take());
        }
    }
}

/// The longest that `take` waits.
const WAIT: Duration = Duration::from_millis(200);

#[pymethods]
impl PyDepot {
    /// The depot of one rank of `size`; calls wait `timeout` seconds for the others.
    #[new]
    fn new(py: Python<'_>, rank: usize, size: usize, timeout: f64) -> PyResult<PyDepot> {
        let options = Options { timeout: seconds(timeout), ..Options::default() };
        let depot = Depot::new(rank, size).map_err(|error| error.raise(py))?;
        let connection = depot.connect(&options).map_err(|error| error.raise(py))?;
        let comm = Py::new(py, PyComm::new(connection.comm()))?;
        let (connection, process) = (Mutex::new(Some(connection)), std::process::id());
        Ok(PyDepot { depot, connection, comm, process })
    }

    /// The communicator over it.
    #[getter]
    fn comm(&self, py: Python<'_>) -> Py<PyComm> {
        self.comm.clone_ref(py)
    }

    /// The next parcel to carry: who gets it, its tag, and its bytes. `None` when none came for a while.
    fn take(&self, py: Python<'_>) -> PyResult<Option<(usize, u32, PyArray)>> {
        check_process(py, "Comm", self.process)?;
        let depot = self.depot.clone();
        blocking(py, &Cancel::default(), move || {
            let Some(parcel) = depot.take(WAIT) else { return Ok(None) };
            let bytes = Array::from_slice(parcel.bytes(), &[parcel.bytes().len()])?;
            Ok::<_, planaria::array::Error>(Some((parcel.to, parcel.tag, PyArray(bytes))))
        })
    }

    /// Leaves the bytes that came from a rank.
    fn deliver(&self, py: Python<'_>, source: usize, tag: u32, bytes: &PyArray) -> PyResult<()> {
        let bytes = bytes.0.clone();
        compute(py, || self.depot.deliver(source, tag, &bytes))
    }

    /// Says that nothing can be carried any more.
    fn fail(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        compute(py, || {
            self.depot.fail(reason);
            Ok::<_, planaria::comm::Error>(())
        })
    }

    /// Whether the communicator is gone and nothing is left to carry.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        compute(py, || Ok::<_, planaria::comm::Error>(self.depot.is_closed()))
    }

    /// Gives letters on their way out a second, then ends.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_process(py, "Comm", self.process)?;
        compute(py, || {
            drop(self.connection.lock().unwrap_or_else(PoisonError::into_inner).take());
            Ok::<_, planaria::comm::Error>(())
        })
    }
}
