//! The calls: what each collective takes, under names that cannot be mixed up, and what makes one valid.

use crate::error::{Error, Result};
use planaria_array::{Array, Device};
use planaria_layout::{DType, Rank, Reduce};
use smallvec::SmallVec;
use std::fmt;

/// Largest tag of a message; every engine carries this much.
pub const MAX_TAG: u32 = (1 << 22) - 1;

/// Combines all ranks' `send` into every rank's `recv`, which may be `send` itself.
#[derive(Clone, Debug)]
pub struct AllReduce {
    /// This rank's contribution.
    pub send: Array,
    /// Where the result goes.
    pub recv: Array,
    /// How elements combine.
    pub op: Reduce,
}

/// Combines all ranks' `send` into the root's `recv`, which may be its `send`.
#[derive(Clone, Debug)]
pub struct ReduceTo {
    /// This rank's contribution.
    pub send: Array,
    /// Where the result goes; needed on the root only.
    pub recv: Option<Array>,
    /// How elements combine.
    pub op: Reduce,
    /// Position of the rank that gets the result.
    pub root: usize,
}

/// Copies the root's `data` to every rank's.
#[derive(Clone, Debug)]
pub struct Broadcast {
    /// Read on the root, written elsewhere.
    pub data: Array,
    /// Position of the rank that has the value.
    pub root: usize,
}

/// Joins all ranks' `send`, in rank order, in every rank's `recv`. `send` may be this rank's part of `recv`.
#[derive(Clone, Debug)]
pub struct AllGather {
    /// This rank's part.
    pub send: Array,
    /// All parts, one after the other.
    pub recv: Array,
    /// Elements of each rank's part; the same list on all ranks.
    pub recv_counts: Vec<usize>,
}

/// Combines all ranks' `send` and leaves each rank its part in `recv`, which may be that part of `send`.
#[derive(Clone, Debug)]
pub struct ReduceScatter {
    /// This rank's contribution to all parts.
    pub send: Array,
    /// This rank's part of the result.
    pub recv: Array,
    /// Elements of each rank's part; the same list on all ranks.
    pub send_counts: Vec<usize>,
    /// How elements combine.
    pub op: Reduce,
}

/// Sends one part to each rank and receives one from each.
#[derive(Clone, Debug)]
pub struct AllToAll {
    /// The parts for rank 0, 1, ... one after the other.
    pub send: Array,
    /// Elements for each rank.
    pub send_counts: Vec<usize>,
    /// The parts from rank 0, 1, ... one after the other.
    pub recv: Array,
    /// Elements from each rank.
    pub recv_counts: Vec<usize>,
}

/// Sends `data` to one rank. Messages with one sender, receiver and tag arrive in the order they were started.
#[derive(Clone, Debug)]
pub struct Send {
    /// What to send.
    pub data: Array,
    /// Position of the receiver.
    pub to: usize,
    /// Tells messages apart; at most [`MAX_TAG`].
    pub tag: u32,
}

/// Receives `data` from one rank; dtype and number of elements must be the sender's.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Where the message goes.
    pub data: Array,
    /// Position of the sender.
    pub from: usize,
    /// Tells messages apart; at most [`MAX_TAG`].
    pub tag: u32,
}

/// Any of the calls. All arrays are contiguous, of one dtype and on one device.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Call {
    AllReduce(AllReduce),
    Reduce(ReduceTo),
    Broadcast(Broadcast),
    AllGather(AllGather),
    ReduceScatter(ReduceScatter),
    AllToAll(AllToAll),
    Send(Send),
    Recv(Recv),
}

impl Call {
    /// The call's name, as in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Call::AllReduce(_) => "all_reduce",
            Call::Reduce(_) => "reduce",
            Call::Broadcast(_) => "broadcast",
            Call::AllGather(_) => "all_gather",
            Call::ReduceScatter(_) => "reduce_scatter",
            Call::AllToAll(_) => "all_to_all",
            Call::Send(_) => "send",
            Call::Recv(_) => "recv",
        }
    }

    /// Checks everything one rank can know: engines call it before they move anything.
    pub fn check(&self, rank: usize, size: usize) -> Result<()> {
        let name = self.name();
        let peer = |what: &str, peer: usize| match peer < size {
            true => Ok(()),
            false => Err(Error::argument(name, format!("{what} {peer} is out of range for {size} ranks"))),
        };
        match self {
            Call::AllReduce(c) => {
                arrays(name, &[&c.send, &c.recv])?;
                lengths(name, "recv", c.recv.numel(), "send", c.send.numel())?;
                defined(name, c.op, c.send.dtype())
            }
            Call::Reduce(c) => {
                peer("root", c.root)?;
                arrays(name, &[&c.send])?;
                defined(name, c.op, c.send.dtype())?;
                match &c.recv {
                    Some(recv) if rank == c.root => {
                        arrays(name, &[&c.send, recv])?;
                        lengths(name, "recv", recv.numel(), "send", c.send.numel())
                    }
                    None if rank == c.root => Err(Error::argument(name, "the root has no recv array")),
                    _ => Ok(()),
                }
            }
            Call::Broadcast(c) => peer("root", c.root).and_then(|()| arrays(name, &[&c.data])),
            Call::AllGather(c) => {
                arrays(name, &[&c.send, &c.recv])?;
                counts(name, "recv_counts", &c.recv_counts, size, c.recv.numel())?;
                lengths(name, "send", c.send.numel(), "this rank's part", c.recv_counts[rank])
            }
            Call::ReduceScatter(c) => {
                arrays(name, &[&c.send, &c.recv])?;
                counts(name, "send_counts", &c.send_counts, size, c.send.numel())?;
                lengths(name, "recv", c.recv.numel(), "this rank's part", c.send_counts[rank])?;
                defined(name, c.op, c.send.dtype())
            }
            Call::AllToAll(c) => {
                arrays(name, &[&c.send, &c.recv])?;
                counts(name, "send_counts", &c.send_counts, size, c.send.numel())?;
                counts(name, "recv_counts", &c.recv_counts, size, c.recv.numel())?;
                let (to, from) = (c.send_counts[rank], c.recv_counts[rank]);
                lengths(name, "the part for this rank itself", to, "the part from itself", from)
            }
            Call::Send(c) => peer("receiver", c.to).and_then(|()| message(name, c.tag, &c.data)),
            Call::Recv(c) => peer("sender", c.from).and_then(|()| message(name, c.tag, &c.data)),
        }
    }

    /// Where the arrays are.
    pub(crate) fn device(&self) -> Device {
        match self {
            Call::AllReduce(AllReduce { send, .. })
            | Call::Reduce(ReduceTo { send, .. })
            | Call::AllGather(AllGather { send, .. })
            | Call::ReduceScatter(ReduceScatter { send, .. })
            | Call::AllToAll(AllToAll { send, .. }) => send.device(),
            Call::Broadcast(Broadcast { data, .. })
            | Call::Send(Send { data, .. })
            | Call::Recv(Recv { data, .. }) => data.device(),
        }
    }

    /// What this rank tells the others of a collective; `None` for messages.
    pub(crate) fn signature(&self) -> Option<Signature> {
        Some(match self {
            Call::AllReduce(c) => {
                Signature::AllReduce { op: c.op, dtype: c.send.dtype(), count: c.send.numel() }
            }
            Call::Reduce(c) => {
                let (dtype, count) = (c.send.dtype(), c.send.numel());
                Signature::Reduce { op: c.op, dtype, count, root: c.root }
            }
            Call::Broadcast(c) => {
                Signature::Broadcast { dtype: c.data.dtype(), count: c.data.numel(), root: c.root }
            }
            Call::AllGather(c) => {
                Signature::AllGather { dtype: c.send.dtype(), counts: Counts::from_slice(&c.recv_counts) }
            }
            Call::ReduceScatter(c) => {
                let (dtype, counts) = (c.send.dtype(), Counts::from_slice(&c.send_counts));
                Signature::ReduceScatter { op: c.op, dtype, counts }
            }
            Call::AllToAll(c) => Signature::AllToAll {
                dtype: c.send.dtype(),
                to: Counts::from_slice(&c.send_counts),
                from: Counts::from_slice(&c.recv_counts),
            },
            Call::Send(_) | Call::Recv(_) => return None,
        })
    }
}

/// Elements from or to each rank; those of few ranks lie where the rest of a call does.
pub(crate) type Counts = SmallVec<[usize; 8]>;

/// A collective as one rank describes it to the others: all must say the same, but for the counts of an all-to-all,
/// where what one sends another must expect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Signature {
    AllReduce { op: Reduce, dtype: DType, count: usize },
    Reduce { op: Reduce, dtype: DType, count: usize, root: usize },
    Broadcast { dtype: DType, count: usize, root: usize },
    AllGather { dtype: DType, counts: Counts },
    ReduceScatter { op: Reduce, dtype: DType, counts: Counts },
    AllToAll { dtype: DType, to: Counts, from: Counts },
    Split { groups: Vec<Vec<Rank>> },
    Barrier,
}

impl Signature {
    /// The collective's name, as in messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Signature::AllReduce { .. } => "all_reduce",
            Signature::Reduce { .. } => "reduce",
            Signature::Broadcast { .. } => "broadcast",
            Signature::AllGather { .. } => "all_gather",
            Signature::ReduceScatter { .. } => "reduce_scatter",
            Signature::AllToAll { .. } => "all_to_all",
            Signature::Split { .. } => "split",
            Signature::Barrier => "barrier",
        }
    }

    /// The element type; that of bytes where no elements move.
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Signature::AllReduce { dtype, .. }
            | Signature::Reduce { dtype, .. }
            | Signature::Broadcast { dtype, .. }
            | Signature::AllGather { dtype, .. }
            | Signature::ReduceScatter { dtype, .. }
            | Signature::AllToAll { dtype, .. } => *dtype,
            Signature::Split { .. } | Signature::Barrier => DType::U8,
        }
    }

    /// The part that is the same on all ranks, as text.
    pub(crate) fn common(&self) -> String {
        match self {
            Signature::AllToAll { dtype, .. } => format!("{} {dtype}", self.name()),
            other => other.to_string(),
        }
    }

    /// True when two ranks, at positions `me` and `peer`, made calls that go together.
    pub(crate) fn fits(&self, me: usize, other: &Signature, peer: usize) -> bool {
        match (self, other) {
            (
                Signature::AllToAll { dtype, to, from },
                Signature::AllToAll { dtype: theirs, to: their_to, from: their_from },
            ) => {
                dtype == theirs
                    && (to.len(), from.len()) == (their_to.len(), their_from.len())
                    && to.get(peer) == their_from.get(me)
                    && from.get(peer) == their_to.get(me)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Signature::AllReduce { op, dtype, count } => write!(f, "{name} {op:?} {dtype} counts [{count}]"),
            Signature::Reduce { op, dtype, count, root } => {
                write!(f, "{name} {op:?} {dtype} root {root} counts [{count}]")
            }
            Signature::Broadcast { dtype, count, root } => {
                write!(f, "{name} {dtype} root {root} counts [{count}]")
            }
            Signature::AllGather { dtype, counts } => write!(f, "{name} {dtype} counts {counts:?}"),
            Signature::ReduceScatter { op, dtype, counts } => {
                write!(f, "{name} {op:?} {dtype} counts {counts:?}")
            }
            Signature::AllToAll { dtype, to, from } => write!(f, "{name} {dtype} to {to:?} from {from:?}"),
            Signature::Split { groups } => write!(f, "{name} {groups:?}"),
            Signature::Barrier => f.write_str(name),
        }
    }
}

/// Contiguous arrays of one dtype with bytes on one device.
fn arrays(name: &'static str, arrays: &[&Array]) -> Result<()> {
    for array in arrays {
        if !array.is_contiguous() {
            let what = format!("an array of shape {} has gaps; make it contiguous first", array.shape());
            return Err(Error::argument(name, what));
        }
        if array.dtype() != arrays[0].dtype() {
            let what = format!("send is {} but recv is {}", arrays[0].dtype(), array.dtype());
            return Err(Error::argument(name, what));
        }
        if array.is_meta() {
            return Err(Error::argument(name, "a meta array has no bytes to move"));
        }
        if array.device() != arrays[0].device() {
            let what = format!("send is on {} but recv is on {}", arrays[0].device(), array.device());
            return Err(Error::argument(name, what));
        }
    }
    Ok(())
}

fn message(name: &'static str, tag: u32, data: &Array) -> Result<()> {
    if tag > MAX_TAG {
        return Err(Error::argument(name, format!("tag {tag} is above {MAX_TAG}")));
    }
    arrays(name, &[data])
}

fn lengths(name: &'static str, what: &str, found: usize, other: &str, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::argument(name, format!("{what} has {found} elements but {other} has {expected}")))
}

fn counts(name: &'static str, what: &str, counts: &[usize], size: usize, numel: usize) -> Result<()> {
    if counts.len() != size {
        return Err(Error::argument(name, format!("{what} has {} entries for {size} ranks", counts.len())));
    }
    let total = counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
    if total != Some(numel) {
        let what = format!("{what} {counts:?} do not add up to the array's {numel} elements");
        return Err(Error::argument(name, what));
    }
    Ok(())
}

fn defined(name: &'static str, op: Reduce, dtype: DType) -> Result<()> {
    if op == Reduce::Avg && dtype == DType::Bool {
        return Err(Error::argument(name, "avg is not defined for bool; cast first"));
    }
    Ok(())
}
