//! Starting thread ranks, and what becomes of their panics and errors.

use super::engine::ThreadComm;
use super::group::Group;
use super::world::World;
use crate::comm::Comm;
use crate::error::{Error, Result};
use planaria_layout::Rank;
use std::any::Any;
use std::cell::RefCell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, resume_unwind};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

/// How thread ranks are started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of ranks.
    pub ranks: usize,
    /// How long a call waits for the other ranks before it fails everywhere.
    pub timeout: Duration,
    /// Most threads that move bytes for started calls while the ranks compute.
    pub helpers: usize,
    /// Bytes of each rank's stack.
    pub stack: usize,
}

impl Options {
    /// The usual options: calls wait ten minutes, half the processors may help.
    pub fn new(ranks: usize) -> Options {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let helpers = (processors / 2).clamp(1, ranks.max(1));
        Options { ranks, timeout: Duration::from_secs(600), helpers, stack: 8 << 20 }
    }

    /// The same with another limit.
    pub fn timeout(self, timeout: Duration) -> Options {
        Options { timeout, ..self }
    }
}

/// Runs `work` on as many threads as ranks and gives their results in rank order. When a rank panics, the calls
/// of all others fail, and the panic goes on here once all have ended. That holds even for a panic which the rank
/// catches itself: peers learn of it before it is printed.
pub fn run<R: Send>(ranks: usize, work: impl Fn(Arc<dyn Comm>) -> R + Sync) -> Vec<R> {
    let (world, ends) = launch(&Options::new(ranks), |comm, _| work(comm));
    let origin = origin(&world);
    let (mut results, mut panics) = (Vec::with_capacity(ranks), Vec::new());
    for (rank, end) in ends.into_iter().enumerate() {
        match end {
            Ok(result) => results.push(result),
            Err(panic) => panics.push((Some(rank) != origin, panic)),
        }
    }
    // The rank that failed first knows why; the others only followed.
    panics.sort_by_key(|(followed, _)| *followed);
    match panics.into_iter().next() {
        Some((_, panic)) => resume_unwind(panic),
        None => results,
    }
}

/// Like [`run`] for work that can fail: the first rank's error or panic stops all others within milliseconds, and
/// is what this returns.
pub fn try_run<R: Send, E: Display + Send>(
    options: &Options,
    work: impl Fn(Arc<dyn Comm>) -> std::result::Result<R, E> + Sync,
) -> Result<Vec<R>> {
    let (world, ends) = launch(options, |comm, world| {
        let rank = comm.ranks()[comm.rank()];
        let failed = |e: E| world.fail(Error::Aborted { rank, reason: e.to_string() });
        work(comm).map_err(failed).ok()
    });
    world.live()?;
    Ok(ends.into_iter().filter_map(|end| end.ok().flatten()).collect())
}

/// The communicators of a new world, one for each rank, for callers with threads of their own. A rank that gives
/// up must say so with [`Comm::abort`].
pub fn create(options: &Options) -> Vec<Arc<dyn Comm>> {
    let (_, group) = world(options);
    let comm = |rank| Arc::new(ThreadComm::new(group.clone(), rank)) as Arc<dyn Comm>;
    (0..options.ranks).map(comm).collect()
}

fn world(options: &Options) -> (Arc<World>, Arc<Group>) {
    let world = World::new(options.ranks, options.timeout, options.helpers);
    let group = Group::new(world.clone(), (0..options.ranks).collect());
    (world, group)
}

type End<R> = std::result::Result<R, Box<dyn Any + Send>>;

fn launch<R: Send>(
    options: &Options,
    work: impl Fn(Arc<dyn Comm>, &World) -> R + Sync,
) -> (Arc<World>, Vec<End<R>>) {
    listen_to_panics();
    let (world, group) = world(options);
    let rank_main = |rank: Rank| {
        CURRENT.with(|current| *current.borrow_mut() = Some((Arc::downgrade(&world), rank)));
        let comm = Arc::new(ThreadComm::new(group.clone(), rank));
        let end = catch_unwind(AssertUnwindSafe(|| work(comm, &world)));
        match &end {
            Ok(_) => world.leave(rank),
            Err(panic) => world.fail(panicked(rank, panic.as_ref())),
        }
        end
    };
    let ends = std::thread::scope(|scope| {
        let start = |rank| {
            let thread = std::thread::Builder::new().name(format!("rank-{rank}")).stack_size(options.stack);
            let main = &rank_main;
            thread.spawn_scoped(scope, move || main(rank)).map_err(|e| {
                let reason = format!("the system refuses a thread: {e}");
                world.fail(Error::Aborted { rank, reason: reason.clone() });
                Box::new(reason) as Box<dyn Any + Send>
            })
        };
        let threads: Vec<_> = (0..options.ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.and_then(|t| t.join().and_then(|end| end))).collect()
    });
    (world, ends)
}

/// The rank whose failure was first.
fn origin(world: &World) -> Option<Rank> {
    match world.failure() {
        Some(Error::Aborted { rank, .. } | Error::Left { rank, .. }) => Some(*rank),
        _ => None,
    }
}

thread_local! {
    /// The rank this thread is.
    static CURRENT: RefCell<Option<(Weak<World>, Rank)>> = const { RefCell::new(None) };
}

/// Tells the peers of a panic before anything else is done about it: printing a backtrace takes hundreds of
/// milliseconds.
fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            let current = CURRENT.try_with(|c| c.try_borrow().ok().and_then(|c| c.clone())).ok().flatten();
            if let Some((world, rank)) = current.and_then(|(world, rank)| Some((world.upgrade()?, rank))) {
                world.fail(panicked(rank, info.payload()));
            }
            previous(info);
        }));
    });
}

fn panicked(rank: Rank, panic: &(dyn Any + Send)) -> Error {
    Error::Aborted { rank, reason: format!("panic: {}", crate::letters::words(panic)) }
}
