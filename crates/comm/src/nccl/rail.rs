//! A group's way through NCCL: a communicator and a stream, and the thread that makes the group's calls in order and watches them.

use super::failed;
use super::shared::{Shared, lock};
use crate::comm::Wait;
use crate::error::{Error, Result};
use planaria_cuda::{Communicator, Event, Lane, Move};
use planaria_layout::Rank;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at what is under way.
const PULSE: Duration = Duration::from_millis(5);
/// How long the end of a communicator waits for the other ranks.
const GRACE: Duration = Duration::from_secs(10);

/// What a call does with the group's communicator.
type Work = Box<dyn FnOnce(&Hands) -> Result<()> + Send>;

/// A group of ranks.
pub(super) struct Rail {
    pub(super) id: u64,
    pub(super) ranks: Arc<[Rank]>,
    pub(super) me: usize,
    /// Groups split off so far.
    pub(super) splits: AtomicU64,
    queue: Arc<Queue>,
    started: Mutex<Started>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Started {
    calls: u64,
    thread: Option<JoinHandle<()>>,
}

/// Calls that wait for the group's thread.
#[derive(Default)]
struct Queue {
    open: Mutex<Open>,
    changed: Condvar,
}

#[derive(Default)]
struct Open {
    jobs: VecDeque<Job>,
    /// When the group was given up by its rank.
    stop: Option<Instant>,
}

impl Queue {
    /// Whether to wait on for other ranks in something that began then. Nobody is waited for long once the group was given up.
    fn go_on(&self, shared: &Shared, begun: Instant) -> bool {
        let stop = lock(&self.open).stop;
        let given_up = stop.is_some_and(|since| since.elapsed() >= GRACE);
        !given_up && begun.elapsed() < shared.options.timeout && shared.live().is_ok()
    }
}

struct Job {
    name: &'static str,
    number: u64,
    work: Work,
    end: Arc<End>,
}

/// Where a caller hears that its call is queued on the device.
#[derive(Default)]
struct End {
    result: Mutex<Option<Result<()>>>,
    changed: Condvar,
}

impl End {
    fn set(&self, result: Result<()>) {
        *lock(&self.result) = Some(result);
        self.changed.notify_all();
    }
}

/// A started call: its result is there for all work queued after `wait`.
pub(super) struct Queued(Arc<End>);

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a call on its way to NCCL")
    }
}

impl Wait for Queued {
    fn wait(self: Box<Self>) -> Result<()> {
        let waiting = |result: &mut Option<Result<()>>| result.is_none();
        let found = self.0.changed.wait_while(lock(&self.0.result), waiting);
        let mut found = found.unwrap_or_else(PoisonError::into_inner);
        found.take().unwrap_or(Ok(()))
    }

    fn is_done(&self) -> bool {
        lock(&self.0.result).is_some()
    }
}

impl fmt::Debug for Rail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} over NCCL", self.me, self.ranks.len())
    }
}

impl Rail {
    pub(super) fn new(shared: &Arc<Shared>, id: u64, ranks: &[Rank], me: usize) -> Arc<Rail> {
        Arc::new(Rail {
            id,
            ranks: ranks.into(),
            me,
            splits: AtomicU64::new(0),
            queue: Arc::default(),
            started: Mutex::default(),
            shared: shared.clone(),
        })
    }

    /// Hands a call to the group's thread, which starts with the first.
    pub(super) fn add(
        &self,
        name: &'static str,
        work: impl FnOnce(&Hands) -> Result<()> + Send + 'static,
    ) -> Result<Queued> {
        let mut started = lock(&self.started);
        if started.thread.is_none() {
            let member = Member {
                queue: self.queue.clone(),
                shared: self.shared.clone(),
                id: self.id,
                ranks: self.ranks.clone(),
                me: self.me,
            };
            let thread =
                std::thread::Builder::new().name("planaria-nccl".into()).spawn(move || member.serve());
            started.thread = Some(thread.map_err(|error| failed(format!("cannot start a thread: {error}")))?);
        }
        let end = Arc::<End>::default();
        let job = Job { name, number: started.calls, work: Box::new(work), end: end.clone() };
        started.calls += 1;
        lock(&self.queue.open).jobs.push_back(job);
        self.queue.changed.notify_all();
        Ok(Queued(end))
    }

    /// The number of the next group that is split off.
    pub(super) fn next_split(&self) -> u64 {
        self.splits.fetch_add(1, Ordering::SeqCst)
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        lock(&self.queue.open).stop = Some(Instant::now());
        self.queue.changed.notify_all();
        // Ranks may let go of groups in any order, and the end of each needs all of its members: nobody waits for one here.
        if let Some(thread) = lock(&self.started).thread.take() {
            self.shared.leave(thread);
        }
    }
}

/// The communicator of a group and its stream, in the hands of the group's thread.
pub(super) struct Hands {
    lane: Arc<Lane>,
    comm: RefCell<Communicator>,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    pub(super) me: usize,
    pub(super) size: usize,
}

impl Hands {
    /// Queues moves all together on the group's lane, which is the calling thread's.
    pub(super) fn queue(&self, lane: &Lane, op: &'static str, moves: &[Move]) -> planaria_cuda::Result<()> {
        let begun = Instant::now();
        self.comm.borrow_mut().queue(lane, op, moves, &|| self.queue.go_on(&self.shared, begun))
    }
}

/// A call that is queued on the device.
struct Flight {
    name: &'static str,
    number: u64,
    since: Instant,
    event: Event,
}

/// What the group's thread knows.
struct Member {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    id: u64,
    ranks: Arc<[Rank]>,
    me: usize,
}

impl Member {
    fn serve(&self) {
        let (mut hands, mut flights) = (None, VecDeque::new());
        while let Some(job) = self.next(!flights.is_empty()) {
            if let Some(Job { name, number, work, end }) = job {
                let made = self.make(&mut hands, name, number, work);
                end.set(made.map(|flight| flights.push_back(flight)));
            }
            if let (Err(error), Some(hands)) = (self.watch(hands.as_ref(), &mut flights), &hands) {
                self.shared.fail(error);
                // Work on the device that waits for other ranks ends with its communicator.
                hands.comm.borrow_mut().abort();
                flights.clear();
            }
        }
        self.close(hands);
    }

    /// The next call; `Some(None)` when it is time to look at those under way, `None` at the end.
    fn next(&self, busy: bool) -> Option<Option<Job>> {
        let mut open = lock(&self.queue.open);
        loop {
            if let Some(job) = open.jobs.pop_front() {
                return Some(Some(job));
            }
            if open.stop.is_some() {
                return None;
            }
            if busy {
                let waited = self.queue.changed.wait_timeout(open, PULSE);
                let (mut open, _) = waited.unwrap_or_else(PoisonError::into_inner);
                return Some(open.jobs.pop_front());
            }
            open = self.queue.changed.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes one call. What fails here fails everywhere: the others would wait for it.
    fn make(&self, hands: &mut Option<Hands>, name: &'static str, number: u64, work: Work) -> Result<Flight> {
        let since = Instant::now();
        let made = self.shared.live().and_then(|()| {
            let hands = match hands {
                Some(hands) => hands,
                None => hands.insert(self.join(name, number)?),
            };
            hands.lane.within(|| work(hands))?;
            let event = Event::record(name, hands.lane.compute()).map_err(failed)?;
            Ok(Flight { name, number, since, event })
        });
        made.map_err(|error| {
            // A failure elsewhere is the cause of whatever it led to here.
            let elsewhere = self.shared.live().err();
            let late = since.elapsed() >= self.shared.options.timeout;
            let error = if late { self.too_long(name, number) } else { error };
            elsewhere.unwrap_or_else(|| self.shared.fail(error))
        })
    }

    fn too_long(&self, name: &'static str, number: u64) -> Error {
        let (ranks, limit) = (&self.ranks, self.shared.options.timeout);
        let what = "a rank did not come, or made another call";
        failed(format!("{name} number {number} of ranks {ranks:?} took over {limit:?}: {what}"))
    }

    /// Makes the communicator, with all other members.
    fn join(&self, name: &'static str, number: u64) -> Result<Hands> {
        let (shared, begun) = (&self.shared, Instant::now());
        let first = self.ranks[0];
        let unique = match self.me {
            0 => shared.make_name(self.id, &self.ranks)?,
            _ => loop {
                if let Some(unique) = shared.find_name(self.id, first)? {
                    break unique;
                }
                shared.live()?;
                let waited = begun.elapsed();
                if !self.queue.go_on(shared, begun) {
                    return Err(Error::Timeout {
                        call: name,
                        sequence: number,
                        missing: vec![first],
                        waited,
                    });
                }
                std::thread::sleep(Duration::from_micros(200));
            },
        };
        let (me, size) = (self.me, self.ranks.len());
        let go_on = || self.queue.go_on(shared, begun);
        let comm = Communicator::join(&shared.context, &unique, me, size, &go_on);
        let comm = comm.map_err(|error| failed(format!("ranks {:?}: {error}", self.ranks)))?;
        let lane = Lane::new(&shared.context).map_err(failed)?;
        let (comm, queue) = (RefCell::new(comm), self.queue.clone());
        Ok(Hands { lane, comm, queue, shared: shared.clone(), me, size })
    }

    /// Lets go of calls that have passed; an error when the library reports one, or one takes too long.
    fn watch(&self, hands: Option<&Hands>, flights: &mut VecDeque<Flight>) -> Result<()> {
        let Some(hands) = hands.filter(|_| !flights.is_empty()) else { return Ok(()) };
        while let Some(flight) = flights.front() {
            if !flight.event.passed().map_err(failed)? {
                break;
            }
            flights.pop_front();
        }
        hands.comm.borrow().check().map_err(failed)?;
        self.shared.live()?;
        match flights.front() {
            Some(&Flight { name, number, since, .. }) if since.elapsed() >= self.shared.options.timeout => {
                Err(self.too_long(name, number))
            }
            _ => Ok(()),
        }
    }

    /// Ends the communicator together with the others, or at once when somebody failed.
    fn close(&self, hands: Option<Hands>) {
        let Some(Hands { lane, comm, .. }) = hands else { return };
        let (begun, mut comm) = (Instant::now(), comm.into_inner());
        let go_on = || begun.elapsed() < GRACE && self.shared.live().is_ok();
        let last = Event::record("close", lane.compute());
        let passed = |last: &Event| loop {
            match last.passed() {
                Ok(false) if go_on() => std::thread::sleep(Duration::from_micros(200)),
                end => break end == Ok(true),
            }
        };
        match last {
            // Peers that ended otherwise keep nobody.
            Ok(last) if passed(&last) => drop(comm.finish(&go_on)),
            _ => comm.abort(),
        }
    }
}
