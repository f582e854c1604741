//! A carrier for which somebody else does the carrying: what goes out waits here to be taken, what comes in is left here.

use super::carrier::{Carrier, ENVELOPE, Transfer, engine_error};
use super::engine::{Engine, LetterComm, Options};
use super::memory::{Sent, Target};
use crate::comm::Comm;
use crate::error::{Error, Result};
use planaria_array::{Array, Bytes};
use planaria_layout::Rank;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes for another rank. They are gone when this is dropped.
#[derive(Debug)]
pub struct Parcel {
    /// Who gets them.
    pub to: Rank,
    /// What the receiver's [`Depot::deliver`] must be told.
    pub tag: u32,
    sent: Sent,
    _road: Arc<()>,
}

impl Parcel {
    /// What is to be carried.
    pub fn bytes(&self) -> &[u8] {
        self.sent.bytes()
    }
}

/// The letters of one rank that are on their way out or have come in.
#[derive(Debug)]
pub struct Depot {
    rank: Rank,
    size: usize,
    traffic: Mutex<Traffic>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Traffic {
    outgoing: VecDeque<Parcel>,
    envelopes: VecDeque<(Rank, Bytes)>,
    contents: HashMap<(Rank, i32), VecDeque<Bytes>>,
    broken: Option<String>,
    closed: bool,
}

impl Depot {
    /// The depot of one rank of `size`.
    pub fn new(rank: Rank, size: usize) -> Result<Arc<Depot>> {
        if rank >= size {
            return Err(Error::argument("depot", format!("rank {rank} is outside of {size} ranks")));
        }
        Ok(Arc::new(Depot { rank, size, traffic: Mutex::default(), changed: Condvar::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next parcel to carry, at most `limit`.
    pub fn take(&self, limit: Duration) -> Option<Parcel> {
        let nothing = |traffic: &mut Traffic| traffic.outgoing.is_empty() && !traffic.closed;
        let waited = self.changed.wait_timeout_while(self.lock(), limit, nothing);
        waited.unwrap_or_else(PoisonError::into_inner).0.outgoing.pop_front()
    }

    /// True once the communicator is gone and nothing is left to carry.
    pub fn is_closed(&self) -> bool {
        let traffic = self.lock();
        traffic.closed && traffic.outgoing.is_empty()
    }

    /// Leaves what has come from a rank. Parcels of one sender must come in the order they were taken.
    pub fn deliver(&self, from: Rank, tag: u32, bytes: &Array) -> Result<()> {
        let (bytes, tag) = (bytes.bytes()?, i32::try_from(tag).map_err(|_| engine_error("a tag past 2^31"))?);
        if from >= self.size {
            return Err(Error::argument("deliver", format!("rank {from} is outside of {} ranks", self.size)));
        }
        let mut traffic = self.lock();
        match tag {
            ENVELOPE => traffic.envelopes.push_back((from, bytes)),
            tag => traffic.contents.entry((from, tag)).or_default().push_back(bytes),
        }
        Ok(())
    }

    /// Says that nothing can be carried any more; calls of this rank fail with the reason.
    pub fn fail(&self, reason: &str) {
        self.lock().broken.get_or_insert_with(|| reason.into());
    }

    /// The communicator over it.
    pub fn connect(self: &Arc<Depot>, options: &Options) -> Result<Connection> {
        let engine = Engine::start(Box::new(Carried(self.clone())), options);
        let (rank, size) = engine.lock().place();
        let comm = LetterComm::new(engine.clone(), 1, (0..size).collect(), rank);
        let serving = engine.clone();
        let progress =
            std::thread::Builder::new().name("planaria-comm".into()).spawn(move || serving.serve());
        let progress = progress.map_err(|error| engine_error(format!("cannot start a thread: {error}")))?;
        Ok(Connection { depot: self.clone(), comm: Arc::new(comm), engine, progress: Some(progress) })
    }
}

/// A communicator over a depot. When this is dropped, letters on their way out are given a second, and the depot closes.
pub struct Connection {
    depot: Arc<Depot>,
    comm: Arc<dyn Comm>,
    engine: Arc<Engine>,
    progress: Option<JoinHandle<()>>,
}

impl Connection {
    /// The communicator.
    pub fn comm(&self) -> Arc<dyn Comm> {
        self.comm.clone()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection of rank {} of {}", self.depot.rank, self.depot.size)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.engine.close(self.progress.take());
        // A depot cannot fail to close.
        let _ = self.engine.lock().finish();
    }
}

/// A depot as the engine sees it.
#[derive(Debug)]
struct Carried(Arc<Depot>);

impl Carrier for Carried {
    fn place(&self) -> (Rank, usize) {
        (self.0.rank, self.0.size)
    }

    fn largest(&self) -> usize {
        usize::MAX
    }

    fn probe(&self) -> Result<Option<(Rank, usize)>> {
        let traffic = self.0.lock();
        match &traffic.broken {
            Some(reason) => Err(engine_error(reason.as_str())),
            None => Ok(traffic.envelopes.front().map(|(from, bytes)| (*from, bytes.len()))),
        }
    }

    /// A parcel is one message, however long.
    fn send(&self, memory: Sent, to: Rank, tag: i32, _piece: usize) -> Result<Box<dyn Transfer>> {
        let road = Arc::new(());
        let parcel = Parcel { to, tag: tag as u32, sent: memory, _road: road.clone() };
        self.0.lock().outgoing.push_back(parcel);
        self.0.changed.notify_all();
        Ok(Box::new(Going(road)))
    }

    fn receive(&self, target: Target, from: Rank, tag: i32, _piece: usize) -> Result<Box<dyn Transfer>> {
        Ok(Box::new(Coming { depot: self.0.clone(), from, tag, target: Some(target) }))
    }

    fn finish(&self) -> Result<()> {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
        Ok(())
    }
}

/// A parcel that somebody carries: the other end of its road.
#[derive(Debug)]
struct Going(Arc<()>);

impl Transfer for Going {
    fn is_done(&mut self) -> Result<bool> {
        Ok(Arc::strong_count(&self.0) == 1)
    }
}

/// A place that waits for its bytes.
#[derive(Debug)]
struct Coming {
    depot: Arc<Depot>,
    from: Rank,
    tag: i32,
    target: Option<Target>,
}

impl Transfer for Coming {
    fn is_done(&mut self) -> Result<bool> {
        let Some(target) = &self.target else { return Ok(true) };
        let mut traffic = self.depot.lock();
        let found = match self.tag {
            ENVELOPE => {
                let at = traffic.envelopes.iter().position(|(from, _)| *from == self.from);
                at.and_then(|at| traffic.envelopes.remove(at)).map(|(_, bytes)| bytes)
            }
            tag => {
                let (key, mut last) = ((self.from, tag), false);
                let found = traffic.contents.get_mut(&key).and_then(|pile| {
                    let bytes = pile.pop_front();
                    last = pile.is_empty();
                    bytes
                });
                if last {
                    traffic.contents.remove(&key);
                }
                found
            }
        };
        drop(traffic);
        let Some(bytes) = found else { return Ok(false) };
        target.room.fill(&target.at, &bytes)?;
        self.target = None;
        Ok(true)
    }
}
