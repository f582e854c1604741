//! Collectives as movements and folds, queued on a group's stream.

use super::rail::Hands;
use crate::call::Call;
use crate::error::{Error, Result};
use crate::held::{Held, flat};
use planaria_array::{Array, queue_outside};
use planaria_cuda::Move;
use planaria_layout::{Combine, Reduce};

/// Up to this many bytes, everything goes to everyone: one step instead of two.
const SMALL: usize = 4096;

/// A collective whose arrays are ready: what is sent as it was when the call was made, and where the result goes; both in one row.
#[derive(Debug)]
pub(super) struct Ready {
    name: &'static str,
    send: Array,
    recv: Option<Array>,
    plan: Plan,
}

#[derive(Debug)]
enum Plan {
    AllReduce(Reduce),
    /// How elements combine, and who gets the result.
    Reduce(Reduce, usize),
    Broadcast(usize),
    /// Elements of each rank's part.
    Gather(Vec<usize>),
    Scatter(Reduce, Vec<usize>),
    /// Elements to and from each rank.
    Exchange(Vec<usize>, Vec<usize>),
}

impl Ready {
    /// Takes a checked call of this position; `None` when nothing moves on this rank. Belongs to the caller's lane.
    pub(super) fn new(call: Call, position: usize) -> Result<Option<Ready>> {
        let name = call.name();
        let (send, recv, plan) = match call {
            Call::AllReduce(c) => (c.send, Some(c.recv), Plan::AllReduce(c.op)),
            Call::Reduce(c) => (c.send, c.recv.filter(|_| c.root == position), Plan::Reduce(c.op, c.root)),
            Call::Broadcast(c) => {
                (c.data.clone(), (c.root != position).then_some(c.data), Plan::Broadcast(c.root))
            }
            Call::AllGather(c) => (c.send, Some(c.recv), Plan::Gather(c.recv_counts)),
            Call::ReduceScatter(c) => (c.send, Some(c.recv), Plan::Scatter(c.op, c.send_counts)),
            Call::AllToAll(c) => (c.send, Some(c.recv), Plan::Exchange(c.send_counts, c.recv_counts)),
            Call::Send(_) | Call::Recv(_) => {
                return Err(Error::argument(name, "a message is between two ranks, not a collective"));
            }
        };
        if send.numel() == 0 && recv.as_ref().is_none_or(|recv| recv.numel() == 0) {
            return Ok(None);
        }
        // What a broadcast brings is not held: it would have to move away from itself.
        let send = match (&plan, &recv) {
            (Plan::Broadcast(_), Some(_)) => Array::empty_on(&[0], send.dtype(), send.device())?,
            _ => match Held::beside(&send, recv.as_ref())? {
                Held::Device(held) => held,
                Held::Host(_) | Held::Copied { .. } => {
                    return Err(Error::argument(name, "an array of the host does not go over NCCL"));
                }
            },
        };
        if let Some(recv) = &recv {
            recv.renew()?;
        }
        let recv = recv.map(|recv| flat(&recv)).transpose()?;
        Ok(Some(Ready { name, send, recv, plan }))
    }

    /// Queues it on the group's lane, which is the calling thread's.
    pub(super) fn queue(self, hands: &Hands) -> Result<()> {
        let Ready { name, send, recv, plan } = self;
        let road = Road { name, hands };
        match (plan, recv) {
            (Plan::AllReduce(op), Some(recv)) => road.all_reduce(&send, &recv, op),
            (Plan::Reduce(op, root), recv) => road.reduce(&send, recv.as_ref(), op, root),
            (Plan::Broadcast(root), recv) => road.broadcast(&send, recv.as_ref(), root),
            (Plan::Gather(counts), Some(recv)) => road.gather(&send, &recv, &counts),
            (Plan::Scatter(op, counts), Some(recv)) => road.scatter(&send, &recv, op, &counts),
            (Plan::Exchange(to, from), Some(recv)) => road.exchange(&send, &to, Some((&recv, &from))),
            // Only the root of a reduction and of a broadcast lacks one.
            (_, None) => Ok(()),
        }
    }
}

/// A message of this rank to itself.
pub(super) fn to_oneself(hands: &Hands, sent: &Array, data: &Array) -> Result<()> {
    let mut counts = vec![0; hands.size];
    counts[hands.me] = sent.numel();
    Road { name: "recv", hands }.exchange(sent, &counts, Some((&flat(data)?, &counts)))
}

/// One call's way through a communicator.
struct Road<'a> {
    name: &'static str,
    hands: &'a Hands,
}

impl Road<'_> {
    /// Parts of `send`, one after the other, to all ranks, and theirs to an array. Empty parts do not travel.
    fn exchange(&self, send: &Array, to: &[usize], recv: Option<(&Array, &[usize])>) -> Result<()> {
        let unit = send.dtype().size();
        let into = recv.map(|(recv, _)| recv).filter(|recv| recv.numel() > 0);
        Ok(queue_outside(self.name, &[send], into, |lane, addresses, start| {
            let sends = parts(to, unit, addresses[0]).map(|(to, from, bytes)| Move::Send { from, bytes, to });
            let from = recv.map_or(&[][..], |(_, from)| from);
            let receives =
                parts(from, unit, start).map(|(from, to, bytes)| Move::Receive { to, bytes, from });
            let moves: Vec<Move> = sends.chain(receives).collect();
            if moves.is_empty() { Ok(()) } else { self.hands.queue(lane, self.name, &moves) }
        })?)
    }

    /// All of `send` to everyone, and theirs, of these lengths, one after the other.
    fn gather(&self, send: &Array, recv: &Array, counts: &[usize]) -> Result<()> {
        let (unit, mine) = (send.dtype().size(), send.numel());
        if recv.numel() == 0 {
            return Ok(());
        }
        Ok(queue_outside(self.name, &[send], Some(recv), |lane, addresses, start| {
            let (from, bytes) = (addresses[0], mine * unit);
            if counts.iter().all(|&count| count == mine) {
                return self.hands.queue(lane, self.name, &[Move::Gather { from, to: start, bytes }]);
            }
            let peers = (0..self.hands.size).filter(|_| bytes > 0);
            let sends = peers.map(|to| Move::Send { from, bytes, to });
            let receives =
                parts(counts, unit, start).map(|(from, to, bytes)| Move::Receive { to, bytes, from });
            self.hands.queue(lane, self.name, &sends.chain(receives).collect::<Vec<_>>())
        })?)
    }

    fn all_reduce(&self, send: &Array, recv: &Array, op: Reduce) -> Result<()> {
        let (size, count, unit) = (self.hands.size, send.numel(), send.dtype().size());
        let how = Combine::of(op, size);
        if count * unit <= SMALL {
            let all = Array::empty_on(&[count * size], send.dtype(), send.device())?;
            self.gather(send, &all, &vec![count; size])?;
            return Ok(recv.fold_from(how, &rows(&all, size)?)?);
        }
        let counts: Vec<usize> = (0..size).map(|i| count / size + usize::from(i < count % size)).collect();
        let share = Array::empty_on(&[counts[self.hands.me]], send.dtype(), send.device())?;
        self.scatter(send, &share, op, &counts)?;
        self.gather(&share, recv, &counts)
    }

    fn scatter(&self, send: &Array, recv: &Array, op: Reduce, counts: &[usize]) -> Result<()> {
        let (size, mine) = (self.hands.size, recv.numel());
        let all = Array::empty_on(&[mine * size], send.dtype(), send.device())?;
        self.exchange(send, counts, Some((&all, &vec![mine; size])))?;
        if mine == 0 {
            return Ok(());
        }
        Ok(recv.fold_from(Combine::of(op, size), &rows(&all, size)?)?)
    }

    fn reduce(&self, send: &Array, recv: Option<&Array>, op: Reduce, root: usize) -> Result<()> {
        let (size, count) = (self.hands.size, send.numel());
        let mut to = vec![0; size];
        to[root] = count;
        let Some(recv) = recv else { return self.exchange(send, &to, None) };
        let all = Array::empty_on(&[count * size], send.dtype(), send.device())?;
        self.exchange(send, &to, Some((&all, &vec![count; size])))?;
        Ok(recv.fold_from(Combine::of(op, size), &rows(&all, size)?)?)
    }

    fn broadcast(&self, send: &Array, recv: Option<&Array>, root: usize) -> Result<()> {
        let from: &[&Array] = if recv.is_some() { &[] } else { &[send] };
        let bytes = recv.unwrap_or(send).numel() * send.dtype().size();
        Ok(queue_outside(self.name, from, recv, |lane, addresses, start| {
            let at = addresses.first().copied().unwrap_or(start);
            self.hands.queue(lane, self.name, &[Move::Broadcast { at, bytes, root }])
        })?)
    }
}

/// Rank, address and bytes of the parts that are not empty, when they lie one after the other.
fn parts(counts: &[usize], unit: usize, start: u64) -> impl Iterator<Item = (usize, u64, usize)> {
    let mut at = start;
    let part = move |(rank, &count): (usize, &usize)| {
        let (from, bytes) = (at, count * unit);
        at += bytes as u64;
        (rank, from, bytes)
    };
    counts.iter().enumerate().map(part).filter(|part| part.2 > 0)
}

/// Equal rows of an array, one of each rank.
fn rows(all: &Array, size: usize) -> Result<Vec<Array>> {
    let count = all.numel() / size;
    (0..size).map(|i| Ok(all.narrow(0, i * count, count)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn parts_lie_one_after_the_other_and_empty_ones_do_not_travel() {
        let found: Vec<_> = parts(&[3, 0, 2], 4, 100).collect();
        assert_eq!(found, [(0, 100, 12), (2, 112, 8)]);
        assert_eq!(parts(&[], 4, 0).count(), 0);
    }
}
