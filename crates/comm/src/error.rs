//! What can go wrong between ranks. Ranks are world ranks everywhere; errors are cloned to every rank they reach.

use planaria_layout::Rank;
use std::time::Duration;
use thiserror::Error;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused call, or a group that can no longer work together.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// An array operation failed.
    #[error(transparent)]
    Array(#[from] planaria_array::Error),
    /// A call whose own arguments do not fit together; nothing was sent.
    #[error("{call}: {what}")]
    Argument {
        /// The call.
        call: &'static str,
        /// What is wrong with which value.
        what: String,
    },
    /// A rank gave up; every other rank gets this.
    #[error("rank {rank} stopped: {reason}")]
    Aborted {
        /// The rank that gave up.
        rank: Rank,
        /// Its words.
        reason: String,
    },
    /// A rank's part of an agreed step failed; all ranks get the message of the first one.
    #[error("rank {rank}: {message}")]
    Remote {
        /// The first rank that failed.
        rank: Rank,
        /// Its error.
        message: String,
    },
    /// A collective waited longer than allowed.
    #[error("{call} number {sequence}: {} did not arrive within {waited:?}", list(missing))]
    Timeout {
        /// The call.
        call: &'static str,
        /// Its number among the group's collectives, from 0.
        sequence: u64,
        /// The ranks that did not take part.
        missing: Vec<Rank>,
        /// How long the others waited.
        waited: Duration,
    },
    /// A rank returned from its work while others still need it.
    #[error("{call} number {sequence}: rank {rank} has already finished and will not take part")]
    Left {
        /// The call.
        call: &'static str,
        /// Its number among the group's collectives, from 0.
        sequence: u64,
        /// The rank that returned.
        rank: Rank,
    },
    /// Ranks made different calls where they must make the same one.
    #[error("call number {sequence} differs: rank {first} made `{expected}`, rank {rank} made `{found}`")]
    Mismatch {
        /// The number among the group's collectives, from 0.
        sequence: u64,
        /// A rank to compare with.
        first: Rank,
        /// Its call.
        expected: String,
        /// The rank that differs.
        rank: Rank,
        /// Its call.
        found: String,
    },
    /// A message that is not what the receiver expects.
    #[error("recv from rank {from} with tag {tag}: expected {expected}, got {found}")]
    Message {
        /// The sender.
        from: Rank,
        /// The tag.
        tag: u32,
        /// What the receiver has room for.
        expected: String,
        /// What came.
        found: String,
    },
    /// Bytes received as a structure that are not one.
    #[error("structure from rank {from}: {what}")]
    Header {
        /// The sender.
        from: Rank,
        /// What is wrong with the bytes.
        what: String,
    },
    /// The engine under the communicator failed.
    #[error("{engine}: {what}")]
    Engine {
        /// The engine.
        engine: &'static str,
        /// Its message.
        what: String,
    },
}

impl Error {
    pub(crate) fn argument(call: &'static str, what: impl Into<String>) -> Error {
        Error::Argument { call, what: what.into() }
    }
}

/// `rank 3` or `ranks 1, 3`.
fn list(ranks: &[Rank]) -> String {
    let names: Vec<String> = ranks.iter().map(|r| r.to_string()).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}
