//! One collective: who has come, the work once all have, and its end.

use super::group::Group;
use super::little::Little;
use super::work::Work;
use crate::call::Signature;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};
use planaria_array::{Array, Device};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// One rank's part of a collective.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) signature: Signature,
    pub(super) send: Option<Held>,
    pub(super) recv: Option<Array>,
    /// Whether this rank waits for the end at once, and not some time later.
    pub(super) waits: bool,
}

impl Post {
    /// The part of a rank that waits and has nothing to move.
    pub(super) fn empty(signature: Signature) -> Box<Post> {
        Box::new(Post { signature, send: None, recv: None, waits: true })
    }

    /// Whether some of it is memory of a device.
    pub(super) fn is_away(&self) -> bool {
        let received = self.recv.as_ref().is_some_and(|recv| recv.device() != Device::Cpu);
        received || matches!(self.send, Some(Held::Device(_)))
    }
}

/// What a rank's coming meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Others are missing.
    Waiting,
    /// This rank was the last and there is work to do, for as many as come.
    Large,
    /// This rank was the last and there is nothing left to do, or little, which every rank does for itself.
    Done,
}

/// A collective of a group.
#[derive(Debug)]
pub(super) struct Op {
    name: &'static str,
    sequence: u64,
    state: Mutex<OpState>,
    changed: Condvar,
    /// Another number whenever there is something new to see, for those who look without a lock.
    news: AtomicUsize,
    /// Set before `done`.
    little: OnceLock<Little>,
    error: OnceLock<Error>,
    done: AtomicBool,
}

#[derive(Debug, Default)]
struct OpState {
    posts: Vec<Option<Box<Post>>>,
    posted: usize,
    /// There from the last rank's coming to the last piece.
    work: Option<Arc<Work>>,
    /// Threads that have pieces in hand.
    active: usize,
    /// Threads that sleep until something changes.
    asleep: usize,
    /// What a split made, in the order of its list.
    groups: Vec<Arc<Group>>,
}

impl OpState {
    /// The work, with one more thread at it, while there is some to take.
    fn join(&mut self) -> Option<Arc<Work>> {
        let work = self.work.as_ref().filter(|work| !work.is_taken())?.clone();
        self.active += 1;
        Some(work)
    }
}

impl Op {
    pub(super) fn new(name: &'static str, sequence: u64, size: usize) -> Op {
        let state = OpState { posts: (0..size).map(|_| None).collect(), ..OpState::default() };
        let (news, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (little, error) = (OnceLock::new(), OnceLock::new());
        Op { name, sequence, state: Mutex::new(state), changed: Condvar::new(), news, little, error, done }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    pub(super) fn wake(&self) {
        self.tell(lock(&self.state), usize::MAX);
    }

    /// Says that something has changed, and wakes at most so many of those who sleep.
    fn tell(&self, state: MutexGuard<'_, OpState>, most: usize) {
        self.news.fetch_add(1, Ordering::SeqCst);
        let asleep = state.asleep;
        drop(state);
        match asleep <= most {
            true if asleep == 0 => {}
            true => self.changed.notify_all(),
            false => (0..most).for_each(|_| self.changed.notify_one()),
        }
    }

    /// Takes one rank's part; the last one to come prepares the work.
    pub(super) fn post(&self, position: usize, post: Box<Post>, group: &Arc<Group>) -> Result<Progress> {
        let waits = post.waits;
        let mut state = lock(&self.state);
        self.check(&state, position, &post, group)?;
        state.posts[position] = Some(post);
        state.posted += 1;
        if state.posted < state.posts.len() {
            return Ok(Progress::Waiting);
        }
        let posts: Vec<Post> = state.posts.iter_mut().filter_map(Option::take).map(|post| *post).collect();
        if let Signature::Split { groups } = &posts[0].signature {
            state.groups.extend(groups.iter().map(|ranks| Group::new(group.world.clone(), ranks.clone())));
        }
        let received = |post: &Post| post.recv.as_ref().map_or(0, |recv| recv.numel() * recv.dtype().size());
        let bytes: usize = posts.iter().map(received).sum();
        if bytes > 0 && Little::suits(&posts, bytes) {
            match Little::new(posts) {
                Ok(little) => drop(self.little.set(little)),
                Err(error) => self.spoil(error),
            }
        } else if bytes > 0 {
            let work = Work::new(posts);
            if waits {
                // It begins at once; those who come now would sleep until it has opened them.
                work.open();
            }
            state.work = Some(Arc::new(work));
            // More would only take turns at the processors, and sleep again.
            self.tell(state, (group.world.processors - 1).max(1));
            return Ok(Progress::Large);
        }
        self.done.store(true, Ordering::SeqCst);
        self.tell(state, usize::MAX);
        Ok(Progress::Done)
    }

    /// All ranks must have made calls that go together.
    fn check(&self, state: &OpState, position: usize, post: &Post, group: &Group) -> Result<()> {
        let come =
            state.posts.iter().enumerate().filter_map(|(p, post)| Some((p, &post.as_ref()?.signature)));
        // Those who have come made the same call, so one of them is enough where calls fit that are the same.
        let most = if matches!(post.signature, Signature::AllToAll { .. }) { usize::MAX } else { 1 };
        let mut misfits = come.take(most).filter(|(p, other)| !post.signature.fits(position, other, *p));
        let Some((differs, _)) = misfits.next() else { return Ok(()) };
        let expected = state.posts[differs].as_ref().map(|o| o.signature.to_string()).unwrap_or_default();
        Err(Error::Mismatch {
            sequence: self.sequence,
            first: group.ranks[differs],
            expected,
            rank: group.ranks[position],
            found: post.signature.to_string(),
        })
    }

    /// Does pieces of the work until none are left to take, beginning with those of a position.
    pub(super) fn help(&self, position: usize, processors: usize) {
        let work = lock(&self.state).join();
        if let Some(work) = work {
            self.carry_out(work, position, processors);
        }
    }

    fn carry_out(&self, work: Arc<Work>, position: usize, processors: usize) {
        let outcome = work.run(position, processors);
        // The sent bytes must be free again before anyone learns that the call is done.
        drop(work);
        if let Err(error) = outcome {
            self.spoil(error);
        }
        let mut state = lock(&self.state);
        state.active -= 1;
        if state.active == 0 && state.work.as_ref().is_some_and(|w| w.is_taken()) {
            state.work = None;
            self.done.store(true, Ordering::SeqCst);
            self.tell(state, usize::MAX);
        }
    }

    /// The first error is that of the call.
    fn spoil(&self, error: Error) {
        self.error.get_or_init(|| error);
    }

    /// How a finished call went for a rank, which takes what it receives if that is still to do.
    pub(super) fn outcome(&self, position: usize) -> Result<()> {
        match (self.error.get(), self.little.get()) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(little)) => little.deliver(position),
            (None, None) => Ok(()),
        }
    }

    /// Helps, then waits for the end, for a failure of the world, or for too long.
    pub(super) fn wait(&self, group: &Group, position: usize) -> Result<()> {
        let begin = Instant::now();
        // The news seen last, and since when there were no others.
        let (mut seen, mut still) = (0, begin);
        loop {
            let end = still + group.world.patience.length();
            // Who looks out leaves the lock to those who are still to come.
            if self.news.load(Ordering::SeqCst) == seen && Instant::now() < end {
                let found = self.look_out(seen, end);
                group.world.patience.learn(!found);
            }
            let news = self.news.load(Ordering::SeqCst);
            if news != std::mem::replace(&mut seen, news) {
                still = Instant::now();
            }
            if self.is_done() {
                return self.outcome(position);
            }
            let mut state = lock(&self.state);
            if self.is_done() {
                drop(state);
                return self.outcome(position);
            }
            group.world.live()?;
            if let Some(work) = state.join() {
                drop(state);
                self.carry_out(work, position, group.world.processors);
                continue;
            }
            let waited = begin.elapsed();
            if state.work.is_none()
                && let Some(error) = self.hopeless(&state, group, waited)
            {
                drop(state);
                group.world.fail(error.clone());
                return Err(error);
            }
            if Instant::now() < still + group.world.patience.length() {
                continue;
            }
            let left = group.world.timeout.saturating_sub(waited).max(Duration::from_millis(1));
            state.asleep += 1;
            state = wait(&self.changed, state, left);
            state.asleep -= 1;
        }
    }

    /// Spins until there is news, or until `end`, which is false.
    fn look_out(&self, news: usize, end: Instant) -> bool {
        while Instant::now() < end {
            for _ in 0..32 {
                if self.news.load(Ordering::SeqCst) != news {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Why the missing ranks will not come, if so.
    fn hopeless(&self, state: &OpState, group: &Group, waited: Duration) -> Option<Error> {
        let (call, sequence) = (self.name, self.sequence);
        let missing = || group.ranks.iter().zip(&state.posts).filter(|(_, p)| p.is_none()).map(|(&r, _)| r);
        if let Some(rank) = missing().find(|&rank| group.world.has_left(rank)) {
            return Some(Error::Left { call, sequence, rank });
        }
        (waited >= group.world.timeout).then(|| Error::Timeout {
            call,
            sequence,
            missing: missing().collect(),
            waited,
        })
    }

    /// The group made of entry `index` of a split's list.
    pub(super) fn group(&self, index: usize) -> Option<Arc<Group>> {
        lock(&self.state).groups.get(index).cloned()
    }
}
