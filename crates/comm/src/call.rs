//! The calls: what each collective takes, under names that cannot be mixed up, and what makes one valid.

use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_layout::{DType, Reduce};
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

/// Any of the calls. All arrays are contiguous and of one dtype.
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

    /// True for the two calls that only a pair of ranks makes.
    pub fn is_message(&self) -> bool {
        matches!(self, Call::Send(_) | Call::Recv(_))
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

    /// What all ranks of a collective must have in common.
    pub(crate) fn signature(&self) -> Signature {
        let mut s = Signature { name: self.name(), ..Signature::default() };
        match self {
            Call::AllReduce(c) => {
                (s.dtype, s.op, s.counts) = (Some(c.send.dtype()), Some(c.op), vec![c.send.numel()])
            }
            Call::Reduce(c) => {
                (s.dtype, s.op, s.counts) = (Some(c.send.dtype()), Some(c.op), vec![c.send.numel()]);
                s.root = Some(c.root);
            }
            Call::Broadcast(c) => {
                (s.dtype, s.root, s.counts) = (Some(c.data.dtype()), Some(c.root), vec![c.data.numel()]);
            }
            Call::AllGather(c) => (s.dtype, s.counts) = (Some(c.send.dtype()), c.recv_counts.clone()),
            Call::ReduceScatter(c) => {
                (s.dtype, s.op, s.counts) = (Some(c.send.dtype()), Some(c.op), c.send_counts.clone());
            }
            Call::AllToAll(c) => {
                s.dtype = Some(c.send.dtype());
                (s.to, s.from) = (c.send_counts.clone(), c.recv_counts.clone());
            }
            Call::Send(c) => s.dtype = Some(c.data.dtype()),
            Call::Recv(c) => s.dtype = Some(c.data.dtype()),
        }
        s
    }
}

/// What all ranks of a collective must have in common, and each rank's exchange counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    pub(crate) name: &'static str,
    pub(crate) dtype: Option<DType>,
    pub(crate) op: Option<Reduce>,
    pub(crate) root: Option<usize>,
    pub(crate) counts: Vec<usize>,
    /// Groups of a split.
    pub(crate) groups: Vec<Vec<usize>>,
    /// Elements to and from each rank in an all-to-all; these differ between ranks.
    pub(crate) to: Vec<usize>,
    pub(crate) from: Vec<usize>,
}

impl Signature {
    /// True when two ranks, at positions `me` and `peer`, made calls that go together.
    pub(crate) fn fits(&self, me: usize, other: &Signature, peer: usize) -> bool {
        let common = |s: &Signature| (s.name, s.dtype, s.op, s.root);
        let lists = |s: &Signature| (s.to.len(), s.from.len());
        common(self) == common(other)
            && self.counts == other.counts
            && self.groups == other.groups
            && lists(self) == lists(other)
            && self.to.get(peer) == other.from.get(me)
            && self.from.get(peer) == other.to.get(me)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        self.op.iter().try_for_each(|op| write!(f, " {op:?}"))?;
        self.dtype.iter().try_for_each(|dtype| write!(f, " {dtype}"))?;
        self.root.iter().try_for_each(|root| write!(f, " root {root}"))?;
        if !self.counts.is_empty() {
            write!(f, " counts {:?}", self.counts)?;
        }
        if !self.to.is_empty() {
            write!(f, " to {:?} from {:?}", self.to, self.from)?;
        }
        if !self.groups.is_empty() {
            write!(f, " {:?}", self.groups)?;
        }
        Ok(())
    }
}

/// Contiguous arrays of one dtype with bytes on the host.
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
