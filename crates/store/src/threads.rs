//! The same work on several threads at once.

use std::panic::resume_unwind;
use std::thread;

/// Runs `work` on this thread and on as many others as make up `count`; the first error of any of them. Each call takes what is left
/// to do until nothing is.
pub fn on_threads<E: Send>(count: usize, work: impl Fn() -> Result<(), E> + Sync) -> Result<(), E> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..count).map(|_| scope.spawn(&work)).collect();
        let mine = work();
        let done = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done.fold(mine, |before, next| before.and(next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn all_is_done_once_and_an_error_of_any_thread_is_the_answer() {
        for count in [0, 1, 4] {
            let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let work = |bad: usize| {
                loop {
                    match next.fetch_add(1, Relaxed) {
                        at if at == bad => return Err(at),
                        at if at >= 100 => return Ok(()),
                        at => drop(sum.fetch_add(at, Relaxed)),
                    }
                }
            };
            assert_eq!(on_threads(count, || work(usize::MAX)), Ok(()));
            assert_eq!(sum.load(Relaxed), 99 * 50);
            next.store(0, Relaxed);
            assert_eq!(on_threads(count, || work(70)), Err(70));
        }
    }
}
