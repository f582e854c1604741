//! Runs: a trainer that tells what happens through a queue, and takes requests from any thread.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use planaria::nn::models::Models;
use planaria::train::config::Sources;
use planaria::train::event::{Event, Observer};
use planaria::train::plan::{Plan, PlanOptions, model_of};
use planaria::train::{Config, Error, Outcome, Requests, Trainer};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::comm::check_process;
use crate::error::{Raise, exception, exception_with};
use crate::gil::{Cancel, blocking, compute, wait};
use crate::judge::PyJudge;
use crate::number::Size;
use crate::stream::{PyStream, Raised};

/// How many events may wait to be heard: none, so that what is asked after a step holds from the next but one on.
const WAITING: usize = 0;

impl Raise for Error {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = match self.hint() {
            Some(hint) => format!("{self}; {hint}"),
            None => self.to_string(),
        };
        match self {
            Error::UnknownKey { key, .. } | Error::Value { key, .. } | Error::Occupied { key, .. } => {
                exception_with(py, "ConfigError", text, |value| value.setattr("key", key))
            }
            Error::Syntax { what, .. } => {
                exception_with(py, "ConfigError", text, |value| value.setattr("key", key_in(&what)))
            }
            Error::Rank { source, .. } => source.raise(py),
            Error::Checkpoint(error) => error.raise(py),
            Error::Store(error) => error.raise(py),
            Error::Comm(error) => error.raise(py),
            Error::Layout(error) => error.raise(py),
            Error::Array(error) => error.raise(py),
            Error::Tensor(error) => error.raise(py),
            Error::Bug { .. } => exception(py, "InternalError", text),
            other if other.is_usage() => exception(py, "ConfigError", text),
            _ => exception(py, "RunError", text),
        }
    }
}

/// The key that a message is about, which it begins with; nothing where the text is no TOML at all.
fn key_in(what: &str) -> &str {
    what.strip_prefix('`').and_then(|rest| rest.split_once('`')).map_or("", |(key, _)| key)
}

/// Where a run's samples come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DataFrom {
    /// The sources that the configuration names.
    Sources,
    /// The program's own iterable.
    Program,
}

/// A file of a configuration that cannot be read is wrong as one.
fn unreadable(error: Error) -> Error {
    match error {
        Error::Io { path, source } => Error::Syntax { origin: path, what: source.to_string() },
        other => other,
    }
}

/// A configuration: JSON in the shape of the TOML, or the path of a file.
fn config(py: Python<'_>, text: Option<String>, path: Option<String>, data: DataFrom) -> PyResult<Config> {
    let resolved = move |sources: Sources| {
        let sources = if data == DataFrom::Program { sources.with_own_data() } else { sources };
        Ok(sources.resolve()?.config)
    };
    compute(py, move || match (text, path) {
        (Some(text), _) => {
            let syntax = |what: String| Error::Syntax { origin: "the configuration".into(), what };
            let values: toml::Table = serde_json::from_str(&text).map_err(|e| syntax(e.to_string()))?;
            let text = toml::to_string(&values).map_err(|e| syntax(e.to_string()))?;
            resolved(Sources::text("the configuration", &text))
        }
        (None, Some(path)) => resolved(Sources::file(path)).map_err(unreadable),
        (None, None) => Err(Error::Run { what: "no configuration is given".into() }),
    })
}

/// What a run will need, as JSON; nothing is started.
#[pyfunction]
pub(crate) fn plan_config(
    py: Python<'_>,
    text: Option<String>,
    path: Option<String>,
    ranks: Option<Size>,
) -> PyResult<String> {
    let config = config(py, text, path, DataFrom::Sources)?;
    let plan = blocking(py, &Cancel::default(), move || {
        let model = model_of(&config, &Models::default())?;
        let ranks = ranks.map_or_else(|| config.mesh.ranks(), |ranks| ranks.0);
        Plan::new(&config, &*model, ranks, &PlanOptions::default())
    })?;
    serde_json::to_string(&plan).map_err(|error| exception(py, "InternalError", error.to_string()))
}

/// Refuses a configuration that no run could have.
#[pyfunction]
pub(crate) fn check_config(
    py: Python<'_>,
    text: Option<String>,
    path: Option<String>,
    own_data: bool,
) -> PyResult<()> {
    let data = if own_data { DataFrom::Program } else { DataFrom::Sources };
    config(py, text, path, data).map(drop)
}

/// What happened, or the end.
enum Told {
    Event(Event),
    End(Box<Result<Outcome, Error>>),
}

/// Hands every event over and waits until it is taken, so that what a callback asks for holds from the next step on.
#[derive(Debug)]
struct Speaker(Mutex<SyncSender<Told>>);

impl Observer for Speaker {
    fn event(&self, event: &Event) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Nobody listens any more once the run was given up.
        let _ = sender.send(Told::Event(event.clone()));
    }
}

/// A run under way.
#[pyclass(frozen, name = "Run", module = "planaria._planaria")]
pub(crate) struct PyRun {
    told: Mutex<std::sync::mpsc::Receiver<Told>>,
    requests: Requests,
    /// What the program's own data raised.
    raised: Raised,
    /// What a reward function of it raised last.
    unjudged: Raised,
    folder: String,
    process: u32,
}

/// What a program has of its own: samples, and judges of responses by name.
type Own = (Option<Py<PyAny>>, Vec<(String, Py<PyAny>)>);

/// Starts a run on threads of its own, on the program's own samples and with its judges where they are given.
#[pyfunction]
#[pyo3(signature = (text, path, run, ranks, until, own=(None, Vec::new())))]
pub(crate) fn start_run(
    py: Python<'_>,
    text: Option<String>,
    path: Option<String>,
    run: Option<String>,
    ranks: Option<Size>,
    until: Option<Size>,
    own: Own,
) -> PyResult<PyRun> {
    let (data, rewards) = own;
    let (raised, unjudged) = (Raised::default(), Raised::default());
    let from = if data.is_some() { DataFrom::Program } else { DataFrom::Sources };
    let mut config = config(py, text, path, from)?;
    if let Some(run) = run {
        let path = PathBuf::from(run);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        config.name = name.to_string();
        config.log.dir = path.parent().map(PathBuf::from).unwrap_or_default();
    }
    let folder = config.run_dir().display().to_string();
    let (send, told) = sync_channel(WAITING);
    let requests = Requests::default();
    let observer = Arc::new(Speaker(Mutex::new(send.clone())));
    let mut trainer = Trainer::new(config).observer(observer).requests(requests.clone());
    if let Some(step) = until {
        trainer = trainer.until(step.0 as u64);
    }
    if let Some(samples) = data {
        trainer = trainer.stream(Arc::new(PyStream::new(samples, raised.clone())));
    }
    for (name, function) in rewards {
        trainer = trainer.reward(name, Arc::new(PyJudge::new(function, unjudged.clone())));
    }
    let work = move || {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            trainer.run(ranks.map(|ranks| ranks.0))
        }));
        let outcome = ran.unwrap_or_else(|_| Err(Error::Bug { what: "a rank was interrupted".into() }));
        let _ = send.send(Told::End(Box::new(outcome)));
    };
    let spawned = std::thread::Builder::new().name("planaria-run".into()).spawn(work);
    spawned.map_err(|error| exception(py, "InternalError", format!("cannot start a thread: {error}")))?;
    Ok(PyRun { told: Mutex::new(told), requests, raised, unjudged, folder, process: std::process::id() })
}

#[pymethods]
impl PyRun {
    /// The run's folder.
    #[getter]
    fn folder(&self) -> &str {
        &self.folder
    }

    /// Refuses a process that this run does not belong to.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        check_process(py, "Trainer", self.process)
    }

    /// Asks to finish the step, save and end.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        check_process(py, "Trainer", self.process)?;
        self.requests.stop();
        Ok(())
    }

    /// Asks for a checkpoint after this step.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        check_process(py, "Trainer", self.process)?;
        self.requests.save();
        Ok(())
    }

    /// Waits for what happens next: a kind and its figures.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<(String, Bound<'py, PyDict>)> {
        check_process(py, "Trainer", self.process)?;
        let next = |step: Duration| match self
            .told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv_timeout(step)
        {
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(None),
            Ok(told) => Some(Some(told)),
        };
        match wait(py, None, &next)?.flatten() {
            Some(Told::Event(event)) => describe(py, &event),
            Some(Told::End(outcome)) => {
                let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
                match (raised, *outcome) {
                    (Some(raised), Err(_)) => Err(raised),
                    (_, Err(error)) => Err(self.caused(py, error)),
                    (_, Ok(outcome)) => ended(py, outcome),
                }
            }
            None => Err(exception(py, "InternalError", "the run ended without an answer")),
        }
    }
}

impl PyRun {
    /// The exception of an error, with the one of a reward function that it tells of as its cause.
    fn caused(&self, py: Python<'_>, error: Error) -> PyErr {
        let text = error.to_string();
        let raised = error.raise(py);
        let cause = self.unjudged.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(cause) = cause.filter(|cause| text.contains(&cause.to_string())) {
            raised.set_cause(py, Some(cause));
        }
        raised
    }
}

fn ended(py: Python<'_>, outcome: Outcome) -> PyResult<(String, Bound<'_, PyDict>)> {
    let about = PyDict::new(py);
    about.set_item("step", outcome.step)?;
    about.set_item("loss", outcome.loss)?;
    about.set_item("losses", outcome.losses)?;
    about.set_item("stopped", outcome.stopped)?;
    about.set_item("checkpoint", outcome.checkpoint)?;
    Ok(("outcome".into(), about))
}

fn describe<'py>(py: Python<'py>, event: &Event) -> PyResult<(String, Bound<'py, PyDict>)> {
    let about = PyDict::new(py);
    let kind = match event {
        Event::Started { ranks, mesh, parameters, trained, samples, step, steps } => {
            about.set_item("ranks", ranks)?;
            about.set_item("mesh", mesh)?;
            about.set_item("parameters", parameters)?;
            about.set_item("trained", trained)?;
            about.set_item("samples", samples)?;
            about.set_item("step", step)?;
            about.set_item("steps", steps)?;
            "start"
        }
        Event::Resumed { folder, step, mesh, changed, damaged } => {
            let damaged: Vec<&str> = damaged.iter().map(|damaged| damaged.folder.as_str()).collect();
            about.set_item("damaged", damaged)?;
            about.set_item("folder", folder)?;
            about.set_item("step", step)?;
            about.set_item("mesh", mesh)?;
            about.set_item("changed", changed)?;
            "resume"
        }
        Event::Step(report) => {
            about.set_item("step", report.step)?;
            about.set_item("loss", report.loss)?;
            about.set_item("lr", report.lr)?;
            about.set_item("grad_norm", report.grad_norm)?;
            about.set_item("tokens", report.tokens)?;
            about.set_item("samples", report.samples)?;
            about.set_item("epoch", report.epoch)?;
            about.set_item("seconds", report.seconds)?;
            about.set_item("skipped", report.skipped)?;
            about.set_item("tokens_per_second", report.tokens_per_second())?;
            "step"
        }
        Event::Figures { step, values } => {
            about.set_item("step", step)?;
            for (name, value) in values {
                about.set_item(name, value)?;
            }
            "figures"
        }
        Event::Evaluated { step, loss } => {
            about.set_item("step", step)?;
            about.set_item("loss", loss)?;
            "eval"
        }
        Event::Saved { step, folder, took, .. } => {
            about.set_item("step", step)?;
            about.set_item("folder", folder)?;
            about.set_item("seconds", took.as_secs_f64())?;
            "save"
        }
        other => describe_failure(&about, other)?,
    };
    Ok((kind.into(), about))
}

/// What did not work, and did not end the run.
fn describe_failure(about: &Bound<'_, PyDict>, event: &Event) -> PyResult<&'static str> {
    Ok(match event {
        Event::SaveFailed { step, error } => {
            about.set_item("step", step)?;
            about.set_item("error", error)?;
            "save_failed"
        }
        Event::RewardFailed { step, unscored, responses, error } => {
            about.set_item("step", step)?;
            about.set_item("unscored", unscored)?;
            about.set_item("responses", responses)?;
            about.set_item("error", error)?;
            "reward_failed"
        }
        Event::RecordsFailed { error } => {
            about.set_item("error", error)?;
            "records_failed"
        }
        _ => "other",
    })
}
