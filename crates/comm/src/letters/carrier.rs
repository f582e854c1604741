//! What a carrier does: moves bytes between pairs of processes, without waiting.

use super::memory::{Sent, Target};
use crate::error::{Error, Result};
use planaria_layout::Rank;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The tag of envelopes; contents that do not fit into theirs have tags from 1 up.
pub(crate) const ENVELOPE: i32 = 0;

/// Moves bytes between processes. Messages of one pair and tag keep their order.
pub(crate) trait Carrier: Send + Debug {
    /// This rank, and the number of ranks.
    fn place(&self) -> (Rank, usize);

    /// Largest message in bytes.
    fn largest(&self) -> usize;

    /// An envelope that has come: its sender and length.
    fn probe(&self) -> Result<Option<(Rank, usize)>>;

    /// Begins sending, in messages of at most `piece` bytes; the memory is kept until the end.
    fn send(&self, memory: Sent, to: Rank, tag: i32, piece: usize) -> Result<Box<dyn Transfer>>;

    /// The host of each rank, by any number; ranks of one host have cheaper ways than links.
    fn hosts(&self) -> Vec<usize> {
        vec![0; self.place().1]
    }

    /// The way past whoever carries, if there is one.
    fn shortcut(&self) -> Option<Arc<dyn Shortcut>> {
        None
    }

    /// Begins receiving what was sent in messages of at most `piece` bytes: into its place, or else as it comes.
    fn receive(&self, landing: Landing, from: Rank, tag: i32, piece: usize) -> Result<Box<dyn Transfer>>;

    /// Ends the carrier; every rank comes here, and no transfer is open.
    fn finish(&self) -> Result<()>;
}

/// A way past whoever carries, for what is short: between processes that share memory. Messages of one pair keep their order on it.
pub(crate) trait Shortcut: Send + Sync + Debug {
    /// Takes a message for a rank; false when it must be carried. An envelope that is carried keeps those behind it from overtaking, until
    /// the other side has told that it came.
    fn put(&self, to: Rank, tag: u32, sent: &Sent) -> bool;

    /// Gives everything that has come from a rank, or from all of them. Only one thread asks at a time.
    fn take(&self, from: Option<Rank>, found: &mut dyn FnMut(Rank, u32, Sent)) -> Result<()>;

    /// Tells a rank that an envelope of its has been carried here.
    fn came(&self, from: Rank);

    /// A number that changes when there is something new.
    fn heard(&self) -> u32;

    /// Tells those who sleep that there is something new.
    fn ring(&self);

    /// Sleeps until there is something new since `heard`, at most `limit`.
    fn sleep(&self, heard: u32, limit: Duration);
}

/// Where bytes go that come.
#[derive(Debug)]
pub(crate) enum Landing {
    /// To part of a room.
    At(Target),
    /// So many of them to memory of the carrier's choice.
    Anywhere(usize),
}

/// Bytes on their way. Dropped before its end, it gives up its memory without touching it again.
pub(crate) trait Transfer: Send + Debug {
    /// True once all of them have gone or come.
    fn is_done(&mut self) -> Result<bool>;

    /// What has come, where it had no place to go to; once, at the end.
    fn contents(&mut self) -> Result<Option<Sent>> {
        Ok(None)
    }
}

/// What goes wrong below the calls.
pub(crate) fn engine_error(what: impl Into<String>) -> Error {
    Error::Engine { engine: "letters", what: what.into() }
}
