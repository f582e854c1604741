//! Communicators: ranks as threads of this process, and collectives over whatever arrays Python has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use planaria::array::{Array, DType};
use planaria::comm::{
    AllGather, AllReduce, AllToAll, Broadcast, Comm, CommExt, Error, ReduceScatter, alone as one_rank,
    threads,
};
use planaria::layout::{Reduce, Share};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::array::PyArray;
use crate::error::{Refusal, exception};
use crate::gil::{Cancel, blocking, count_down, wait};
use crate::number::{Size, sizes};
use crate::object::{Share as Memory, array_of};

/// One rank's handle on a group of ranks. Inputs are arrays of any kind; a new array comes back.
///
/// >>> import planaria
/// >>> planaria.threads(2, lambda comm: comm.all_gather([comm.rank]).tolist())
/// [[0, 1], [0, 1]]
#[pyclass(frozen, name = "Comm", module = "planaria")]
#[derive(Debug)]
pub(crate) struct PyComm {
    comm: Arc<dyn Comm>,
    /// Peers do not follow a fork: the process this belongs to.
    process: u32,
}

/// Refuses a handle on threads or peers in a forked child.
pub(crate) fn check_process(_py: Python<'_>, class: &str, process: u32) -> PyResult<()> {
    if process == std::process::id() {
        return Ok(());
    }
    let what = format!("this {class} belongs to process {process}, which forked this one; make another here");
    Err(PyRuntimeError::new_err(what))
}

impl PyComm {
    pub(crate) fn new(comm: Arc<dyn Comm>) -> PyComm {
        PyComm { comm, process: std::process::id() }
    }

    /// The communicator, in the process that made it.
    pub(crate) fn inner(&self, py: Python<'_>) -> PyResult<Arc<dyn Comm>> {
        check_process(py, "Comm", self.process)?;
        Ok(self.comm.clone())
    }

    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&dyn Comm) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let comm = self.inner(py)?;
        blocking(py, &Cancel::default(), move || work(&*comm))
    }
}

/// Elements of one step along the first dim; a 0-d array is one step.
fn row(array: &Array) -> usize {
    array.shape().iter().skip(1).product()
}

fn rows(array: &Array) -> usize {
    array.shape().first().copied().unwrap_or(1)
}

/// The shape of `count` steps along the first dim.
fn with_rows(array: &Array, count: usize) -> Vec<usize> {
    std::iter::once(count).chain(array.shape().iter().skip(1).copied()).collect()
}

/// Every rank's number, in rank order.
fn all_counts(comm: &dyn Comm, mine: usize) -> Result<Vec<usize>, Error> {
    let recv = Array::empty(&[comm.size()], DType::I64)?;
    let send = Array::from_slice(&[mine as i64], &[1])?;
    comm.all_gather(AllGather { send, recv: recv.clone(), recv_counts: vec![1; comm.size()] })?;
    Ok(recv.to_vec::<i64>()?.into_iter().map(|n| n as usize).collect())
}

fn reduction(py: Python<'_>, op: &str) -> PyResult<Reduce> {
    op.parse().map_err(|error: planaria::layout::Error| exception(py, "ArgumentError", error.to_string()))
}

fn given(object: &Bound<'_, PyAny>) -> PyResult<Array> {
    let array = array_of(object, None, Memory::IfPossible)?;
    crate::gil::compute(object.py(), || array.contiguous())
}

#[pymethods]
impl PyComm {
    /// This rank.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        check_process(py, "Comm", self.process)?;
        Ok(self.comm.rank())
    }

    /// Number of ranks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        check_process(py, "Comm", self.process)?;
        Ok(self.comm.size())
    }

    /// Combines all ranks' arrays; every rank gets the result, in `out` where it is given.
    #[pyo3(signature = (x, op="sum", out=None))]
    fn all_reduce<'py>(
        &self,
        py: Python<'py>,
        x: &Bound<'py, PyAny>,
        op: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (send, op) = (given(x)?, reduction(py, op)?);
        let Some(out) = out.filter(|out| !out.is_none()) else {
            let shape = send.shape().clone();
            let made = self.call(py, move |comm| {
                let recv = Array::empty(&shape, send.dtype())?;
                comm.all_reduce(AllReduce { send, recv: recv.clone(), op })?;
                Ok(recv)
            })?;
            return Ok(Bound::new(py, PyArray(made))?.into_any());
        };
        let target = array_of(out, None, Memory::Always)?;
        self.call(py, move |comm| {
            if target.is_contiguous() {
                return comm.all_reduce(AllReduce { send, recv: target, op });
            }
            // Elements with gaps between them are written when all is there.
            let recv = Array::empty(target.shape(), target.dtype())?;
            comm.all_reduce(AllReduce { send, recv: recv.clone(), op })?;
            Ok(target.copy_from(&recv)?)
        })?;
        Ok(out.clone())
    }

    /// Joins all ranks' arrays along their first dim.
    fn all_gather(&self, py: Python<'_>, x: &Bound<'_, PyAny>) -> PyResult<PyArray> {
        let send = given(x)?;
        let made = self.call(py, move |comm| {
            let counts = all_counts(comm, rows(&send))?;
            let recv = Array::empty(&with_rows(&send, counts.iter().sum()), send.dtype())?;
            let recv_counts = counts.iter().map(|n| n * row(&send)).collect();
            comm.all_gather(AllGather { send, recv: recv.clone(), recv_counts })?;
            Ok(recv)
        })?;
        Ok(PyArray(made))
    }

    /// Combines all ranks' arrays and leaves each rank its part of the first dim.
    ///
    /// >>> import planaria
    /// >>> planaria.threads(2, lambda comm: comm.reduce_scatter([1.0, 2.0]).tolist())
    /// [[2.0], [4.0]]
    #[pyo3(signature = (x, op="sum"))]
    fn reduce_scatter(&self, py: Python<'_>, x: &Bound<'_, PyAny>, op: &str) -> PyResult<PyArray> {
        let (send, op) = (given(x)?, reduction(py, op)?);
        let made = self.call(py, move |comm| {
            let parts = Share::even(rows(&send), comm.size()).counts();
            let recv = Array::empty(&with_rows(&send, parts[comm.rank()]), send.dtype())?;
            let send_counts = parts.iter().map(|n| n * row(&send)).collect();
            comm.reduce_scatter(ReduceScatter { send, recv: recv.clone(), send_counts, op })?;
            Ok(recv)
        })?;
        Ok(PyArray(made))
    }

    /// The array of rank `root` on every rank; the others say its shape and dtype by theirs.
    ///
    /// >>> import planaria
    /// >>> planaria.threads(2, lambda comm: comm.broadcast([comm.rank], root=1).item())
    /// [1, 1]
    #[pyo3(signature = (x, root=Size(0)), text_signature = "($self, x, root=0)")]
    fn broadcast(&self, py: Python<'_>, x: &Bound<'_, PyAny>, root: Size) -> PyResult<PyArray> {
        let (mine, root) = (given(x)?, root.0);
        let made = self.call(py, move |comm| {
            let data = mine.copy()?;
            comm.broadcast(Broadcast { data: data.clone(), root })?;
            Ok(data)
        })?;
        Ok(PyArray(made))
    }

    /// Sends a part of the first dim to each rank and joins what comes. `send` and `recv` say how many steps of it for and from
    /// each rank; without them parts are equal, or what the others say.
    ///
    /// >>> import planaria
    /// >>> planaria.threads(2, lambda comm: comm.all_to_all([10 * comm.rank, 10 * comm.rank + 1]).tolist())
    /// [[0, 10], [1, 11]]
    #[pyo3(signature = (x, send=None, recv=None))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        send: Option<Vec<Size>>,
        recv: Option<Vec<Size>>,
    ) -> PyResult<PyArray> {
        let data = given(x)?;
        let (send, recv) = (send.map(|n| sizes(&n)), recv.map(|n| sizes(&n)));
        let made = self.call(py, move |comm| {
            let to = send.unwrap_or_else(|| Share::even(rows(&data), comm.size()).counts());
            if to.len() != comm.size() || to.iter().sum::<usize>() != rows(&data) {
                let what = format!("send is {to:?} for {} ranks and {} steps", comm.size(), rows(&data));
                return Err(Error::Argument { call: "all_to_all", what });
            }
            let from = match recv {
                Some(from) => from,
                None => told(comm, &to)?,
            };
            let out = Array::empty(&with_rows(&data, from.iter().sum()), data.dtype())?;
            let elements = |steps: &[usize]| steps.iter().map(|n| n * row(&data)).collect::<Vec<_>>();
            let (send_counts, recv_counts) = (elements(&to), elements(&from));
            comm.all_to_all(AllToAll { send: data, send_counts, recv: out.clone(), recv_counts })?;
            Ok(out)
        })?;
        Ok(PyArray(made))
    }

    /// Waits until every rank has come here, at most `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let Some(seconds) = timeout else { return self.call(py, |comm| comm.barrier()) };
        let comm = self.inner(py)?;
        blocking(py, &Cancel::default(), move || {
            let (send, done) = std::sync::mpsc::sync_channel(1);
            let waiting = comm.clone();
            std::thread::spawn(move || {
                let _ = send.send(waiting.barrier());
            });
            match done.recv_timeout(crate::gil::seconds(seconds)) {
                Ok(outcome) => outcome.map_err(|error| Refusal("CommError", error.to_string())),
                Err(_) => {
                    Err(Refusal("CommError", format!("barrier: not all ranks came within {seconds} s")))
                }
            }
        })
    }

    fn __repr__(&self) -> String {
        match self.process == std::process::id() {
            true => format!("Comm rank {} of {}", self.comm.rank(), self.comm.size()),
            false => format!("Comm of process {}", self.process),
        }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(pyo3::exceptions::PyTypeError::new_err("a Comm cannot be pickled; make one in each process"))
    }
}

/// What every rank has for this one.
fn told(comm: &dyn Comm, to: &[usize]) -> Result<Vec<usize>, Error> {
    let counts: Vec<i64> = to.iter().map(|&n| n as i64).collect();
    let (send, recv) =
        (Array::from_slice(&counts, &[counts.len()])?, Array::empty(&[counts.len()], DType::I64)?);
    let ones = vec![1; comm.size()];
    comm.all_to_all(AllToAll { send, send_counts: ones.clone(), recv: recv.clone(), recv_counts: ones })?;
    Ok(recv.to_vec::<i64>()?.into_iter().map(|n| n as usize).collect())
}

/// This process alone.
///
/// >>> import planaria
/// >>> planaria.alone().all_reduce([1.0, 2.0]).tolist()
/// [1.0, 2.0]
#[pyfunction]
pub(crate) fn alone() -> PyComm {
    PyComm::new(one_rank())
}

#[cfg(feature = "mpi")]
static SESSION: std::sync::Mutex<Option<planaria::comm::mpi::Session>> = std::sync::Mutex::new(None);

/// The process that started the session.
#[cfg(feature = "mpi")]
static STARTED_BY: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// The processes that `mpirun` started. Every one of them calls this; later calls give the same communicator.
#[cfg(feature = "mpi")]
#[pyfunction]
pub(crate) fn mpi(py: Python<'_>) -> PyResult<PyComm> {
    use planaria::comm::mpi::{Options, Session};
    let comm = blocking(py, &Cancel::default(), || {
        let mut session = SESSION.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if session.is_none() {
            *session = Some(Session::start(&Options::default())?);
            STARTED_BY.store(std::process::id(), Ordering::Release);
        }
        let started = session.as_ref().map(Session::comm);
        started.ok_or_else(|| Error::Argument { call: "mpi", what: "MPI has ended".into() })
    })?;
    Ok(PyComm::new(comm))
}

/// The processes that `mpirun` started; this build has no MPI.
#[cfg(not(feature = "mpi"))]
#[pyfunction]
pub(crate) fn mpi(py: Python<'_>) -> PyResult<PyComm> {
    let what =
        "this build of planaria has no MPI; build the wheel with `maturin build --release --features mpi`";
    Err(exception(py, "CommError", what))
}

/// Ends MPI where it was started, with the other processes.
#[cfg(feature = "mpi")]
#[pyfunction]
pub(crate) fn end_mpi(py: Python<'_>) -> PyResult<()> {
    // A forked child has no part in its parent's session, and the lock may be held for good there.
    if STARTED_BY.load(Ordering::Acquire) != std::process::id() {
        return Ok(());
    }
    blocking(py, &Cancel::default(), || {
        let session = SESSION.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        session.map_or(Ok(()), planaria::comm::mpi::Session::end)
    })
}

/// Ends MPI; this build has none.
#[cfg(not(feature = "mpi"))]
#[pyfunction]
pub(crate) fn end_mpi() {}

/// Ranks that run functions of Python's.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Counts a rank until it ends.
struct Running;

impl Running {
    fn begin() -> Running {
        RUNNING.fetch_add(1, Ordering::AcqRel);
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        count_down(&RUNNING);
    }
}

/// Called in a forked child: ranks that its parent runs are not here, and nobody waits for them.
pub(crate) fn forget_ranks() {
    RUNNING.store(0, Ordering::Release);
}

/// Waits for ranks that an interrupt has left running, as Python waits for its threads before it ends.
#[pyfunction]
pub(crate) fn end_ranks(py: Python<'_>) -> PyResult<()> {
    let ended = |step: Duration| {
        std::thread::sleep(step.min(Duration::from_millis(5)));
        (RUNNING.load(Ordering::Acquire) == 0).then_some(())
    };
    match RUNNING.load(Ordering::Acquire) {
        0 => Ok(()),
        _ => wait(py, None, &ended).map(drop),
    }
}

/// Runs `f(comm, *args)` on as many threads as ranks and gives the results in rank order. The first real exception is raised
/// again, with the note `rank k`.
///
/// >>> import planaria
/// >>> planaria.threads(4, lambda comm: comm.all_reduce(planaria.array([1.0 * comm.rank])).item())
/// [6.0, 6.0, 6.0, 6.0]
#[pyfunction]
#[pyo3(signature = (n, f, *args))]
pub(crate) fn run_threads<'py>(
    py: Python<'py>,
    n: Size,
    f: Py<PyAny>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyList>> {
    let n = n.0;
    if n == 0 || n > 4096 {
        return Err(exception(py, "ArgumentError", format!("{n} ranks cannot run; use 1 to 4096")));
    }
    let args: Vec<Py<PyAny>> = args.iter().map(Bound::unbind).collect();
    let cancel = Cancel::default();
    let ending = cancel.clone();
    let ends = blocking(py, &cancel, move || {
        Ok::<_, Refusal>(threads::run(n, |comm| {
            if comm.rank() == 0 {
                // Ranks that wait for each other learn of an interrupt at once.
                let first = comm.clone();
                ending.then(move || first.abort("interrupted"));
            }
            let _running = Running::begin();
            let ending = || Err(PyRuntimeError::new_err("the interpreter is ending"));
            let end = Python::try_attach(|py| one(py, &comm, &f, &args)).unwrap_or_else(ending);
            if let Err(error) = &end {
                // No peer waits for a rank that ended badly.
                let text = Python::try_attach(|py| error.value(py).to_string());
                comm.abort(text.as_deref().unwrap_or("the interpreter is ending"));
            }
            end
        }))
    })?;
    let first = ends.iter().position(|end| end.as_ref().is_err_and(|error| !is_comm_error(py, error)));
    let first = first.or_else(|| ends.iter().position(Result::is_err));
    let results = PyList::empty(py);
    for (rank, end) in ends.into_iter().enumerate() {
        match end {
            Ok(value) => results.append(value)?,
            Err(error) if Some(rank) == first => {
                error.value(py).call_method1("add_note", (format!("rank {rank}"),))?;
                return Err(error);
            }
            Err(_) => {}
        }
    }
    Ok(results)
}

fn one(py: Python<'_>, comm: &Arc<dyn Comm>, f: &Py<PyAny>, args: &[Py<PyAny>]) -> PyResult<Py<PyAny>> {
    let comm = Py::new(py, PyComm::new(comm.clone()))?.into_any();
    let all: Vec<Py<PyAny>> = std::iter::once(comm).chain(args.iter().map(|arg| arg.clone_ref(py))).collect();
    f.call1(py, PyTuple::new(py, all)?)
}

fn is_comm_error(py: Python<'_>, error: &PyErr) -> bool {
    let class = py.import("planaria._errors").and_then(|errors| errors.getattr("CommError"));
    class.is_ok_and(|class| error.matches(py, class).unwrap_or(false))
}
