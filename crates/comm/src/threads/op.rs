//! One collective: who has come, the work once all have, and its end.

use super::group::Group;
use super::work::{SMALL, Work};
use crate::call::Signature;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait};
use planaria_array::Array;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank's part of a collective.
#[derive(Debug)]
pub(super) struct Post {
    pub(super) signature: Signature,
    pub(super) send: Option<Held>,
    pub(super) recv: Option<Array>,
}

/// What a rank's coming meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Others are missing.
    Waiting,
    /// This rank was the last and there is little work to do, which it does itself: nobody else is told of it.
    Small,
    /// This rank was the last and there is work to do, for as many as come.
    Large,
    /// This rank was the last and there is nothing left to do.
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
    done: AtomicBool,
}

#[derive(Debug, Default)]
struct OpState {
    posts: Vec<Option<Post>>,
    posted: usize,
    /// There from the last rank's coming to the last piece.
    work: Option<Arc<Work>>,
    /// Threads that have pieces in hand.
    active: usize,
    /// Threads that sleep until something changes.
    asleep: usize,
    error: Option<Error>,
    /// What a split made, in the order of its list.
    groups: Vec<Arc<Group>>,
}

impl Op {
    pub(super) fn new(name: &'static str, sequence: u64, size: usize) -> Op {
        let state = OpState { posts: (0..size).map(|_| None).collect(), ..OpState::default() };
        let (news, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        Op { name, sequence, state: Mutex::new(state), changed: Condvar::new(), news, done }
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
    pub(super) fn post(&self, position: usize, post: Post, group: &Arc<Group>) -> Result<Progress> {
        let mut state = lock(&self.state);
        self.check(&state, position, &post, group)?;
        state.posts[position] = Some(post);
        state.posted += 1;
        if state.posted < state.posts.len() {
            return Ok(Progress::Waiting);
        }
        let posts: Vec<Post> = state.posts.iter_mut().filter_map(Option::take).collect();
        if let Signature::Split { groups } = &posts[0].signature {
            state.groups.extend(groups.iter().map(|ranks| Group::new(group.world.clone(), ranks.clone())));
        }
        let work = Work::new(posts)?;
        Ok(match work.bytes() {
            0 => {
                self.done.store(true, Ordering::SeqCst);
                self.tell(state, usize::MAX);
                Progress::Done
            }
            1..=SMALL => {
                state.work = Some(Arc::new(work));
                Progress::Small
            }
            _ => {
                state.work = Some(Arc::new(work));
                // More would only take turns at the processors, and sleep again.
                self.tell(state, (group.world.processors - 1).max(1));
                Progress::Large
            }
        })
    }

    /// All ranks must have made calls that go together.
    fn check(&self, state: &OpState, position: usize, post: &Post, group: &Group) -> Result<()> {
        let other = |p: &usize| {
            state.posts[*p].as_ref().is_some_and(|o| !post.signature.fits(position, &o.signature, *p))
        };
        let Some(differs) = (0..state.posts.len()).find(other) else { return Ok(()) };
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
        let work = {
            let mut state = lock(&self.state);
            match &state.work {
                Some(work) if !work.is_taken() => {
                    let work = work.clone();
                    state.active += 1;
                    work
                }
                _ => return,
            }
        };
        let outcome = work.run(position, processors);
        // The sent bytes must be free again before anyone learns that the call is done.
        drop(work);
        let mut state = lock(&self.state);
        state.active -= 1;
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        if state.active == 0 && state.work.as_ref().is_some_and(|w| w.is_taken()) {
            state.work = None;
            self.done.store(true, Ordering::SeqCst);
            self.tell(state, usize::MAX);
        }
    }

    /// Helps, then waits for the end, for a failure of the world, or for too long.
    pub(super) fn wait(&self, group: &Group, position: usize) -> Result<()> {
        let begin = Instant::now();
        let (mut seen, mut still) = (usize::MAX, begin);
        loop {
            let news = self.news.load(Ordering::SeqCst);
            self.help(position, group.world.processors);
            let mut state = lock(&self.state);
            if self.is_done() {
                return state.error.clone().map_or(Ok(()), Err);
            }
            group.world.live()?;
            if state.work.as_ref().is_some_and(|w| !w.is_taken()) {
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
            if news != std::mem::replace(&mut seen, news) {
                still = begin + waited;
            }
            let end = still + group.world.patience.length();
            if Instant::now() < end {
                drop(state);
                let found = self.look_out(news, end);
                group.world.patience.learn(!found);
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
