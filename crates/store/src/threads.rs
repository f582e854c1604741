//! The same work on several threads at once, and threads that give way to others.
#![allow(unsafe_code)]

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

/// How much threads that give way are behind others that want the same core: they get about a tenth of what those get.
const NICE: libc::c_int = 10;

/// Lets this thread, and those it starts, have what others leave of the processors. There is no way back.
pub fn give_way() {
    // SAFETY: numbers only; on Linux both calls are about the calling thread. A refusal changes nothing, and loses only speed.
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) < NICE {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn threads_of_one_that_gives_way_give_way_too() {
        // SAFETY: two numbers.
        let mine = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = mine();
        let found = thread::spawn(move || {
            give_way();
            (mine(), thread::spawn(mine).join().unwrap())
        });
        assert_eq!(found.join().unwrap(), (NICE.max(before), NICE.max(before)));
        assert_eq!(mine(), before);
    }

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
