//! The two doors out of the interpreter: everything that takes time goes through one of them, detached.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use planaria::array::Threads;
use pyo3::prelude::*;

use crate::error::{Raise, exception};

/// How long a wait lasts before signals are looked at.
const TICK: Duration = Duration::from_millis(50);

/// How long an interrupted call may take to clean up before the interrupt is raised all the same.
const GRACE: Duration = Duration::from_millis(800);

/// Runs `work` on this thread without the interpreter.
pub(crate) fn compute<T: Send, E: Raise + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    settle(py, py.detach(|| catch_unwind(AssertUnwindSafe(|| in_this_process(work)))))
}

/// Says that a blocking call should end early.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

static MAIN: OnceLock<ThreadId> = OnceLock::new();
static HOME: OnceLock<u32> = OnceLock::new();
/// The threads of a forked child, which has none of its parent's.
static CHILD: Mutex<Option<(u32, Arc<Threads>)>> = Mutex::new(None);

/// Called once, where the module is imported.
pub(crate) fn remember_main_thread() {
    MAIN.get_or_init(|| thread::current().id());
    HOME.get_or_init(process::id);
}

/// Runs `work` with threads that this process has: those that kernels find by themselves, or in a forked child a pool of
/// its own.
fn in_this_process<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let here = process::id();
    if HOME.get().is_none_or(|home| *home == here) {
        return work();
    }
    let mut child = CHILD.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = match &*child {
        Some((process, pool)) if *process == here => Some(pool.clone()),
        _ => Threads::new(thread::available_parallelism().map_or(1, |n| n.get())).ok().map(Arc::new),
    };
    if let Some(pool) = &pool {
        *child = Some((here, pool.clone()));
    }
    drop(child);
    match pool {
        Some(pool) => pool.run(work),
        None => work(),
    }
}

/// Runs `work` on a thread of its own and waits without the interpreter, looking for signals in between. An interrupt
/// asks `cancel`, leaves the work a moment to clean up, and is raised.
pub(crate) fn blocking<T: Send + 'static, E: Raise + Send + 'static>(
    py: Python<'_>,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    if MAIN.get().is_some_and(|main| *main != thread::current().id()) {
        // Python handles signals on its main thread only, so here there is nothing to look for.
        return compute(py, work);
    }
    watched(py, cancel, work, &mut |_| Ok(()))
}

/// The same, and calls `watch` from time to time while it waits; an exception there ends the work as an interrupt does.
pub(crate) fn watched<T: Send + 'static, E: Raise + Send + 'static>(
    py: Python<'_>,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
    watch: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (send, mut done) = sync_channel(1);
    let run = move || {
        let _ = send.send(catch_unwind(AssertUnwindSafe(|| in_this_process(work))));
    };
    thread::Builder::new()
        .name("planaria-call".into())
        .spawn(run)
        .map_err(|error| exception(py, "InternalError", format!("cannot start a thread: {error}")))?;
    let mut interrupt: Option<(PyErr, Instant)> = None;
    loop {
        let waiting = &mut done;
        match (py.detach(move || waiting.recv_timeout(TICK)), &interrupt) {
            (Ok(outcome), None) => return settle(py, outcome),
            (Err(RecvTimeoutError::Disconnected), None) => {
                return Err(exception(py, "InternalError", "a call ended without an answer"));
            }
            (Err(RecvTimeoutError::Timeout), None) => {
                if let Err(error) = py.check_signals().and_then(|()| watch(py)) {
                    cancel.ask();
                    interrupt = Some((error, Instant::now()));
                }
            }
            (Err(RecvTimeoutError::Timeout), Some((_, since))) if since.elapsed() < GRACE => {}
            (_, Some(_)) => break,
        }
    }
    match interrupt {
        Some((error, _)) => Err(error),
        None => Err(exception(py, "InternalError", "a wait ended without a reason")),
    }
}

fn settle<T, E: Raise>(py: Python<'_>, outcome: Result<Result<T, E>, Box<dyn Any + Send>>) -> PyResult<T> {
    match outcome {
        Ok(result) => result.map_err(|error| error.raise(py)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "a panic without a message".into());
            Err(exception(py, "InternalError", format!("{text}; please report this as a bug")))
        }
    }
}
