//! The ranks a program runs on: a communicator, and groups of ranks made once and kept.

use crate::error::{Error, Result};
use planaria_comm::Comm;
use planaria_layout::Rank;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// All ranks of a run, as seen by one of them.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    rank: Rank,
    /// Absent for a world that is only planned on.
    comm: Option<Arc<dyn Comm>>,
    groups: Mutex<HashMap<Vec<Rank>, Arc<dyn Comm>>>,
}

impl World {
    /// The ranks of a communicator.
    pub fn new(comm: Arc<dyn Comm>) -> World {
        let rank = comm.ranks()[comm.rank()];
        World(Arc::new(Inner { rank, comm: Some(comm), groups: Mutex::default() }))
    }

    /// A world to plan on: `rank` is only supposed to exist, and arrays are on the meta device.
    pub fn supposed(rank: Rank) -> World {
        World(Arc::new(Inner { rank, comm: None, groups: Mutex::default() }))
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.0.rank
    }

    /// The communicator of all ranks, unless the world is only supposed.
    pub fn comm(&self) -> Option<&Arc<dyn Comm>> {
        self.0.comm.as_ref()
    }

    /// True when nothing can be sent: shapes and layouts only.
    pub fn is_supposed(&self) -> bool {
        self.0.comm.is_none()
    }

    /// The communicator of some ranks, in this order. The ranks of the list call it together, the first time.
    pub(crate) fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        let comm = self.0.comm.as_ref().ok_or(Error::Bug("a supposed world cannot communicate"))?;
        if comm.ranks() == ranks {
            return Ok(comm.clone());
        }
        let lock = || self.0.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(ranks) {
            return Ok(known.clone());
        }
        // Not under the lock: making a group waits for its other ranks.
        let group = comm.group(ranks)?;
        Ok(lock().entry(ranks.to_vec()).or_insert(group).clone())
    }
}

impl PartialEq for World {
    fn eq(&self, other: &World) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {})", self.0.rank)
    }
}
