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

/// How many threads can run at once.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// How long a rank that waits for its neighbours looks out for them before it sleeps. Where that was in vain, as on a machine that others
/// keep busy, it looks for half as long the next time; where it was not, for twice as long.
#[derive(Debug)]
pub(crate) struct Patience(Option<std::sync::atomic::AtomicU32>);

impl Patience {
    /// Bounds in microseconds: what neighbours need that come together, and some times what being woken takes.
    const BOUNDS: (u32, u32) = (4, 32);

    /// None where ranks outnumber processors: whoever is awaited may need this one. Time does not pass for the model checker.
    pub(crate) fn of(ranks: usize, processors: usize) -> Patience {
        let some = ranks <= processors && cfg!(not(feature = "shuttle"));
        Patience(some.then(|| Patience::BOUNDS.1.into()))
    }

    pub(crate) fn length(&self) -> Duration {
        let micros = self.0.as_ref().map_or(0, |micros| micros.load(std::sync::atomic::Ordering::Relaxed));
        Duration::from_micros(micros.into())
    }

    /// Says how it went.
    pub(crate) fn learn(&self, in_vain: bool) {
        let Some(micros) = &self.0 else { return };
        let now = micros.load(std::sync::atomic::Ordering::Relaxed);
        let next = if in_vain { now / 2 } else { now * 2 }.clamp(Patience::BOUNDS.0, Patience::BOUNDS.1);
        if next != now {
            micros.store(next, std::sync::atomic::Ordering::Relaxed);
        }
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
