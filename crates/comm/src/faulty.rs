//! A communicator that misbehaves on purpose, at a chosen rank and call, for tests of what the others do then.

use crate::call::Call;
use crate::comm::{Comm, Pending};
use crate::error::{Error, Result};
use planaria_layout::Rank;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The rank is late by this much.
    Delay(Duration),
    /// The rank goes on without making the call, as if it were lost on the way.
    Drop,
    /// The rank panics.
    Panic,
    /// The call fails on this rank alone, with this message.
    Fail(String),
}

/// A fault, and when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trip {
    /// World rank that misbehaves.
    pub rank: Rank,
    /// Which of the rank's calls, counted from 0 over this communicator and those split from it.
    pub call: u64,
    /// What goes wrong.
    pub fault: Fault,
}

/// Wraps a communicator so that `trips` happen.
pub fn faulty(comm: Arc<dyn Comm>, trips: &[Trip]) -> Arc<dyn Comm> {
    Arc::new(Faulty { comm, trips: trips.into(), calls: Arc::default() })
}

#[derive(Debug)]
struct Faulty {
    comm: Arc<dyn Comm>,
    trips: Arc<[Trip]>,
    calls: Arc<AtomicU64>,
}

/// Whether the call is made.
enum Then {
    Make,
    Skip,
}

impl Faulty {
    fn trip(&self, name: &'static str) -> Result<Then> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let rank = self.comm.ranks()[self.comm.rank()];
        let Some(trip) = self.trips.iter().find(|t| t.rank == rank && t.call == call) else {
            return Ok(Then::Make);
        };
        match &trip.fault {
            Fault::Delay(time) => {
                std::thread::sleep(*time);
                Ok(Then::Make)
            }
            Fault::Drop => Ok(Then::Skip),
            Fault::Panic => std::panic::panic_any(format!("fault at rank {rank}, call {call} ({name})")),
            Fault::Fail(what) => Err(Error::Engine { engine: "fault", what: what.clone() }),
        }
    }
}

impl Comm for Faulty {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn ranks(&self) -> &[Rank] {
        self.comm.ranks()
    }

    fn start(&self, call: Call) -> Result<Pending> {
        match self.trip(call.name())? {
            Then::Make => self.comm.start(call),
            Then::Skip => Ok(Pending::done()),
        }
    }

    fn run(&self, call: Call) -> Result<()> {
        match self.trip(call.name())? {
            Then::Make => self.comm.run(call),
            Then::Skip => Ok(()),
        }
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        match self.trip("split")? {
            Then::Make => {
                let wrap = |comm| -> Arc<dyn Comm> {
                    Arc::new(Faulty { comm, trips: self.trips.clone(), calls: self.calls.clone() })
                };
                Ok(self.comm.split(groups)?.map(wrap))
            }
            Then::Skip => Ok(None),
        }
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        let comm = self.comm.group(ranks)?;
        Ok(Arc::new(Faulty { comm, trips: self.trips.clone(), calls: self.calls.clone() }))
    }

    fn barrier(&self) -> Result<()> {
        match self.trip("barrier")? {
            Then::Make => self.comm.barrier(),
            Then::Skip => Ok(()),
        }
    }

    fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
}
