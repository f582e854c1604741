//! Ranks as processes that only exchange letters: collectives are steps of our own over whatever carries bytes.
//!
//! A carrier moves bytes between pairs and nothing else. Collectives are steps between all ranks (`step.rs`) or go from host to host
//! (`levels.rs`, `relay.rs`), reductions are the same fold
//! in rank order that thread ranks use, and groups are ours, so a call gives the same bits here as there. Letters
//! (`post.rs`) say which call they belong to; ranks that made different calls are told. MPI is one carrier;
//! [`Depot`] is the other: somebody outside takes what goes out and leaves what comes in, as
//! [`crate::sockets`] does for processes of one machine.

mod carrier;
mod depot;
mod engine;
mod levels;
mod memory;
mod post;
mod relay;
mod running;
mod step;
mod wire;

pub(crate) use carrier::Shortcut;
pub use depot::{Connection, Depot, Parcel};
pub use engine::Options;
pub use levels::{Crossing, Traffic, crossing};
#[cfg(unix)]
pub(crate) use wire::contents;
#[cfg(any(feature = "mpi", target_os = "linux"))]
pub(crate) use {carrier::ENVELOPE, memory::Sent};
#[cfg(feature = "mpi")]
pub(crate) use {
    carrier::{Carrier, Landing, Transfer},
    engine::{Engine, LetterComm},
    memory::Room,
};

/// What a panic says.
pub(crate) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "of unknown kind".into())
}
