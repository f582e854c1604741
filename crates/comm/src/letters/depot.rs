//! A carrier for which somebody else does the carrying: what goes out waits here to be taken, what comes in is left here.

use super::carrier::{Carrier, ENVELOPE, Landing, Shortcut, Transfer, engine_error};
use super::engine::{Engine, LetterComm, Options};
use super::memory::Sent;
use crate::comm::Comm;
use crate::error::{Error, Result};
use planaria_array::Array;
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

    /// The same, to be put where other processes of this host read it.
    #[cfg(target_os = "linux")]
    pub(crate) fn sent(&self) -> &Sent {
        &self.sent
    }
}

/// The letters of one rank that are on their way out or have come in.
#[derive(Debug)]
pub struct Depot {
    rank: Rank,
    size: usize,
    /// The host of each rank.
    hosts: Vec<usize>,
    /// What is short between ranks that share memory goes there instead.
    shortcut: Option<Arc<dyn Shortcut>>,
    traffic: Mutex<Traffic>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Traffic {
    outgoing: VecDeque<Parcel>,
    envelopes: VecDeque<(Rank, Sent)>,
    contents: HashMap<(Rank, i32), VecDeque<Sent>>,
    broken: Option<String>,
    closed: bool,
}

impl Traffic {
    /// Leaves what has come.
    fn add(&mut self, from: Rank, tag: i32, bytes: Sent) {
        match tag {
            ENVELOPE => self.envelopes.push_back((from, bytes)),
            tag => self.contents.entry((from, tag)).or_default().push_back(bytes),
        }
    }
}

impl Depot {
    /// The depot of one rank of `size`, all of them on one host.
    pub fn new(rank: Rank, size: usize) -> Result<Arc<Depot>> {
        Depot::on_hosts(rank, vec![0; size])
    }

    /// The depot of one rank, with the host of each rank, by any number: collectives send over links once for each host.
    pub fn on_hosts(rank: Rank, hosts: Vec<usize>) -> Result<Arc<Depot>> {
        Depot::beside(rank, hosts, None)
    }

    /// The same with a way past whoever carries.
    pub(crate) fn beside(
        rank: Rank,
        hosts: Vec<usize>,
        shortcut: Option<Arc<dyn Shortcut>>,
    ) -> Result<Arc<Depot>> {
        let size = hosts.len();
        if rank >= size {
            return Err(Error::argument("depot", format!("rank {rank} is outside of {size} ranks")));
        }
        let (traffic, changed) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Depot { rank, size, hosts, shortcut, traffic, changed }))
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
        let bytes = bytes.bytes()?;
        let length = bytes.len();
        self.leave(from, tag, Sent::part(Arc::new(bytes), 0..length))
    }

    /// The same with memory that may be another process's.
    pub(crate) fn leave(&self, from: Rank, tag: u32, bytes: Sent) -> Result<()> {
        let tag = i32::try_from(tag).map_err(|_| engine_error("a tag past 2^31"))?;
        if from >= self.size {
            return Err(Error::argument("deliver", format!("rank {from} is outside of {} ranks", self.size)));
        }
        let mut traffic = self.lock();
        let Some(shortcut) = self.shortcut.as_ref() else {
            traffic.add(from, tag, bytes);
            return Ok(());
        };
        if tag == ENVELOPE {
            // What was sent before this one has come already.
            self.draw(&mut traffic, shortcut, Some(from))?;
            traffic.add(from, tag, bytes);
            shortcut.came(from);
        } else {
            traffic.add(from, tag, bytes);
        }
        drop(traffic);
        shortcut.ring();
        Ok(())
    }

    /// Takes in what has come past whoever carries, from a rank or from all.
    fn draw(&self, traffic: &mut Traffic, shortcut: &Arc<dyn Shortcut>, from: Option<Rank>) -> Result<()> {
        shortcut.take(from, &mut |from, tag, sent| traffic.add(from, tag as i32, sent))
    }

    /// Says that nothing can be carried any more; calls of this rank fail with the reason.
    pub fn fail(&self, reason: &str) {
        self.lock().broken.get_or_insert_with(|| reason.into());
        self.shortcut.iter().for_each(|shortcut| shortcut.ring());
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
        let mut traffic = self.0.lock();
        if let Some(shortcut) = &self.0.shortcut {
            self.0.draw(&mut traffic, shortcut, None)?;
        }
        match &traffic.broken {
            Some(reason) => Err(engine_error(reason.as_str())),
            None => Ok(traffic.envelopes.front().map(|(from, sent)| (*from, sent.bytes().len()))),
        }
    }

    /// A parcel is one message, however long.
    fn send(&self, memory: Sent, to: Rank, tag: i32, _piece: usize) -> Result<Box<dyn Transfer>> {
        if self.0.shortcut.as_ref().is_some_and(|shortcut| shortcut.put(to, tag as u32, &memory)) {
            return Ok(Box::new(Gone));
        }
        let road = Arc::new(());
        let parcel = Parcel { to, tag: tag as u32, sent: memory, _road: road.clone() };
        self.0.lock().outgoing.push_back(parcel);
        self.0.changed.notify_all();
        Ok(Box::new(Going(road)))
    }

    fn hosts(&self) -> Vec<usize> {
        self.0.hosts.clone()
    }

    fn shortcut(&self) -> Option<Arc<dyn Shortcut>> {
        self.0.shortcut.clone()
    }

    fn receive(&self, landing: Landing, from: Rank, tag: i32, _piece: usize) -> Result<Box<dyn Transfer>> {
        Ok(Box::new(Coming { depot: self.0.clone(), from, tag, landing: Some(landing), come: None }))
    }

    fn finish(&self) -> Result<()> {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
        Ok(())
    }
}

/// What nobody has to carry.
#[derive(Debug)]
struct Gone;

impl Transfer for Gone {
    fn is_done(&mut self) -> Result<bool> {
        Ok(true)
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
    landing: Option<Landing>,
    come: Option<Sent>,
}

impl Coming {
    /// The next parcel of its sender and tag.
    fn find(&self) -> Option<Sent> {
        let mut traffic = self.depot.lock();
        if self.tag == ENVELOPE {
            let at = traffic.envelopes.iter().position(|(from, _)| *from == self.from)?;
            return traffic.envelopes.remove(at).map(|(_, sent)| sent);
        }
        let key = (self.from, self.tag);
        let pile = traffic.contents.get_mut(&key)?;
        let sent = pile.pop_front();
        if pile.is_empty() {
            traffic.contents.remove(&key);
        }
        sent
    }
}

impl Transfer for Coming {
    fn is_done(&mut self) -> Result<bool> {
        let Some(landing) = &self.landing else { return Ok(true) };
        let Some(sent) = self.find() else { return Ok(false) };
        match landing {
            Landing::At(target) => target.room.fill(&target.at, sent.bytes())?,
            Landing::Anywhere(length) if *length == sent.bytes().len() => self.come = Some(sent),
            Landing::Anywhere(length) => {
                let what = format!("{} bytes came where {length} were told", sent.bytes().len());
                return Err(engine_error(what));
            }
        }
        self.landing = None;
        Ok(true)
    }

    fn contents(&mut self) -> Result<Option<Sent>> {
        Ok(self.come.take())
    }
}
