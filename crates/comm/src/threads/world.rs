//! What all groups of one world share: its size, its limits, and its first failure.

use super::group::Group;
use super::op::Op;
use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, Patience, lock, processors, spawn, wait};
use planaria_layout::Rank;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The ranks of one launch.
#[derive(Debug)]
pub(super) struct World {
    pub(super) timeout: Duration,
    /// How many threads can run at once.
    pub(super) processors: usize,
    /// How long a rank looks out for the others before it sleeps.
    pub(super) patience: Patience,
    failure: OnceLock<Error>,
    /// Ranks that returned from their work.
    left: Vec<AtomicBool>,
    groups: Mutex<Vec<Weak<Group>>>,
    /// Groups by their list of ranks, until all ranks have left.
    named: Mutex<HashMap<Vec<Rank>, Arc<Group>>>,
    helpers: Arc<Crew>,
}

impl World {
    pub(super) fn new(ranks: usize, timeout: Duration, helpers: usize) -> Arc<World> {
        let processors = processors();
        Arc::new(World {
            timeout,
            processors,
            patience: Patience::of(ranks, processors),
            failure: OnceLock::new(),
            left: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            groups: Mutex::new(Vec::new()),
            named: Mutex::new(HashMap::new()),
            helpers: Arc::new(Crew {
                most: helpers,
                processors,
                queue: Mutex::default(),
                changed: Condvar::new(),
            }),
        })
    }

    pub(super) fn register(&self, group: &Arc<Group>) {
        let mut groups = lock(&self.groups);
        groups.retain(|g| g.strong_count() > 0);
        groups.push(Arc::downgrade(group));
    }

    /// The group of this list, if someone asked for it before.
    pub(super) fn known(&self, ranks: &[Rank]) -> Option<Arc<Group>> {
        lock(&self.named).get(ranks).cloned()
    }

    /// Keeps a group under its list; the one that was there first stays.
    pub(super) fn name(&self, group: Arc<Group>) -> Arc<Group> {
        lock(&self.named).entry(group.ranks.clone()).or_insert(group).clone()
    }

    /// An error once any rank failed.
    pub(super) fn live(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |e| Err(e.clone()))
    }

    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// The first failure counts; everyone who waits is woken. No lock may be held here.
    pub(super) fn fail(&self, error: Error) {
        if self.failure.set(error).is_ok() {
            self.wake();
        }
    }

    /// A rank returned: those who still need it are woken to find out.
    pub(super) fn leave(&self, rank: Rank) {
        self.left[rank].store(true, Ordering::SeqCst);
        if self.left.iter().all(|left| left.load(Ordering::SeqCst)) {
            // Groups hold their world; nobody asks for them any more.
            let named = std::mem::take(&mut *lock(&self.named));
            drop(named);
        }
        self.wake();
    }

    pub(super) fn has_left(&self, rank: Rank) -> bool {
        self.left[rank].load(Ordering::SeqCst)
    }

    fn wake(&self) {
        let groups: Vec<_> = lock(&self.groups).iter().filter_map(Weak::upgrade).collect();
        groups.iter().for_each(|group| group.wake());
    }

    /// Has a helper thread finish work that nobody waits for yet.
    pub(super) fn help_with(&self, op: Arc<Op>) {
        let mut queue = lock(&self.helpers.queue);
        if queue.stop {
            return;
        }
        queue.ops.push_back(op);
        if queue.idle == 0 && queue.started < self.helpers.most {
            queue.started += 1;
            let helpers = self.helpers.clone();
            spawn("planaria-comm", move || helpers.serve());
        }
        drop(queue);
        self.helpers.changed.notify_one();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        lock(&self.helpers.queue).stop = true;
        self.helpers.changed.notify_all();
    }
}

/// Threads that move bytes while ranks compute. They start when first needed and end with the world.
#[derive(Debug)]
struct Crew {
    most: usize,
    processors: usize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    ops: VecDeque<Arc<Op>>,
    started: usize,
    idle: usize,
    stop: bool,
}

impl Crew {
    fn serve(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(op) = queue.ops.pop_front() {
                drop(queue);
                op.help(0, self.processors);
                drop(op);
                queue = lock(&self.queue);
            } else if queue.stop {
                return;
            } else {
                queue.idle += 1;
                queue = wait(&self.changed, queue, Duration::from_secs(3600));
                queue.idle -= 1;
            }
        }
    }
}
