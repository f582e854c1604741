//! Collectives as steps: send what can be sent, wait for letters, combine or copy, perhaps once more.

use super::carrier::engine_error;
use super::levels::Levels;
use super::memory::{Room, Sent, Target};
use super::post::{Letter, Post};
use super::wire::Line;
use crate::call::{Broadcast, Call, Signature};
use crate::error::{Error, Result};
use planaria_array::ops::fold_bytes;
use planaria_array::{Array, Bytes};
use planaria_layout::{Combine, DType, Rank, Reduce};
use std::ops::Range;
use std::sync::Arc;

/// Up to this many bytes, an all-reduce sends everything to everyone: one step instead of two.
pub(super) const SMALL: usize = 4096;

/// What a collective does once the letters are there.
#[derive(Debug)]
enum Plan {
    /// Combine all ranks' parts into an array.
    Combine { op: Reduce, recv: Array },
    /// Combine this rank's share, then give it to everyone.
    Share { op: Reduce, recv: Array },
    /// Write each rank's part to its place.
    Place { recv: Array, at: Vec<Range<usize>> },
    /// Nothing: everyone's coming was the point.
    Meet,
}

/// A collective under way.
#[derive(Debug)]
pub(super) struct Steps {
    group: u64,
    ranks: Arc<[Rank]>,
    me: usize,
    sequence: u64,
    pub(super) name: &'static str,
    text: String,
    dtype: DType,
    phase: u8,
    plan: Plan,
    /// Own part of the current step.
    own: Sent,
    /// Positions that letters come from in the current step, own excluded, and the bytes they must have.
    awaited: Vec<(usize, usize)>,
    /// The receiving array's memory, which the letters' contents go to as they come.
    room: Option<Arc<Room>>,
}

/// How far a collective has come.
#[derive(Debug)]
pub(super) enum Turn {
    /// Letters are missing.
    Waiting,
    /// The letters of a step, by position; own excluded.
    Ready(Vec<Option<Letter>>),
}

/// The first step of a collective on one rank.
struct Outline {
    send: Arc<Bytes>,
    /// What goes to each position; its own part is used here.
    parts: Vec<Option<Range<usize>>>,
    /// Bytes that come from each of some positions.
    from: Vec<(usize, usize)>,
    plan: Plan,
}

fn outline(call: Call, me: usize, size: usize, unit: usize) -> Result<Outline> {
    let all = |bytes: usize| (0..size).map(|i| (i, bytes)).collect::<Vec<_>>();
    let each = |counts: &[usize]| counts.iter().enumerate().map(|(i, &n)| (i, n * unit)).collect::<Vec<_>>();
    let some = |parts: Vec<Range<usize>>| parts.into_iter().map(Some).collect::<Vec<_>>();
    let (send, parts, from, plan) = match call {
        Call::AllReduce(c) => {
            let (bytes, send) = (c.send.numel() * unit, hold(&c.send, Some(&c.recv))?);
            let parts = shares(c.send.numel(), size, unit);
            let (op, recv, mine) = (c.op, c.recv, parts[me].len());
            match bytes <= SMALL {
                true => (send, some(vec![0..bytes; size]), all(bytes), Plan::Combine { op, recv }),
                false => (send, some(parts), all(mine), Plan::Share { op, recv }),
            }
        }
        Call::Reduce(c) => {
            let (bytes, send) = (c.send.numel() * unit, hold(&c.send, c.recv.as_ref())?);
            let mut parts = vec![None; size];
            parts[c.root] = Some(0..bytes);
            match c.recv.filter(|_| c.root == me) {
                Some(recv) => (send, parts, all(bytes), Plan::Combine { op: c.op, recv }),
                None => (send, parts, Vec::new(), Plan::Meet),
            }
        }
        Call::ReduceScatter(c) => {
            let (send, mine) = (hold(&c.send, Some(&c.recv))?, c.send_counts[me] * unit);
            let plan = Plan::Combine { op: c.op, recv: c.recv };
            (send, some(ranges(&c.send_counts, unit)), all(mine), plan)
        }
        Call::AllGather(c) => {
            let (bytes, send) = (c.send.numel() * unit, hold(&c.send, Some(&c.recv))?);
            let plan = Plan::Place { recv: c.recv, at: ranges(&c.recv_counts, unit) };
            (send, some(vec![0..bytes; size]), each(&c.recv_counts), plan)
        }
        Call::AllToAll(c) => {
            let (send, parts) = (hold(&c.send, Some(&c.recv))?, ranges(&c.send_counts, unit));
            let plan = Plan::Place { recv: c.recv, at: ranges(&c.recv_counts, unit) };
            (send, some(parts), each(&c.recv_counts), plan)
        }
        Call::Broadcast(c) => return broadcast(&c, me, size, unit),
        Call::Send(_) | Call::Recv(_) => {
            return Err(Error::argument("collective", "a message is between two ranks"));
        }
    };
    Ok(Outline { send, parts, from, plan })
}

fn broadcast(call: &Broadcast, me: usize, size: usize, unit: usize) -> Result<Outline> {
    let bytes = call.data.numel() * unit;
    if call.root == me {
        let (send, parts) = (hold(&call.data, None)?, vec![Some(0..bytes); size]);
        return Ok(Outline { send, parts, from: Vec::new(), plan: Plan::Meet });
    }
    let mut at = vec![0..0; size];
    at[call.root] = 0..bytes;
    let (nothing, recv) = (Array::empty(&[0], call.data.dtype())?, call.data.clone());
    let plan = Plan::Place { recv, at };
    Ok(Outline { send: hold(&nothing, None)?, parts: vec![None; size], from: vec![(call.root, bytes)], plan })
}

/// Which group a collective belongs to, and where it stands in it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) group: u64,
    pub(super) ranks: Arc<[Rank]>,
    pub(super) me: usize,
    pub(super) sequence: u64,
    pub(super) levels: Option<Arc<Levels>>,
}

impl Steps {
    /// Sends the first letters of a collective.
    pub(super) fn begin(post: &mut Post, place: Place, signature: &Signature, call: Call) -> Result<Steps> {
        let (me, size) = (place.me, place.ranks.len());
        let unit = signature.dtype().size();
        let Outline { send, parts, from, plan } = outline(call, me, size, unit)?;
        let own = parts[me].clone().unwrap_or(0..0);
        let mut running = Steps::new(place, signature, plan, Sent::part(send.clone(), own), from);
        running.expect(post)?;
        // What many get is one thing to a carrier.
        let mut last: Option<(Range<usize>, Sent)> = None;
        for (to, range) in parts.into_iter().enumerate().filter(|&(to, _)| to != me) {
            let Some(range) = range else { continue };
            let same = last.as_ref().filter(|(other, _)| *other == range).map(|(_, sent)| sent.clone());
            let sent = same.unwrap_or_else(|| Sent::part(send.clone(), range.clone()));
            running.send(post, to, sent.clone())?;
            last = Some((range, sent));
        }
        Ok(running)
    }

    /// A step that only has everyone come: a barrier, or a split, whose lists are in the text.
    pub(super) fn meet(post: &mut Post, place: Place, signature: &Signature) -> Result<Steps> {
        let peers: Vec<_> = (0..place.ranks.len()).map(|i| (i, 0)).collect();
        let mut running = Steps::new(place, signature, Plan::Meet, Sent::text(&[]), peers.clone());
        running.expect(post)?;
        for (to, _) in peers.into_iter().filter(|&(to, _)| to != running.me) {
            running.send(post, to, Sent::text(&[]))?;
        }
        Ok(running)
    }

    fn new(place: Place, signature: &Signature, plan: Plan, own: Sent, from: Vec<(usize, usize)>) -> Steps {
        let Place { group, ranks, me, sequence, .. } = place;
        let awaited = from.into_iter().filter(|&(i, _)| i != me).collect();
        let (name, dtype) = (signature.name(), signature.dtype());
        Steps {
            group,
            ranks,
            me,
            sequence,
            name,
            text: signature.common(),
            dtype,
            phase: 0,
            plan,
            own,
            awaited,
            room: None,
        }
    }

    /// Says where the letters of a step go: straight to their places, or to memory of their own.
    fn expect(&mut self, post: &mut Post) -> Result<()> {
        let places = match &self.plan {
            Plan::Place { recv, at } => {
                self.room = recv.lend()?.map(Room::new);
                at.as_slice()
            }
            _ => &[],
        };
        let line = self.line();
        for &(i, _) in &self.awaited {
            let place = |room: &Arc<Room>| Target { room: room.clone(), at: places[i].clone() };
            post.expect(self.ranks[i], line, self.room.as_ref().map(place))?;
        }
        Ok(())
    }

    fn line(&self) -> Line {
        Line::collective(self.group, self.sequence, self.phase)
    }

    fn send(&self, post: &mut Post, to: usize, contents: Sent) -> Result<()> {
        post.send(self.ranks[to], self.line(), &self.text, contents)
    }

    /// Ranks whose letters of this step have not begun to come.
    pub(super) fn missing(&self, post: &Post) -> Vec<Rank> {
        let missing = |i: usize| !post.has_begun(self.ranks[i], self.line(), 0);
        self.awaited.iter().filter(|(i, _)| missing(*i)).map(|&(i, _)| self.ranks[i]).collect()
    }

    /// The letters of the current step, once all have come.
    pub(super) fn turn(&mut self, post: &mut Post) -> Result<Turn> {
        let line = self.line();
        if !self.awaited.iter().all(|&(i, _)| post.has(self.ranks[i], line, 0)) {
            return Ok(Turn::Waiting);
        }
        let mut letters: Vec<Option<Letter>> = (0..self.ranks.len()).map(|_| None).collect();
        for (i, bytes) in std::mem::take(&mut self.awaited) {
            let letter = post.take(self.ranks[i], line, 0);
            self.check(i, bytes, letter.as_ref())?;
            letters[i] = letter;
        }
        Ok(Turn::Ready(letters))
    }

    /// A letter must belong to the same call and have the right length.
    fn check(&self, from: usize, bytes: usize, letter: Option<&Letter>) -> Result<()> {
        let Some(letter) = letter else { return Ok(()) };
        let found = letter.length;
        if letter.text == self.text && found == bytes {
            return Ok(());
        }
        let counted = |text: &str, bytes: usize| match letter.text == self.text {
            true => format!(
                "{text} with {bytes} bytes from rank {} to rank {}",
                self.ranks[from], self.ranks[self.me]
            ),
            false => text.to_string(),
        };
        Err(Error::Mismatch {
            sequence: self.sequence,
            first: self.ranks[self.me],
            expected: counted(&self.text, bytes),
            rank: self.ranks[from],
            found: counted(&letter.text, found),
        })
    }

    /// Uses the letters of a step: folds or copies, without the post, so that letters of other calls move meanwhile.
    /// True when another step follows, which [`Steps::next`] begins.
    pub(super) fn step(&mut self, letters: &[Option<Letter>]) -> Result<bool> {
        let own = self.own.bytes();
        match &self.plan {
            Plan::Meet => Ok(false),
            Plan::Combine { op, recv } => {
                recv.renew()?;
                let inputs = inputs(letters, own)?;
                let how = Combine::of(*op, inputs.len());
                recv.write_bytes(0..own.len(), |out| fold_bytes(how, self.dtype, &inputs, out))??;
                Ok(false)
            }
            Plan::Place { recv, at } => {
                // Where only one rank's part comes, the others' places are empty.
                let parts = letters
                    .iter()
                    .map(|letter| contents(letter, own))
                    .zip(at)
                    .filter(|(_, at)| !at.is_empty());
                match self.room.take() {
                    Some(room) => {
                        let mut lent = room.into_lent().ok_or_else(lost)?;
                        let here = parts.filter_map(|(part, at)| Some((part?, at)));
                        here.for_each(|(part, at)| lent.memory()[at.clone()].copy_from_slice(part));
                        lent.give_back()?;
                    }
                    None => {
                        for (part, at) in parts {
                            let part = part.ok_or_else(lost)?;
                            recv.write_bytes(at.clone(), |out| out.copy_from_slice(part))?;
                        }
                    }
                }
                Ok(false)
            }
            Plan::Share { op, recv } => {
                let inputs = inputs(letters, own)?;
                let result = Array::empty(&[own.len()], DType::U8)?;
                let how = Combine::of(*op, inputs.len());
                result.write_bytes(0..own.len(), |out| fold_bytes(how, self.dtype, &inputs, out))??;
                let at = shares(recv.numel(), self.ranks.len(), self.dtype.size());
                let (recv, length) = (recv.clone(), own.len());
                self.own = Sent::part(Arc::new(result.bytes()?), 0..length);
                let peers = at.iter().enumerate().filter(|&(i, _)| i != self.me);
                self.awaited = peers.map(|(i, at)| (i, at.len())).collect();
                self.plan = Plan::Place { recv, at };
                self.phase = 1;
                Ok(true)
            }
        }
    }

    /// Begins the step that follows: everyone gets this rank's share.
    pub(super) fn next(&mut self, post: &mut Post) -> Result<()> {
        self.expect(post)?;
        let peers = (0..self.ranks.len()).filter(|&to| to != self.me);
        peers.into_iter().try_for_each(|to| self.send(post, to, self.own.clone()))
    }
}

/// What a rank sent, this one's own where there is no letter; nothing where it went straight to its place.
fn contents<'a>(letter: &'a Option<Letter>, own: &'a [u8]) -> Option<&'a [u8]> {
    letter.as_ref().map_or(Some(own), Letter::contents)
}

/// Every rank's contribution.
fn inputs<'a>(letters: &'a [Option<Letter>], own: &'a [u8]) -> Result<Vec<&'a [u8]>> {
    letters.iter().map(|letter| contents(letter, own).ok_or_else(lost)).collect()
}

fn lost() -> Error {
    engine_error("a letter's contents are not where they were sent")
}

/// The bytes of `send` as they are now. When `recv` is another part of the same storage, writing it would first
/// have to copy all of that storage; copying what is sent is cheaper.
pub(super) fn hold(send: &Array, recv: Option<&Array>) -> Result<Arc<Bytes>> {
    let entangled = recv.is_some_and(|recv| send.shares_storage(recv) && !recv.is_whole());
    Ok(Arc::new(if entangled { send.copy()?.bytes()? } else { send.bytes()? }))
}

/// Byte ranges of parts that lie one after the other.
fn ranges(counts: &[usize], unit: usize) -> Vec<Range<usize>> {
    let mut at = 0;
    let mut range = |&count: &usize| {
        at += count * unit;
        at - count * unit..at
    };
    counts.iter().map(&mut range).collect()
}

/// Byte ranges of nearly equal shares of `numel` elements.
pub(super) fn shares(numel: usize, size: usize, unit: usize) -> Vec<Range<usize>> {
    let counts: Vec<usize> = (0..size).map(|i| numel / size + usize::from(i < numel % size)).collect();
    ranges(&counts, unit)
}
