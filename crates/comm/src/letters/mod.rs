//! Ranks as processes that only exchange letters: collectives are steps of our own over whatever carries bytes.
//!
//! A carrier moves bytes between pairs and nothing else. Collectives are steps (`step.rs`), reductions are the same fold
//! in rank order that thread ranks use, and groups are ours, so a call gives the same bits here as there. Letters
//! (`post.rs`) say which call they belong to; ranks that made different calls are told. MPI is one carrier;
//! [`Depot`] is the other: somebody outside takes what goes out and leaves what comes in, as
//! [`crate::sockets`] does for processes of one machine.

mod carrier;
mod depot;
mod engine;
mod memory;
mod post;
mod step;
mod wire;

pub use depot::{Connection, Depot, Parcel};
pub use engine::Options;
#[cfg(feature = "mpi")]
pub(crate) use {
    carrier::{Carrier, ENVELOPE, Transfer},
    engine::{Engine, LetterComm},
    memory::{Room, Sent, Target},
};

/// What a panic says.
pub(crate) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "of unknown kind".into())
}
