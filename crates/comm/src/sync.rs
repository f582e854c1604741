//! The one door to locks, conditions and threads, so that model checking can replace them.

use std::sync::PoisonError;
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Locks; a panic elsewhere leaves our state consistent because it is only changed in whole steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change, at most `limit`.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    match changed.wait_timeout(guard, limit) {
        Ok((guard, _)) => guard,
        Err(poisoned) => poisoned.into_inner().0,
    }
}

/// Starts a thread that nobody joins. Where the system refuses one, whoever waits does the work instead.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let _ = std::thread::Builder::new().name(name.into()).spawn(work);
}
