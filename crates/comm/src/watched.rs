//! A communicator that tells what it waits for, so that somebody outside can say who keeps whom waiting.

use crate::call::Call;
use crate::comm::{Comm, CommExt, Pending, Wait};
use crate::error::Result;
use planaria_layout::Rank;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// A call that a rank has come to. All ranks that make the same one tell the same, except for `rank`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The call.
    pub call: &'static str,
    /// World ranks that it needs.
    pub ranks: Vec<Rank>,
    /// Which group of these ranks.
    pub lane: String,
    /// Its number among the collectives of the group, from 0; the tag of a message.
    pub number: u64,
}

/// Hears of calls. What it does is done while the call is made, so it should be quick.
pub trait Watch: Send + Sync + Debug {
    /// This rank has come to a call, and may wait in it. The answer is given back at its end.
    fn came(&self, visit: Visit) -> u64;

    /// The call with this answer has ended.
    fn left(&self, visit: u64);
}

/// Wraps a communicator, and all made from it, so that `watch` hears of every call.
pub fn watched(comm: Arc<dyn Comm>, watch: Arc<dyn Watch>) -> Arc<dyn Comm> {
    let shared = Arc::new(Shared { watch, named: Mutex::default() });
    Arc::new(Watched { comm, shared, lane: "world".into(), calls: Arc::default(), splits: AtomicU64::new(0) })
}

#[derive(Debug)]
struct Shared {
    watch: Arc<dyn Watch>,
    /// How many calls groups known by their list of ranks have made.
    named: Mutex<HashMap<Vec<Rank>, Arc<AtomicU64>>>,
}

#[derive(Debug)]
struct Watched {
    comm: Arc<dyn Comm>,
    shared: Arc<Shared>,
    lane: String,
    calls: Arc<AtomicU64>,
    splits: AtomicU64,
}

impl Watched {
    fn visit(&self, call: &'static str) -> Visit {
        let (ranks, lane) = (self.comm.ranks().to_vec(), self.lane.clone());
        Visit { call, ranks, lane, number: self.calls.fetch_add(1, Relaxed) }
    }

    fn of(&self, call: &Call) -> Visit {
        let name = call.name();
        let message = |peer: usize, tag: u32| {
            let ranks = [self.comm.world_rank(), self.comm.ranks().get(peer).copied().unwrap_or(peer)];
            Visit { call: name, ranks: ranks.to_vec(), lane: self.lane.clone(), number: tag.into() }
        };
        match call {
            Call::Send(c) => message(c.to, c.tag),
            Call::Recv(c) => message(c.from, c.tag),
            _ => self.visit(name),
        }
    }

    fn during<R>(&self, visit: Visit, work: impl FnOnce() -> R) -> R {
        let visit = self.shared.watch.came(visit);
        let end = work();
        self.shared.watch.left(visit);
        end
    }
}

/// A started call, which is waited in once somebody waits.
#[derive(Debug)]
struct Later {
    call: Pending,
    visit: Visit,
    watch: Arc<dyn Watch>,
}

impl Wait for Later {
    fn wait(self: Box<Self>) -> Result<()> {
        let Later { call, visit, watch } = *self;
        let visit = watch.came(visit);
        let end = call.wait();
        watch.left(visit);
        end
    }

    fn is_done(&self) -> bool {
        self.call.is_done()
    }
}

impl Comm for Watched {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn ranks(&self) -> &[Rank] {
        self.comm.ranks()
    }

    fn start(&self, call: Call) -> Result<Pending> {
        let visit = self.of(&call);
        let call = self.comm.start(call)?;
        Ok(Pending::new(Later { call, visit, watch: self.shared.watch.clone() }))
    }

    fn run(&self, call: Call) -> Result<()> {
        let visit = self.of(&call);
        self.during(visit, || self.comm.run(call))
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        let visit = self.visit("split");
        let made = self.during(visit, || self.comm.split(groups))?;
        let number = self.splits.fetch_add(1, Relaxed);
        let lane = format!("{}/{number}", self.lane);
        Ok(made.map(|comm| -> Arc<dyn Comm> {
            let (shared, calls, splits) = (self.shared.clone(), Arc::default(), AtomicU64::new(0));
            Arc::new(Watched { comm, shared, lane, calls, splits })
        }))
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        let comm = self.comm.group(ranks)?;
        let mut named = self.shared.named.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = named.entry(ranks.to_vec()).or_default().clone();
        let (shared, lane, splits) = (self.shared.clone(), "group".into(), AtomicU64::new(0));
        Ok(Arc::new(Watched { comm, shared, lane, calls, splits }))
    }

    fn barrier(&self) -> Result<()> {
        let visit = self.visit("barrier");
        self.during(visit, || self.comm.barrier())
    }

    fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
}
