//! The one door to locks, conditions, atomics and threads: with the feature `shuttle`, a model checker takes
//! their place.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Locks; a panic elsewhere leaves our state consistent because it is only changed in whole steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change, at most `limit`. The model checker never times out: there, a wait without end is found.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    match changed.wait_timeout(guard, limit) {
        Ok((guard, _)) => guard,
        Err(poisoned) => poisoned.into_inner().0,
    }
}

/// Starts a thread that nobody joins. Where the system refuses one, whoever waits does the work instead.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().name(name.into()).spawn(work);
}

#[cfg(feature = "shuttle")]
pub(crate) fn spawn(_name: &str, work: impl FnOnce() + Send + 'static) {
    shuttle::thread::spawn(work);
}
