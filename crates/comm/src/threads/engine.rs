//! The communicator of a thread rank.

use super::group::Group;
use super::little::LITTLE;
use super::op::{Op, Post, Progress};
use crate::alone::{self, check_group, check_groups};
use crate::call::{Call, Recv, Signature};
use crate::comm::{Comm, Pending, Wait};
use crate::error::{Error, Result};
use crate::held::Held;
use planaria_array::{Array, Device};
use planaria_layout::Rank;
use std::fmt;
use std::sync::Arc;

/// One rank's place in a group.
pub(super) struct ThreadComm {
    group: Arc<Group>,
    position: usize,
}

impl ThreadComm {
    pub(super) fn new(group: Arc<Group>, position: usize) -> ThreadComm {
        ThreadComm { group, position }
    }

    /// Adds this rank's part and waits for the others.
    fn meet(&self, post: Box<Post>) -> Result<Arc<Op>> {
        let (op, progress) = self.group.post(self.position, post)?;
        match progress {
            Progress::Done => op.outcome(self.position)?,
            Progress::Waiting | Progress::Large => op.wait(&self.group, self.position)?,
        }
        Ok(op)
    }

    /// Checks a call, for which this rank waits at once or later; one that needs no other rank is done at once.
    fn prepare(&self, call: Call, waits: bool) -> Result<Prepared> {
        self.group.world.live()?;
        call.check(self.position, self.group.ranks.len())?;
        match call {
            Call::Send(send) => self.group.mail.send(self.position, &send).map(|()| Prepared::Done),
            Call::Recv(call) => {
                let number = self.group.mail.expect(self.position, &call);
                Ok(Prepared::Receive { call, number })
            }
            call if self.group.ranks.len() == 1 => alone::copy(call).map(|()| Prepared::Done),
            call => post(call, self.position, waits).map(Prepared::Meet),
        }
    }
}

impl Comm for ThreadComm {
    fn rank(&self) -> usize {
        self.position
    }

    fn ranks(&self) -> &[Rank] {
        &self.group.ranks
    }

    fn start(&self, call: Call) -> Result<Pending> {
        match self.prepare(call, false)? {
            Prepared::Done => Ok(Pending::done()),
            Prepared::Receive { call, number } => {
                let (group, me) = (self.group.clone(), self.position);
                Ok(Pending::new(Receive { group, me, call, number }))
            }
            Prepared::Meet(post) => {
                let (op, progress) = self.group.post(self.position, post)?;
                if progress == Progress::Large {
                    self.group.world.help_with(op.clone());
                }
                Ok(Pending::new(Started { group: self.group.clone(), op, position: self.position }))
            }
        }
    }

    fn run(&self, call: Call) -> Result<()> {
        match self.prepare(call, true)? {
            Prepared::Done => Ok(()),
            Prepared::Receive { call, number } => {
                self.group.mail.recv(&self.group, self.position, &call, number)
            }
            Prepared::Meet(post) => self.meet(post).map(drop),
        }
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        check_groups(groups, &self.group.ranks)?;
        let signature = Signature::Split { groups: groups.to_vec() };
        let op = self.meet(Post::empty(signature))?;
        let me = self.group.ranks[self.position];
        let mine = groups.iter().enumerate().find_map(|(i, g)| Some((i, g.iter().position(|&r| r == me)?)));
        let Some((index, position)) = mine else { return Ok(None) };
        let group = op.group(index).ok_or_else(|| Error::argument("split", "the groups were not made"))?;
        Ok(Some(Arc::new(ThreadComm { group, position })))
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        self.group.world.live()?;
        let position = check_group(ranks, &self.group.ranks, self.position)?;
        Ok(Arc::new(ThreadComm { group: Group::named(&self.group.world, ranks), position }))
    }

    fn barrier(&self) -> Result<()> {
        self.meet(Post::empty(Signature::Barrier)).map(drop)
    }

    fn abort(&self, reason: &str) {
        let rank = self.group.ranks[self.position];
        self.group.world.fail(Error::Aborted { rank, reason: reason.into() });
    }
}

impl fmt::Debug for ThreadComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} threads", self.position, self.group.ranks.len())
    }
}

/// What is left of a call after its checks.
enum Prepared {
    /// Nothing.
    Done,
    /// Waiting for a message.
    Receive { call: Recv, number: u64 },
    /// Meeting the other ranks.
    Meet(Box<Post>),
}

/// What a rank contributes to a collective and where it wants the result.
fn post(call: Call, position: usize, waits: bool) -> Result<Box<Post>> {
    let Some(signature) = call.signature() else {
        return Err(Error::argument(call.name(), "a message is between two ranks, not a collective"));
    };
    let (send, recv) = match call {
        Call::AllReduce(c) => (Some(c.send), Some(c.recv)),
        Call::Reduce(c) => (Some(c.send), c.recv.filter(|_| c.root == position)),
        Call::Broadcast(c) if c.root == position => (Some(c.data), None),
        Call::Broadcast(c) => (None, Some(c.data)),
        Call::AllGather(c) => (Some(c.send), Some(c.recv)),
        Call::ReduceScatter(c) => (Some(c.send), Some(c.recv)),
        Call::AllToAll(c) => (Some(c.send), Some(c.recv)),
        Call::Send(c) => (Some(c.data), None),
        Call::Recv(c) => (None, Some(c.data)),
    };
    let send = send.map(|send| Held::copied(&send, recv.as_ref(), LITTLE)).transpose()?;
    let much = |recv: &&Array| recv.device() != Device::Cpu || recv.numel() * recv.dtype().size() > LITTLE;
    if let Some(recv) = recv.as_ref().filter(much) {
        // Where someone holds the old bytes of a receiving array, as an in-place call itself does, it gets fresh ones now: later,
        // each write would have to keep what it does not overwrite. Its own thread asks for them, so they are counted as its own.
        recv.renew()?;
    }
    Ok(Box::new(Post { signature, send, recv, waits }))
}

/// A started collective.
struct Started {
    group: Arc<Group>,
    op: Arc<Op>,
    position: usize,
}

impl Wait for Started {
    fn wait(self: Box<Self>) -> Result<()> {
        self.op.wait(&self.group, self.position)
    }

    fn is_done(&self) -> bool {
        self.op.is_done() || self.group.world.live().is_err()
    }
}

impl fmt::Debug for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a collective under way")
    }
}

/// A started receive.
struct Receive {
    group: Arc<Group>,
    me: usize,
    call: Recv,
    number: u64,
}

impl Wait for Receive {
    fn wait(self: Box<Self>) -> Result<()> {
        self.group.mail.recv(&self.group, self.me, &self.call, self.number)
    }

    fn is_done(&self) -> bool {
        self.group.mail.has_come(self.me, &self.call, self.number) || self.group.world.live().is_err()
    }
}

impl fmt::Debug for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a receive from rank {}", self.group.ranks[self.call.from])
    }
}
