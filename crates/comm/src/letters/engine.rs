//! What the communicators of a process share, and the communicator itself.

use super::carrier::{Carrier, Shortcut, engine_error};
use super::levels::Levels;
use super::memory::{Room, Sent, Target};
use super::post::Post;
use super::running::Running;
use super::step::{Place, Turn};
use super::wire::{self, Line};
use crate::alone::{self, accept, check_group, check_groups, describe};
use crate::bounce;
use crate::call::{Call, Recv, Signature};
use crate::comm::{Comm, CommExt, Pending, Wait};
use crate::error::{Error, Result};
use crate::sync::{Patience, processors};
use planaria_array::Device;
use planaria_layout::Rank;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How the ranks work together.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call waits for the other ranks before it fails everywhere.
    pub timeout: Duration,
    /// Largest message in bytes; longer transfers are cut.
    pub piece: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { timeout: Duration::from_secs(600), piece: 1 << 30 }
    }
}

/// How long a thread sleeps after something has moved, and at most.
const SHORT_PAUSE: Duration = Duration::from_micros(20);
const LONG_PAUSE: Duration = Duration::from_millis(2);

/// What the communicators of a process share.
#[derive(Debug)]
pub(crate) struct Engine {
    post: Mutex<Post>,
    open: Mutex<Vec<Arc<Task>>>,
    started: Condvar,
    stop: AtomicBool,
    /// Ranks that wait and move things along themselves.
    waiting: AtomicUsize,
    timeout: Duration,
    /// What wakes a thread when something has come, where the carrier has such a thing.
    shortcut: Option<Arc<dyn Shortcut>>,
    /// How long a rank looks out for letters before it sleeps.
    patience: Patience,
    /// The host of each rank.
    hosts: Vec<usize>,
    /// How many calls groups known by their list of ranks have made.
    named: Mutex<HashMap<Vec<Rank>, Arc<AtomicU64>>>,
}

/// A collective and its end.
#[derive(Debug)]
struct Task {
    running: Mutex<Running>,
    end: Mutex<Option<Result<()>>>,
}

impl Task {
    fn end(&self) -> Option<Result<()>> {
        lock(&self.end).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(crate) fn start(carrier: Box<dyn Carrier>, options: &Options) -> Arc<Engine> {
        let post = Post::new(carrier, options.piece);
        let (hosts, shortcut) = (post.hosts(), post.shortcut());
        let here = hosts.iter().filter(|&&host| host == hosts[post.place().0]).count();
        Arc::new(Engine {
            hosts,
            shortcut,
            patience: Patience::of(here, processors()),
            post: Mutex::new(post),
            open: Mutex::default(),
            started: Condvar::new(),
            stop: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            timeout: options.timeout,
            named: Mutex::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Post> {
        lock(&self.post)
    }

    /// Fails everywhere; gives the first failure, which may be an earlier one.
    pub(crate) fn fail(&self, error: Error) -> Error {
        let mut post = self.lock();
        post.fail(error.clone());
        post.live().err().unwrap_or(error)
    }

    /// Adds a collective; the progress thread looks after it until someone waits.
    fn add(&self, running: Running) -> Arc<Task> {
        let task = Arc::new(Task { running: Mutex::new(running), end: Mutex::new(None) });
        lock(&self.open).push(task.clone());
        self.started.notify_one();
        task
    }

    /// Moves letters, and every collective as far as they allow; true when something has moved.
    fn progress(&self) -> bool {
        let moved = {
            let mut post = self.lock();
            post.progress().unwrap_or_else(|error| {
                post.fail(error);
                true
            })
        };
        let tasks: Vec<_> = lock(&self.open).clone();
        let ended = tasks.iter().filter(|task| self.advance(task)).count();
        if ended > 0 {
            lock(&self.open).retain(|task| task.end().is_none());
            // Another thread may sleep until just this.
            self.shortcut.iter().for_each(|shortcut| shortcut.ring());
        }
        moved || ended > 0
    }

    /// Moves one collective; true when it has ended. The post is free while its bytes are folded or copied.
    fn advance(&self, task: &Task) -> bool {
        // Whoever holds it is at work on it.
        let Ok(mut running) = task.running.try_lock() else { return false };
        if task.end().is_some() {
            return true;
        }
        let end = loop {
            let turn = {
                let mut post = self.lock();
                match running.turn(&mut post) {
                    Ok(Turn::Waiting) => match post.live() {
                        Ok(()) => return false,
                        Err(error) => Err(error),
                    },
                    other => other,
                }
            };
            match turn.and_then(|turn| match turn {
                Turn::Waiting => Ok(false),
                Turn::Ready(letters) => running.step(&letters),
            }) {
                Ok(true) => {
                    if let Err(error) = running.next(&mut self.lock()) {
                        break Err(error);
                    }
                }
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = &end {
            self.lock().fail(error.clone());
        }
        *lock(&task.end) = Some(end);
        true
    }

    /// The progress thread: collectives go on while their rank computes. It leaves the work to ranks that wait, and
    /// looks less often the longer nothing moves.
    pub(crate) fn serve(&self) {
        let mut pause = SHORT_PAUSE;
        while !self.stop.load(Ordering::SeqCst) {
            let open = lock(&self.open);
            let idle = open.is_empty() || self.waiting.load(Ordering::SeqCst) > 0;
            if idle {
                // Own letters may still be on their way out, so it looks now and then.
                drop(self.started.wait_timeout(open, LONG_PAUSE));
                if self.waiting.load(Ordering::SeqCst) == 0 && self.lock().is_sending() {
                    self.progress();
                }
                pause = SHORT_PAUSE;
                continue;
            }
            drop(open);
            let heard = self.heard();
            pause = if self.progress() { SHORT_PAUSE } else { (pause * 2).min(LONG_PAUSE) };
            match &self.shortcut {
                Some(shortcut) => shortcut.sleep(heard, pause),
                None => std::thread::sleep(pause),
            }
        }
    }

    fn heard(&self) -> u32 {
        self.shortcut.as_ref().map_or(0, |shortcut| shortcut.heard())
    }

    /// Lets go of everything; letters that cannot be delivered within a second are given up.
    pub(crate) fn close(&self, progress: Option<std::thread::JoinHandle<()>>) {
        self.stop.store(true, Ordering::SeqCst);
        self.started.notify_all();
        let _ = progress.map(std::thread::JoinHandle::join);
        let _ = self.lock().flush(Instant::now() + Duration::from_secs(1));
    }

    /// Moves things along until `done` says so; `missing` tells what a wait past the limit is about.
    fn until(
        &self,
        done: impl Fn() -> Option<Result<()>>,
        missing: impl Fn(Duration) -> Option<Error>,
    ) -> Result<()> {
        let _here = Waiting::at(&self.waiting);
        let begin = Instant::now();
        let (mut moved, mut still, mut slept) = (begin, 0u32, false);
        loop {
            let heard = self.heard();
            still = if self.progress() { 0 } else { still.saturating_add(1) };
            let now = Instant::now();
            if still == 0 {
                self.patience.learn(slept);
                (moved, slept) = (now, false);
            }
            if let Some(end) = done() {
                return end;
            }
            self.lock().live()?;
            let waited = now - begin;
            if waited >= self.timeout
                && let Some(error) = missing(waited)
            {
                return Err(self.fail(error));
            }
            // Ranks may outnumber processors: be quick at first, then let others run.
            slept |= now - moved >= self.patience.length();
            match &self.shortcut {
                _ if !slept => std::hint::spin_loop(),
                Some(shortcut) => shortcut.sleep(heard, LONG_PAUSE),
                None if still < 200 => std::thread::yield_now(),
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

/// Counts a rank that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn at(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One process's place in a group.
pub(crate) struct LetterComm {
    engine: Arc<Engine>,
    id: u64,
    ranks: Arc<[Rank]>,
    position: usize,
    sequence: Arc<AtomicU64>,
    /// Its hosts, where collectives may go over them.
    levels: Option<Arc<Levels>>,
}

impl LetterComm {
    pub(crate) fn new(engine: Arc<Engine>, id: u64, ranks: Arc<[Rank]>, position: usize) -> LetterComm {
        LetterComm::counting(engine, id, ranks, position, Arc::default())
    }

    fn counting(
        engine: Arc<Engine>,
        id: u64,
        ranks: Arc<[Rank]>,
        position: usize,
        sequence: Arc<AtomicU64>,
    ) -> LetterComm {
        let levels = Levels::of(ranks.iter().map(|&rank| engine.hosts[rank])).map(Arc::new);
        LetterComm { engine, id, ranks, position, sequence, levels }
    }

    fn place(&self) -> Place {
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst);
        let (group, ranks, levels) = (self.id, self.ranks.clone(), self.levels.clone());
        Place { group, ranks, me: self.position, sequence, levels }
    }

    fn meet(&self, signature: &Signature) -> Result<u64> {
        let place = self.place();
        let sequence = place.sequence;
        let running = {
            let mut post = self.engine.lock();
            post.live()?;
            Running::meet(&mut post, place, signature)?
        };
        let task = self.engine.add(running);
        Box::new(Started { engine: self.engine.clone(), task, sequence }).wait()?;
        Ok(sequence)
    }
}

impl Comm for LetterComm {
    fn rank(&self) -> usize {
        self.position
    }

    fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    fn start(&self, call: Call) -> Result<Pending> {
        call.check(self.position, self.size())?;
        let copied = self.size() == 1 && call.signature().is_some();
        if call.device() != Device::Cpu && !copied {
            return bounce::start(call, self.position, |call| self.start(call));
        }
        let mut post = self.engine.lock();
        post.live()?;
        match call {
            Call::Send(c) => {
                let (bytes, line) = (c.data.bytes()?, Line::message(self.id, c.tag));
                let length = bytes.len();
                let contents = Sent::part(Arc::new(bytes), 0..length);
                post.send(self.ranks[c.to], line, &describe(&c.data), contents)?;
                Ok(Pending::done())
            }
            Call::Recv(call) => {
                let (from, line) = (self.ranks[call.from], Line::message(self.id, call.tag));
                let length = call.data.numel() * call.data.dtype().size();
                let room = if length > wire::INLINE { call.data.lend()?.map(Room::new) } else { None };
                let target = room.clone().map(|room| Target { room, at: 0..length });
                let number = post.expect(from, line, target)?;
                drop(post);
                Ok(Pending::new(Receive { engine: self.engine.clone(), from, line, number, call, room }))
            }
            call if self.size() == 1 => alone::copy(call).map(|()| Pending::done()),
            call => {
                let place = self.place();
                let sequence = place.sequence;
                let running = Running::begin(&mut post, place, call)?;
                drop(post);
                let task = self.engine.add(running);
                Ok(Pending::new(Started { engine: self.engine.clone(), task, sequence }))
            }
        }
    }

    fn run(&self, call: Call) -> Result<()> {
        self.start(call)?.wait()
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        check_groups(groups, &self.ranks)?;
        let signature = Signature::Split { groups: groups.to_vec() };
        let sequence = self.meet(&signature)?;
        let me = self.ranks[self.position];
        let mine = groups.iter().enumerate().find_map(|(i, g)| Some((i, g.iter().position(|&r| r == me)?)));
        let Some((index, position)) = mine else { return Ok(None) };
        // No two groups come from the same entry of the same split of the same parent, so ids differ.
        let mut id = DefaultHasher::new();
        (self.id, sequence, index).hash(&mut id);
        let ranks = groups[index].as_slice().into();
        Ok(Some(Arc::new(LetterComm::new(self.engine.clone(), id.finish(), ranks, position))))
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        let position = check_group(ranks, &self.ranks, self.position)?;
        let mut named = self.engine.named.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = named.entry(ranks.to_vec()).or_default().clone();
        // Every member hashes the same list; ids of splits begin with a number instead of a name.
        let mut id = DefaultHasher::new();
        ("group", ranks).hash(&mut id);
        let engine = self.engine.clone();
        Ok(Arc::new(LetterComm::counting(engine, id.finish(), ranks.into(), position, sequence)))
    }

    fn barrier(&self) -> Result<()> {
        self.meet(&Signature::Barrier).map(drop)
    }

    fn abort(&self, reason: &str) {
        let rank = self.ranks[self.position];
        self.engine.fail(Error::Aborted { rank, reason: reason.into() });
    }
}

impl fmt::Debug for LetterComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} processes", self.position, self.ranks.len())
    }
}

/// A started collective.
#[derive(Debug)]
struct Started {
    engine: Arc<Engine>,
    task: Arc<Task>,
    sequence: u64,
}

impl Wait for Started {
    fn wait(self: Box<Self>) -> Result<()> {
        let missing = |waited| {
            let running = lock(&self.task.running);
            let post = self.engine.lock();
            let missing = running.missing(&post);
            let (call, sequence) = (running.name(), self.sequence);
            (!missing.is_empty()).then_some(Error::Timeout { call, sequence, missing, waited })
        };
        self.engine.until(|| self.task.end(), missing)
    }

    fn is_done(&self) -> bool {
        self.task.end().is_some()
    }
}

/// A started receive.
#[derive(Debug)]
struct Receive {
    engine: Arc<Engine>,
    from: Rank,
    line: Line,
    number: u64,
    call: Recv,
    /// The array's memory, which the message goes to.
    room: Option<Arc<Room>>,
}

impl Wait for Receive {
    fn wait(self: Box<Self>) -> Result<()> {
        let (from, line, number) = (self.from, self.line, self.number);
        let here = || self.engine.lock().has(from, line, number).then_some(Ok(()));
        let missing = |waited| {
            let begun = self.engine.lock().has_begun(from, line, number);
            (!begun).then_some(Error::Timeout { call: "recv", sequence: number, missing: vec![from], waited })
        };
        self.engine.until(here, missing)?;
        let letter = self.engine.lock().take(from, line, number);
        let twice = || engine_error("a letter was taken twice");
        let letter = letter.ok_or_else(twice)?;
        let (data, tag) = (&self.call.data, self.call.tag);
        match letter.contents() {
            Some(contents) => {
                accept(data, letter.text.clone(), from, tag)?;
                Ok(data.write_bytes(0..contents.len(), |out| out.copy_from_slice(contents))?)
            }
            None => {
                let (expected, found) = (describe(data), letter.text.clone());
                if expected != found {
                    return Err(Error::Message { from, tag, expected, found });
                }
                let lent = self.room.and_then(Room::into_lent).ok_or_else(twice)?;
                lent.give_back()?;
                Ok(())
            }
        }
    }

    fn is_done(&self) -> bool {
        self.engine.progress();
        let post = self.engine.lock();
        post.has(self.from, self.line, self.number) || post.live().is_err()
    }
}
