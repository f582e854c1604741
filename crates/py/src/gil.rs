//! The two doors out of the interpreter: everything that takes time goes through one of them, detached.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use planaria::array::Threads;
use pyo3::prelude::*;

use crate::error::{Raise, exception};

/// How long a wait lasts before signals are looked at.
const TICK: Duration = Duration::from_millis(50);

/// How long an interrupted call may take to clean up before the interrupt is raised all the same.
const GRACE: Duration = Duration::from_millis(600);

/// Runs `work` on this thread without the interpreter.
pub(crate) fn compute<T: Send, E: Raise + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    let brief = Brief::begin();
    let ended = detached(py, work);
    drop(brief);
    ended
}

fn detached<T: Send, E: Raise + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    settle(py, py.detach(|| catch_unwind(AssertUnwindSafe(|| in_this_process(work)))))
}

/// Short work under way, which may have arrays locked.
static BRIEF: AtomicUsize = AtomicUsize::new(0);

/// How long a fork waits for short work: what is locked then stays locked in the child.
const BEFORE_FORK: Duration = Duration::from_secs(2);

/// Short work that a fork should not cut; it ends where this is dropped.
#[derive(Debug)]
pub(crate) struct Brief(());

impl Brief {
    pub(crate) fn begin() -> Brief {
        BRIEF.fetch_add(1, Ordering::AcqRel);
        Brief(())
    }
}

impl Drop for Brief {
    fn drop(&mut self) {
        count_down(&BRIEF);
    }
}

/// One less; never below nothing, which is where a fork sets it in the child.
pub(crate) fn count_down(counter: &AtomicUsize) {
    let _ = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
}

/// Called before a fork: waits until no other thread is in the middle of an array, for a moment.
pub(crate) fn before_fork(py: Python<'_>) {
    let end = Instant::now() + BEFORE_FORK;
    // While this thread has the interpreter no other begins such work.
    while BRIEF.load(Ordering::Acquire) > 0 && Instant::now() < end {
        py.detach(|| thread::sleep(Duration::from_millis(1)));
    }
}

/// What is done at once when a call should end early.
type Ending = Box<dyn FnOnce() + Send>;

/// Says that a blocking call should end early.
#[derive(Clone, Default)]
pub(crate) struct Cancel {
    asked: Arc<AtomicBool>,
    endings: Arc<Mutex<Vec<Ending>>>,
}

impl Cancel {
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        let endings = std::mem::take(&mut *self.endings.lock().unwrap_or_else(PoisonError::into_inner));
        endings.into_iter().for_each(|ending| ending());
    }

    /// Has something done when the call is asked to end; never, when it was asked before.
    pub(crate) fn then(&self, ending: impl FnOnce() + Send + 'static) {
        self.endings.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(ending));
    }

    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancel({})", self.asked.load(Ordering::Acquire))
    }
}

/// How many forks lie between the process that imported this module and this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Pools of forked children that no call uses now; a child has none of its parent's threads. Each generation has a place of
/// its own: one that a fork found locked stays so.
static IDLE: [Mutex<Vec<Threads>>; 32] = [const { Mutex::new(Vec::new()) }; 32];

/// Called in a forked child, which has none of the other threads.
pub(crate) fn enter_child() {
    BRIEF.store(0, Ordering::Release);
    crate::comm::forget_ranks();
    FORKS.fetch_add(1, Ordering::AcqRel);
}

/// Whether Python handles signals on this thread.
fn is_main_thread(py: Python<'_>) -> bool {
    let asked = || -> PyResult<bool> {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?;
        main.eq(threading.call_method0("get_ident")?)
    };
    asked().unwrap_or(true)
}

/// Runs `work` with threads that this process has: those that kernels find by themselves, or in a forked child a pool of
/// its own.
fn in_this_process<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let forks = FORKS.load(Ordering::Acquire);
    if forks == 0 {
        return work();
    }
    // Calls wait for each other where ranks are threads, so none shares its threads with another.
    let idle = IDLE.get(forks - 1);
    let kept = idle.and_then(|idle| idle.lock().unwrap_or_else(PoisonError::into_inner).pop());
    let new = || Threads::new(thread::available_parallelism().map_or(1, |n| n.get())).ok();
    let Some(pool) = kept.or_else(new) else { return work() };
    let answer = pool.run(work);
    if let Some(idle) = idle {
        idle.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
    }
    answer
}

/// A number of Python's as a time; what is not a time is none at all.
pub(crate) fn seconds(count: f64) -> Duration {
    Duration::from_secs_f64(if count.is_nan() { 0.0 } else { count.clamp(0.0, 1e9) })
}

/// Waits in short steps until `ready` answers, or `timeout` is over; looks for signals in between. `ready` waits for as long
/// as it is told, without the interpreter.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    ready: &(dyn Fn(Duration) -> Option<T> + Sync),
) -> PyResult<Option<T>> {
    let end = timeout.map(|timeout| Instant::now() + seconds(timeout));
    loop {
        let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
        let answer = py.detach(|| ready(left.min(TICK)));
        if answer.is_some() || left.is_zero() {
            return Ok(answer);
        }
        py.check_signals()?;
    }
}

/// Runs `work` on a thread of its own and waits without the interpreter, looking for signals in between. An interrupt
/// asks `cancel`, leaves the work a moment to clean up, and is raised.
pub(crate) fn blocking<T: Send + 'static, E: Raise + Send + 'static>(
    py: Python<'_>,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread(py) {
        // There is nothing to look for.
        return detached(py, work);
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
                    py.detach(|| cancel.ask());
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
