//! The communicator: a small object-safe trait, and blocking methods for everyone above it.

use crate::call::{
    AllGather, AllReduce, AllToAll, Broadcast, Call, Recv, ReduceScatter, ReduceTo, Send as SendCall,
};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use planaria_layout::Rank;
use std::fmt::{Debug, Display};
use std::sync::Arc;

/// One rank's handle on a group of ranks. All ranks of the group make the same collective calls in the same
/// order; messages between pairs are ordered by sender, receiver and tag. Groups are independent of each other.
///
/// Engines implement all methods: there are no defaults that could hide work or escape a wrapper.
pub trait Comm: Send + Sync + Debug {
    /// This rank's position in the group.
    fn rank(&self) -> usize;

    /// World rank of each position.
    fn ranks(&self) -> &[Rank];

    /// Begins a call. The arrays belong to it until [`Pending::wait`] returns: receiving ones hold unspecified
    /// values meanwhile, and sending ones are read at some time before.
    fn start(&self, call: Call) -> Result<Pending>;

    /// Makes a call and waits for it.
    fn run(&self, call: Call) -> Result<()>;

    /// Collective: makes a communicator of each group, whose members are given as world ranks in the order of
    /// their new positions. All ranks pass the same list; a rank that is in no group gets `None`.
    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>>;

    /// The communicator of some ranks of this group, given as world ranks in the order of their new positions;
    /// this rank is one of them. Only the listed ranks take part, and nothing is sent. Asking for the same list
    /// again gives the same group: its calls go on being numbered.
    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>>;

    /// Waits until every rank has come here.
    fn barrier(&self) -> Result<()>;

    /// Gives up: all ranks' pending and later calls fail with this rank and reason.
    fn abort(&self, reason: &str);
}

/// A call under way. Its result is there when [`Pending::wait`] returns; a handle that is dropped leaves a
/// collective to finish on its own and a receive undone.
#[must_use = "a call is finished by `wait`"]
#[derive(Debug)]
pub struct Pending(Option<Box<dyn Wait>>);

/// How an engine finishes a call.
pub trait Wait: Send + Debug {
    /// Waits for the result.
    fn wait(self: Box<Self>) -> Result<()>;

    /// True when `wait` would not block.
    fn is_done(&self) -> bool;
}

impl Pending {
    /// A call that an engine has under way.
    pub fn new(call: impl Wait + 'static) -> Pending {
        Pending(Some(Box::new(call)))
    }

    /// A call that is already finished.
    pub fn done() -> Pending {
        Pending(None)
    }

    /// Waits for the result.
    pub fn wait(self) -> Result<()> {
        self.0.map_or(Ok(()), |call| call.wait())
    }

    /// True when [`Pending::wait`] would not block.
    pub fn is_done(&self) -> bool {
        self.0.as_ref().is_none_or(|call| call.is_done())
    }
}

/// Blocking forms of all calls, and what follows from them.
pub trait CommExt: Comm {
    /// Number of ranks.
    fn size(&self) -> usize {
        self.ranks().len()
    }

    /// This rank in the world.
    fn world_rank(&self) -> Rank {
        self.ranks()[self.rank()]
    }

    /// See [`AllReduce`].
    fn all_reduce(&self, call: AllReduce) -> Result<()> {
        self.run(Call::AllReduce(call))
    }

    /// See [`ReduceTo`].
    fn reduce(&self, call: ReduceTo) -> Result<()> {
        self.run(Call::Reduce(call))
    }

    /// See [`Broadcast`].
    fn broadcast(&self, call: Broadcast) -> Result<()> {
        self.run(Call::Broadcast(call))
    }

    /// See [`AllGather`].
    fn all_gather(&self, call: AllGather) -> Result<()> {
        self.run(Call::AllGather(call))
    }

    /// See [`ReduceScatter`].
    fn reduce_scatter(&self, call: ReduceScatter) -> Result<()> {
        self.run(Call::ReduceScatter(call))
    }

    /// See [`AllToAll`].
    fn all_to_all(&self, call: AllToAll) -> Result<()> {
        self.run(Call::AllToAll(call))
    }

    /// See [`crate::Send`].
    fn send(&self, call: SendCall) -> Result<()> {
        self.run(Call::Send(call))
    }

    /// See [`Recv`].
    fn recv(&self, call: Recv) -> Result<()> {
        self.run(Call::Recv(call))
    }

    /// All ranks succeed, or all fail with the message of the first that failed. Collective.
    fn agree<T, E: Display>(&self, mine: std::result::Result<T, E>) -> Result<T> {
        let size = self.size();
        let message = mine.as_ref().err().map(|e| e.to_string()).unwrap_or_default();
        let length = mine.as_ref().map_or(message.len() as i64, |_| -1);
        let lengths = Array::empty(&[size], DType::I64)?;
        let send = Array::from_slice(&[length], &[1])?;
        self.all_gather(AllGather { send, recv: lengths.clone(), recv_counts: vec![1; size] })?;
        let lengths = lengths.to_vec::<i64>()?;
        let Some(first) = lengths.iter().position(|&n| n >= 0) else {
            return mine.map_err(|e| Error::Remote { rank: self.world_rank(), message: e.to_string() });
        };
        Err(self.told(first, &message, usize::try_from(lengths[first]).unwrap_or(0))?)
    }

    /// The error of one rank, on all of them: its message of `length` bytes, which only that rank passes. Collective.
    #[doc(hidden)]
    fn told(&self, first: usize, message: &str, length: usize) -> Result<Error> {
        let text = match first == self.rank() {
            true => Array::from_slice(message.as_bytes(), &[message.len()])?,
            false => Array::empty(&[length], DType::U8)?,
        };
        self.broadcast(Broadcast { data: text.clone(), root: first })?;
        let message = String::from_utf8_lossy(&text.bytes()?).into_owned();
        Ok(Error::Remote { rank: self.ranks()[first], message })
    }
}

impl<C: Comm + ?Sized> CommExt for C {}
