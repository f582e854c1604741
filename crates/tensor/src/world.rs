//! The ranks a program runs on: a communicator, and groups of ranks made once and kept.

use crate::error::{Error, Result};
use planaria_comm::Comm;
use planaria_layout::Rank;
use planaria_layout::rule::Policy;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// All ranks of a run, as seen by one of them.
#[derive(Clone)]
pub struct World {
    inner: Arc<Inner>,
    policy: Policy,
}

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
        World::of(Inner { rank, comm: Some(comm), groups: Mutex::default() })
    }

    /// A world to plan on: `rank` is only supposed to exist, and arrays are on the meta device.
    pub fn supposed(rank: Rank) -> World {
        World::of(Inner { rank, comm: None, groups: Mutex::default() })
    }

    fn of(inner: Inner) -> World {
        World { inner: Arc::new(inner), policy: Policy::default() }
    }

    /// The same ranks, on which ops treat inputs that agree otherwise: a program that places its tensors on purpose
    /// wants them to [`Policy::Stay`].
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> World {
        World { inner: self.inner.clone(), policy }
    }

    /// What becomes of inputs that agree.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// The communicator of all ranks, unless the world is only supposed.
    pub fn comm(&self) -> Option<&Arc<dyn Comm>> {
        self.inner.comm.as_ref()
    }

    /// True when nothing can be sent: shapes and layouts only.
    pub fn is_supposed(&self) -> bool {
        self.inner.comm.is_none()
    }

    /// The communicator of some ranks, in this order. The ranks of the list call it together, the first time.
    pub(crate) fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        let comm = self.inner.comm.as_ref().ok_or(Error::Bug("a supposed world cannot communicate"))?;
        if comm.ranks() == ranks {
            return Ok(comm.clone());
        }
        let lock = || self.inner.groups.lock().unwrap_or_else(PoisonError::into_inner);
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
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {})", self.inner.rank)
    }
}
