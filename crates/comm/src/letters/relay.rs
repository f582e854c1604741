//! Collectives over hosts: chunks that are folded from host to host and spread on each of them, many under way at once.

use super::carrier::engine_error;
use super::levels::{Chunk, Levels, Traffic, between};
use super::memory::{Room, Sent, Target};
use super::post::{Letter, Post};
use super::step::{Place, hold};
use super::wire::{Leg, Line};
use crate::call::{Call, Signature};
use crate::error::{Error, Result};
use planaria_array::ops::fold_part;
use planaria_array::{Array, Bytes, DType};
use planaria_layout::{Combine, Rank};
use std::sync::Arc;

/// Most chunks that are folded or copied before what came of them is sent.
const AT_ONCE: usize = 4;

/// What a rank does with a chunk once its letters are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Folds the contributions of this host's ranks on top of what the hosts before gave.
    Fold,
    /// Hands on what is done: to the next host, to the ranks of this one, to its own place.
    Pass,
    /// Has it in its place.
    Land,
}

/// A chunk that waits for letters: who sends them, on which leg, and how long they are.
#[derive(Debug)]
struct Task {
    index: usize,
    work: Work,
    letters: Vec<(usize, Leg, usize)>,
}

/// A collective over hosts under way on one rank.
#[derive(Debug)]
pub(super) struct Relay {
    place: Place,
    levels: Arc<Levels>,
    pub(super) name: &'static str,
    text: String,
    dtype: DType,
    how: Combine,
    traffic: Traffic,
    chunks: Vec<Chunk>,
    /// What this rank contributes.
    own: Arc<Bytes>,
    recv: Option<Array>,
    /// The receiving array's memory, which chunks go to as they come.
    room: Option<Arc<Room>>,
    waiting: Vec<Task>,
    ready: Vec<(Task, Vec<Letter>)>,
    outgoing: Vec<(usize, Leg, usize, Sent)>,
    /// Positions that have not said yet that they make this call too.
    absent: Vec<usize>,
    /// The post's news that were looked at.
    seen: Option<u64>,
}

/// A collective as it goes over hosts: what it is, what this rank sends, and where it receives.
type Parts = (Traffic, Arc<Bytes>, Option<Array>);

/// The bytes of a call, what it sends and where it receives, if it can go over hosts.
fn parts(call: &Call, me: usize) -> Result<Option<Parts>> {
    Ok(Some(match call {
        Call::AllReduce(c) => {
            let traffic = Traffic::AllReduce { op: c.op, dtype: c.send.dtype(), count: c.send.numel() };
            (traffic, hold(&c.send, Some(&c.recv))?, Some(c.recv.clone()))
        }
        Call::Reduce(c) => {
            let (op, dtype, count, root) = (c.op, c.send.dtype(), c.send.numel(), c.root);
            let recv = c.recv.clone().filter(|_| root == me);
            (Traffic::Reduce { op, dtype, count, root }, hold(&c.send, recv.as_ref())?, recv)
        }
        Call::ReduceScatter(c) => {
            let (op, dtype, counts) = (c.op, c.send.dtype(), c.send_counts.clone());
            let traffic = Traffic::ReduceScatter { op, dtype, counts };
            (traffic, hold(&c.send, Some(&c.recv))?, Some(c.recv.clone()))
        }
        Call::AllGather(c) => {
            let traffic = Traffic::AllGather { dtype: c.send.dtype(), counts: c.recv_counts.clone() };
            (traffic, hold(&c.send, Some(&c.recv))?, Some(c.recv.clone()))
        }
        Call::Broadcast(c) => {
            let (dtype, count, root) = (c.data.dtype(), c.data.numel(), c.root);
            let nothing = Array::empty(&[0], dtype)?;
            let (send, recv) = if root == me { (&c.data, None) } else { (&nothing, Some(c.data.clone())) };
            (Traffic::Broadcast { dtype, count, root }, hold(send, None)?, recv)
        }
        Call::AllToAll(_) | Call::Send(_) | Call::Recv(_) => return Ok(None),
    }))
}

impl Relay {
    /// Sends the first letters of a collective; `None` where it is better without hosts.
    pub(super) fn begin(
        post: &mut Post,
        place: &Place,
        signature: &Signature,
        call: &Call,
    ) -> Result<Option<Relay>> {
        let Some(levels) = place.levels.clone() else { return Ok(None) };
        let Some((traffic, own, recv)) = parts(call, place.me)? else { return Ok(None) };
        if !levels.saves(&traffic) {
            return Ok(None);
        }
        let how = match traffic {
            Traffic::AllReduce { op, .. }
            | Traffic::Reduce { op, .. }
            | Traffic::ReduceScatter { op, .. } => Combine::of(op, place.ranks.len()),
            _ => Combine::of(planaria_layout::Reduce::Sum, 1),
        };
        let me = place.me;
        let mut relay = Relay {
            place: place.clone(),
            name: signature.name(),
            text: signature.common(),
            dtype: signature.dtype(),
            how,
            chunks: levels.chunks(&traffic),
            levels,
            traffic,
            own,
            room: recv.as_ref().map(Array::lend).transpose()?.flatten().map(Room::new),
            recv,
            waiting: Vec::new(),
            ready: Vec::new(),
            outgoing: Vec::new(),
            absent: (0..place.ranks.len()).filter(|&i| i != me).collect(),
            seen: None,
        };
        // Every rank tells every other which call it makes; chunks need not say it again.
        for &to in &relay.absent {
            post.send(place.ranks[to], relay.call_line(), &relay.text, Sent::text(&[]))?;
            post.expect(place.ranks[to], relay.call_line(), None)?;
        }
        (0..relay.chunks.len()).for_each(|index| relay.enter(index));
        relay.expect(post)?;
        relay.next(post)?;
        Ok(Some(relay))
    }

    /// This rank's tasks for a chunk.
    fn enter(&mut self, index: usize) {
        let (chunk, me) = (self.chunks[index].clone(), self.place.me);
        let (here, last) = (self.levels.host(me), self.levels.last());
        let keeper = |host: usize| self.levels.keeper(host, index, &chunk);
        let bytes = chunk.sent.len();
        let origin = chunk.from.unwrap_or_else(|| keeper(last));
        let mut task = |work: Work, letters: Vec<(usize, Leg, usize)>| {
            self.waiting.push(Task { index, work, letters });
        };
        if chunk.from.is_none() {
            if keeper(here) == me {
                let before = (here > 0).then(|| (keeper(here - 1), Leg::Part, between(&self.traffic, bytes)));
                let others = self.levels.members(here).filter(|&i| i != me);
                task(Work::Fold, before.into_iter().chain(others.map(|i| (i, Leg::Own, bytes))).collect());
            } else {
                let contribution = Sent::part(self.own.clone(), chunk.sent.clone());
                self.outgoing.push((keeper(here), Leg::Own, index, contribution));
            }
        }
        let home = self.levels.host(origin);
        match chunk.to {
            // Who folds last hands on at once.
            _ if origin == me && chunk.from.is_none() => {}
            _ if origin == me => task(Work::Pass, Vec::new()),
            Some(to) if to == me => task(Work::Land, vec![(origin, Leg::Spread, bytes)]),
            Some(_) => {}
            None if home == here => task(Work::Land, vec![(origin, Leg::Spread, bytes)]),
            None if keeper(here) == me => {
                let before = if here == last { 0 } else { here + 1 };
                task(Work::Pass, vec![(keeper(before), Leg::Done, bytes)]);
            }
            None => task(Work::Land, vec![(keeper(here), Leg::Spread, bytes)]),
        }
    }

    fn call_line(&self) -> Line {
        Line::collective(self.place.group, self.place.sequence, 0)
    }

    fn line(&self, leg: Leg, index: usize) -> Line {
        Line::chunk(self.place.group, self.place.sequence, leg, index)
    }

    fn expect(&self, post: &mut Post) -> Result<()> {
        for task in &self.waiting {
            let chunk = &self.chunks[task.index];
            let place = |room: &Arc<Room>| {
                let at = chunk.at..chunk.at + chunk.sent.len();
                Target { room: room.clone(), at }
            };
            let target = self.room.as_ref().filter(|_| task.work == Work::Land).map(place);
            for &(from, leg, _) in &task.letters {
                post.expect(self.place.ranks[from], self.line(leg, task.index), target.clone())?;
            }
        }
        Ok(())
    }

    /// Ranks whose letters have not begun to come: those that have not made the call, if there are such.
    pub(super) fn missing(&self, post: &Post) -> Vec<Rank> {
        let rank = |i: usize| self.place.ranks[i];
        let away = |&&i: &&usize| !post.has_begun(rank(i), self.call_line(), 0);
        let absent: Vec<Rank> = self.absent.iter().filter(away).map(|&i| rank(i)).collect();
        if !absent.is_empty() {
            return absent;
        }
        let letters =
            self.waiting.iter().flat_map(|task| task.letters.iter().map(|letter| (task.index, letter)));
        let away =
            letters.filter(|&(index, &(from, leg, _))| !post.has_begun(rank(from), self.line(leg, index), 0));
        let mut away: Vec<Rank> = away.map(|(_, &(from, ..))| rank(from)).collect();
        away.sort_unstable();
        away.dedup();
        away
    }

    /// True when there is something to do without the post: chunks whose letters have come, or the end.
    pub(super) fn turn(&mut self, post: &mut Post) -> Result<bool> {
        if self.seen == Some(post.news()) {
            return Ok(false);
        }
        let line = self.call_line();
        let ranks = self.place.ranks.clone();
        for from in std::mem::take(&mut self.absent) {
            match post.has(ranks[from], line, 0) {
                true => self.check(from, post.take(ranks[from], line, 0).as_ref())?,
                false => self.absent.push(from),
            }
        }
        self.seen = Some(post.news());
        for task in std::mem::take(&mut self.waiting) {
            let has =
                |&(from, leg, _): &(usize, Leg, usize)| post.has(ranks[from], self.line(leg, task.index), 0);
            if !task.letters.iter().all(has) {
                self.waiting.push(task);
                continue;
            }
            if self.ready.len() == AT_ONCE {
                self.waiting.push(task);
                self.seen = None;
                continue;
            }
            let mut letters = Vec::new();
            for &(from, leg, bytes) in &task.letters {
                let letter = post.take(ranks[from], self.line(leg, task.index), 0).ok_or_else(lost)?;
                if letter.length != bytes {
                    let what = format!(
                        "rank {} sent {} bytes of a chunk of {bytes} in {}",
                        ranks[from], letter.length, self.text
                    );
                    return Err(engine_error(what));
                }
                letters.push(letter);
            }
            self.ready.push((task, letters));
        }
        Ok(!self.ready.is_empty() || self.waiting.is_empty() && self.absent.is_empty())
    }

    /// A rank must make the same call.
    fn check(&self, from: usize, letter: Option<&Letter>) -> Result<()> {
        match letter.filter(|letter| letter.text != self.text || letter.length != 0) {
            None => Ok(()),
            Some(letter) => Err(Error::Mismatch {
                sequence: self.place.sequence,
                first: self.place.ranks[self.place.me],
                expected: self.text.clone(),
                rank: self.place.ranks[from],
                found: letter.text.clone(),
            }),
        }
    }

    /// Folds and copies what has come. False at the end, else [`Relay::next`] sends what came of it.
    pub(super) fn step(&mut self) -> Result<bool> {
        if self.ready.is_empty() {
            if let Some(room) = self.room.take() {
                room.into_lent().ok_or_else(lost)?.give_back()?;
            }
            return Ok(false);
        }
        // This may have been the last of them.
        self.seen = None;
        for (task, letters) in std::mem::take(&mut self.ready) {
            let chunk = self.chunks[task.index].clone();
            match task.work {
                Work::Fold => {
                    let here = self.levels.host(self.place.me);
                    let folded = self.fold(&chunk, here, &letters)?;
                    drop(letters);
                    match here == self.levels.last() {
                        true => self.pass(task.index, &chunk, folded)?,
                        false => {
                            let next = self.levels.keeper(here + 1, task.index, &chunk);
                            self.outgoing.push((next, Leg::Part, task.index, folded));
                        }
                    }
                }
                Work::Pass => {
                    let done = match letters.into_iter().next() {
                        Some(letter) => letter.into_contents().ok_or_else(lost)?,
                        None => Sent::part(self.own.clone(), chunk.sent.clone()),
                    };
                    self.pass(task.index, &chunk, done)?;
                }
                Work::Land => {
                    if let Some(bytes) = letters.first().and_then(Letter::contents) {
                        self.land(&chunk, bytes)?;
                    }
                }
            }
        }
        Ok(true)
    }

    fn fold(&self, chunk: &Chunk, here: usize, letters: &[Letter]) -> Result<Sent> {
        let (before, others) = letters.split_at(usize::from(here > 0));
        let contents = |letter: &'_ Letter| letter.contents().is_some().then_some(()).ok_or_else(lost);
        letters.iter().try_for_each(contents)?;
        let before = before.first().and_then(Letter::contents);
        let members = self.levels.members(here);
        let mut others = others.iter().filter_map(Letter::contents);
        let own = &self.own[chunk.sent.clone()];
        let each = |i: usize| if i == self.place.me { Some(own) } else { others.next() };
        let inputs = members.map(each).collect::<Option<Vec<_>>>().ok_or_else(lost)?;
        let more = here < self.levels.last();
        let length = if more { between(&self.traffic, own.len()) } else { own.len() };
        let out = Array::empty(&[length], DType::U8)?;
        out.write_bytes(0..length, |out| fold_part(self.how, self.dtype, before, &inputs, out, more))??;
        Ok(Sent::part(Arc::new(out.bytes()?), 0..length))
    }

    /// Hands a chunk on that is done.
    fn pass(&mut self, index: usize, chunk: &Chunk, done: Sent) -> Result<()> {
        let me = self.place.me;
        let here = self.levels.host(me);
        match chunk.to {
            Some(to) if to != me => self.outgoing.push((to, Leg::Spread, index, done)),
            Some(_) => self.land(chunk, done.bytes())?,
            None => {
                let origin = chunk.from.map_or(self.levels.last(), |from| self.levels.host(from));
                if let Some(next) = self.levels.next(here, origin) {
                    let next = self.levels.keeper(next, index, chunk);
                    self.outgoing.push((next, Leg::Done, index, done.clone()));
                }
                let others = self.levels.members(here).filter(|&i| i != me);
                self.outgoing.extend(others.map(|i| (i, Leg::Spread, index, done.clone())));
                self.land(chunk, done.bytes())?;
            }
        }
        Ok(())
    }

    fn land(&self, chunk: &Chunk, bytes: &[u8]) -> Result<()> {
        let at = chunk.at..chunk.at + bytes.len();
        match (&self.room, &self.recv) {
            (Some(room), _) => room.fill(&at, bytes),
            (None, Some(recv)) => Ok(recv.write_bytes(at, |out| out.copy_from_slice(bytes))?),
            (None, None) => Ok(()),
        }
    }

    /// Sends what is done.
    pub(super) fn next(&mut self, post: &mut Post) -> Result<()> {
        for (to, leg, index, contents) in std::mem::take(&mut self.outgoing) {
            post.send(self.place.ranks[to], self.line(leg, index), "", contents)?;
        }
        Ok(())
    }
}

fn lost() -> Error {
    engine_error("a chunk's contents are not where they were sent")
}
