//! Saving: what Python holds, written by native threads while the interpreter continues.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use planaria::aoa::{Mapping, Program};
use planaria::ckpt::convert::To;
use planaria::ckpt::{Destination, Error, Existing, Meter, SaveOptions, TrainState, save_at};
use planaria::comm::{Comm, CommExt, alone};
use planaria::store::on_threads;
use pyo3::prelude::*;
use pyo3::types::PySet;

use crate::comm::PyComm;
use crate::convert::format;
use crate::error::{Raise, exception};
use crate::gil::{Brief, Cancel, blocking, compute, wait, watched};
use crate::state::{Named, Part, bytes, counted, items, json, mapping, parts, program, tell};

/// Bytes that are worth a thread when they are copied.
const SHARE: usize = 64 << 20;

/// What a save answers: bytes, tensors, seconds.
type Answer = (u64, usize, f64);

/// A save with everything it needs, away from Python.
struct Job {
    parts: Vec<Part>,
    state: TrainState,
    world: Arc<dyn Comm>,
    url: String,
    to: To,
    overwrite: bool,
    program: Option<Program>,
    max_file_size: u64,
    meter: Arc<Meter>,
}

impl Job {
    /// Takes the values of now: free for our own memory, a copy of what others may change.
    fn snapshot(&mut self) -> Result<(), Error> {
        let bytes: usize = self.parts.iter().map(|part| part.array.numel() * part.array.dtype().size()).sum();
        let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(bytes / SHARE + 1);
        let parts = Mutex::new(self.parts.iter_mut());
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || -> Result<(), Error> {
            while let Some(part) = next() {
                part.array = part.array.snapshot()?;
            }
            Ok(())
        };
        on_threads(threads, work)
    }

    /// The mapping over these tensors.
    fn mapping(&self) -> Result<Option<Arc<Mapping>>, Error> {
        let named =
            self.parts.iter().map(|part| (part.name.clone(), part.shape().clone(), part.array.dtype()));
        self.program.as_ref().map(|program| mapping(program, named)).transpose()
    }

    /// Refuses what would be refused later: tensors whose parts do not fit, a mapping that does not, a place that is taken.
    fn check(&self) -> Result<(), Error> {
        items(&self.parts)?;
        self.mapping()?;
        self.place(&Arc::default()).check()
    }

    fn run(mut self, stop: &Arc<AtomicBool>) -> Result<Answer, Error> {
        let begun = Instant::now();
        self.state.items = items(&self.parts)?;
        let mapping = self.mapping()?;
        let meter = Some(self.meter.clone());
        let options =
            SaveOptions { max_file_size: self.max_file_size, mapping, meter, ..SaveOptions::default() };
        let saved = save_at(&*self.world, &self.place(stop), &self.state, &options)?;
        Ok((saved.bytes, saved.tensors, begun.elapsed().as_secs_f64()))
    }

    fn place(&self, stop: &Arc<AtomicBool>) -> Destination {
        let existing = if self.overwrite { Existing::Replace } else { Existing::Refuse };
        Destination { url: self.url.clone(), to: self.to, existing, stop: stop.clone() }
    }
}

/// What Python says about a save beside its tensors.
#[derive(FromPyObject)]
pub(crate) struct Given<'py> {
    /// Names that stand for other tensors.
    #[pyo3(item)]
    tied: BTreeMap<String, String>,
    /// The other leaves and the shape of the tree, as JSON.
    #[pyo3(item)]
    about: String,
    #[pyo3(item)]
    step: u64,
    #[pyo3(item)]
    url: String,
    #[pyo3(item)]
    comm: Option<Py<PyComm>>,
    #[pyo3(item)]
    format: String,
    #[pyo3(item)]
    overwrite: bool,
    #[pyo3(item)]
    mapping: Option<String>,
    #[pyo3(item)]
    max_file_size: Bound<'py, PyAny>,
}

fn job(py: Python<'_>, tensors: &[Named<'_>], given: Given<'_>) -> PyResult<Job> {
    let state = TrainState {
        step: given.step,
        extra: json(py, &given.about)?,
        tied: given.tied,
        ..TrainState::default()
    };
    let world = match &given.comm {
        Some(comm) => comm.get().inner(py)?,
        None => alone(),
    };
    let max_file_size = bytes(&given.max_file_size, "max_file_size")?;
    Ok(Job {
        parts: parts(tensors)?,
        state,
        world,
        to: format(py, &given.format)?,
        url: given.url,
        overwrite: given.overwrite,
        program: program(py, given.mapping)?,
        max_file_size,
        meter: Arc::default(),
    })
}

/// A group of the same ranks with calls of its own. Collective.
fn apart(world: &Arc<dyn Comm>) -> Result<Arc<dyn Comm>, Error> {
    Ok(world.split(&[world.ranks().to_vec()])?.unwrap_or_else(|| world.clone()))
}

/// Saves and waits.
#[pyfunction]
pub(crate) fn save_state(
    py: Python<'_>,
    tensors: Vec<Named<'_>>,
    given: Given<'_>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Answer> {
    let (job, cancel) = (job(py, &tensors, given)?, Cancel::default());
    let (stop, meter) = (cancel.flag(), job.meter.clone());
    watched(py, &cancel, move || job.run(&stop), &mut tell(progress, counted(&meter)))
}

/// How far a save in the background has come.
#[derive(Debug, Default)]
struct Progress {
    snapshot: bool,
    outcome: Option<Result<Answer, Failed>>,
}

/// An error kept for everyone who asks.
#[derive(Clone, Debug)]
enum Failed {
    Error(Box<Error>),
    Panic(String),
}

impl Raise for Failed {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Failed::Error(error) => error.raise(py),
            Failed::Panic(text) => exception(py, "InternalError", text),
        }
    }
}

/// A save in the background.
#[pyclass(frozen, name = "SaveJob", module = "planaria._planaria")]
#[derive(Debug)]
pub(crate) struct PySaveJob {
    shared: Arc<(Mutex<Progress>, Condvar)>,
    cancel: Cancel,
    meter: Arc<Meter>,
    /// Threads do not survive a fork: the process that has this one.
    process: u32,
}

/// Begins a save and returns at once. It is in `alive` before anything can interrupt: an end of the process waits for it.
#[pyfunction]
pub(crate) fn start_save<'py>(
    py: Python<'py>,
    tensors: Vec<Named<'_>>,
    given: Given<'_>,
    alive: &Bound<'py, PySet>,
) -> PyResult<Bound<'py, PySaveJob>> {
    let mut job = job(py, &tensors, given)?;
    let meter = job.meter.clone();
    if job.world.size() > 1 {
        // Several saves may be under way; each has a group of its own, so that their calls do not mix.
        let world = job.world.clone();
        job.world = blocking(py, &Cancel::default(), move || apart(&world))?;
    }
    // What a save refuses it refuses at the call.
    let job = blocking(py, &Cancel::default(), move || job.check().map(|()| job))?;
    let shared: Arc<(Mutex<Progress>, Condvar)> = Arc::default();
    let (cancel, theirs) = (Cancel::default(), shared.clone());
    let stop = cancel.flag();
    let brief = Brief::begin();
    let work = move || {
        let tell = |change: &dyn Fn(&mut Progress)| {
            change(&mut theirs.0.lock().unwrap_or_else(PoisonError::into_inner));
            theirs.1.notify_all();
        };
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut job = job;
            let taken = job.snapshot();
            drop(brief);
            taken?;
            tell(&|progress| progress.snapshot = true);
            job.run(&stop)
        }));
        let outcome = match ran {
            Ok(done) => done.map_err(|error| Failed::Error(Box::new(error))),
            Err(_) => Err(Failed::Panic("a save was interrupted; please report this as a bug".into())),
        };
        tell(&|progress| {
            progress.snapshot = true;
            progress.outcome = Some(outcome.clone());
        });
    };
    let begun = Bound::new(py, PySaveJob { shared, cancel, meter, process: std::process::id() })?;
    alive.add(&begun)?;
    let spawned = std::thread::Builder::new().name("planaria-save".into()).spawn(work);
    spawned.map_err(|error| {
        let _ = alive.discard(&begun);
        exception(py, "InternalError", format!("cannot start a thread: {error}"))
    })?;
    Ok(begun)
}

#[pymethods]
impl PySaveJob {
    /// Whether it has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        compute(py, || Ok::<_, Error>(self.lock().outcome.is_some()))
    }

    /// Bytes written, and all of them; nothing before that is known.
    fn moved(&self) -> Option<(u64, u64)> {
        self.meter.bytes()
    }

    /// Asks it to stop; true unless it has ended.
    fn cancel(&self, py: Python<'_>) -> PyResult<bool> {
        self.check_process(py)?;
        self.cancel.ask();
        compute(py, || Ok::<_, Error>(self.lock().outcome.is_none()))
    }

    /// Waits until the state may change; false when the time is over.
    fn wait_snapshot(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.wait(py, timeout, |progress| progress.snapshot)
    }

    /// Waits for the end; false when the time is over.
    fn wait_end(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.wait(py, timeout, |progress| progress.outcome.is_some())
    }

    /// What came of it; raises what went wrong.
    fn answer(&self, py: Python<'_>) -> PyResult<Option<Answer>> {
        self.check_process(py)?;
        let outcome = compute(py, || Ok::<_, Error>(self.lock().outcome.clone()))?;
        outcome.transpose().map_err(|error| error.raise(py))
    }
}

impl PySaveJob {
    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        crate::comm::check_process(py, "SaveHandle", self.process)
    }

    fn wait(&self, py: Python<'_>, timeout: Option<f64>, ready: fn(&Progress) -> bool) -> PyResult<bool> {
        self.check_process(py)?;
        let there = |step: Duration| {
            let waited = self.shared.1.wait_timeout_while(self.lock(), step, |progress| !ready(progress));
            ready(&waited.unwrap_or_else(PoisonError::into_inner).0).then_some(())
        };
        Ok(wait(py, timeout, &there)?.is_some())
    }
}
