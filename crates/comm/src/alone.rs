//! The communicator of one rank: no threads, no locks around the calls; a collective is a copy or nothing.

use crate::call::{Call, Recv};
use crate::comm::{Comm, Pending, Wait};
use crate::error::{Error, Result};
use crate::held::{Held, flat};
use planaria_array::Array;
use planaria_layout::{Combine, Rank, Reduce};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The communicator of one rank, world rank 0.
pub fn alone() -> Arc<dyn Comm> {
    Arc::new(Alone { ranks: [0], failure: OnceLock::new(), lines: Arc::default() })
}

#[derive(Debug)]
struct Alone {
    ranks: [Rank; 1],
    failure: OnceLock<Error>,
    /// Messages to itself, by tag.
    lines: Arc<Mutex<HashMap<u32, Line>>>,
}

/// Messages of one tag: the n-th receive gets the n-th.
#[derive(Debug, Default)]
struct Line {
    sent: u64,
    awaited: u64,
    letters: HashMap<u64, (Held, String)>,
}

impl Comm for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    fn start(&self, call: Call) -> Result<Pending> {
        self.live()?;
        call.check(0, 1)?;
        let mut lines = lock(&self.lines);
        match call {
            Call::Send(c) => {
                let letter = (Held::of(&c.data)?, describe(&c.data));
                let line = lines.entry(c.tag).or_default();
                line.letters.insert(line.sent, letter);
                line.sent += 1;
                Ok(Pending::done())
            }
            Call::Recv(call) => {
                let line = lines.entry(call.tag).or_default();
                line.awaited += 1;
                Ok(Pending::new(Receive { lines: self.lines.clone(), number: line.awaited - 1, call }))
            }
            collective => copy(collective).map(|()| Pending::done()),
        }
    }

    fn run(&self, call: Call) -> Result<()> {
        self.start(call)?.wait()
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        self.live()?;
        check_groups(groups, &self.ranks)?;
        Ok(groups.iter().any(|group| !group.is_empty()).then(alone))
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        self.live()?;
        check_group(ranks, &self.ranks, 0)?;
        Ok(alone())
    }

    fn barrier(&self) -> Result<()> {
        self.live()
    }

    fn abort(&self, reason: &str) {
        let _ = self.failure.set(Error::Aborted { rank: 0, reason: reason.into() });
    }
}

impl Alone {
    fn live(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |e| Err(e.clone()))
    }
}

fn lock(lines: &Mutex<HashMap<u32, Line>>) -> MutexGuard<'_, HashMap<u32, Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A started receive.
#[derive(Debug)]
struct Receive {
    lines: Arc<Mutex<HashMap<u32, Line>>>,
    number: u64,
    call: Recv,
}

impl Wait for Receive {
    fn wait(self: Box<Self>) -> Result<()> {
        let tag = self.call.tag;
        let letter = lock(&self.lines).get_mut(&tag).and_then(|line| line.letters.remove(&self.number));
        match letter {
            Some((sent, found)) => deliver(&self.call.data, &sent, found, 0, tag),
            // Nobody else can send it later.
            None => {
                let what =
                    format!("a rank alone waits for a message to itself, tag {tag}, that it never sent");
                Err(Error::argument("recv", what))
            }
        }
    }

    fn is_done(&self) -> bool {
        true
    }
}

/// A collective of one rank.
pub(crate) fn copy(call: Call) -> Result<()> {
    let reduced = |send: &Array, recv: &Array, op| match op {
        Reduce::Any | Reduce::All => {
            let sent = flat(&send.copy()?)?;
            Ok(flat(recv)?.fold_from(Combine::of(op, 1), &[sent])?)
        }
        _ => copy_flat(send, recv),
    };
    match call {
        Call::AllReduce(c) => reduced(&c.send, &c.recv, c.op),
        Call::Reduce(c) => c.recv.map_or(Ok(()), |recv| reduced(&c.send, &recv, c.op)),
        Call::ReduceScatter(c) => reduced(&c.send, &c.recv, c.op),
        Call::AllGather(c) => copy_flat(&c.send, &c.recv),
        Call::AllToAll(c) => copy_flat(&c.send, &c.recv),
        Call::Broadcast(_) | Call::Send(_) | Call::Recv(_) => Ok(()),
    }
}

/// Copies between arrays of one length whose shapes may differ.
fn copy_flat(from: &Array, to: &Array) -> Result<()> {
    if from.shares_storage(to) && from.offset() == to.offset() {
        return Ok(());
    }
    Ok(flat(to)?.copy_from(&flat(from)?)?)
}

/// `f32 x 12`, for messages about messages.
pub(crate) fn describe(data: &Array) -> String {
    format!("{} x {}", data.dtype(), data.numel())
}

/// Writes a message into the array that waits for it.
pub(crate) fn deliver(data: &Array, sent: &Held, found: String, from: Rank, tag: u32) -> Result<()> {
    accept(data, found, from, tag)?;
    sent.write_to(data)
}

/// Refuses a message that is not what an array waits for, and makes the array ready for one that is.
pub(crate) fn accept(data: &Array, found: String, from: Rank, tag: u32) -> Result<()> {
    let expected = describe(data);
    if expected != found {
        return Err(Error::Message { from, tag, expected, found });
    }
    data.renew()?;
    Ok(())
}

/// Different members of the parent, this rank among them; its position in the list.
pub(crate) fn check_group(list: &[Rank], ranks: &[Rank], position: usize) -> Result<usize> {
    check_members("group", list, ranks)?;
    let me = ranks[position];
    let outside = || Error::argument("group", format!("this is rank {me}, which is not in {list:?}"));
    list.iter().position(|&rank| rank == me).ok_or_else(outside)
}

/// Members of the parent, each in one group at most.
pub(crate) fn check_groups(groups: &[Vec<Rank>], ranks: &[Rank]) -> Result<()> {
    check_members("split", &groups.concat(), ranks)
}

fn check_members(call: &'static str, list: &[Rank], ranks: &[Rank]) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    let members: std::collections::HashSet<&Rank> = ranks.iter().collect();
    for rank in list {
        if !members.contains(rank) {
            return Err(Error::argument(call, format!("rank {rank} is not one of {ranks:?}")));
        }
        if !seen.insert(rank) {
            return Err(Error::argument(call, format!("rank {rank} is named twice in {list:?}")));
        }
    }
    Ok(())
}
