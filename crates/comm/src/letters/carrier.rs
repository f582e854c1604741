//! What a carrier does: moves bytes between pairs of processes, without waiting.

use super::memory::{Sent, Target};
use crate::error::{Error, Result};
use planaria_layout::Rank;
use std::fmt::Debug;

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

    /// Begins receiving what was sent in messages of at most `piece` bytes: into its place, or else as it comes.
    fn receive(&self, landing: Landing, from: Rank, tag: i32, piece: usize) -> Result<Box<dyn Transfer>>;

    /// Ends the carrier; every rank comes here, and no transfer is open.
    fn finish(&self) -> Result<()>;
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
