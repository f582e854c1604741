//! The formats of others, read in place.
//!
//! Every format ends in the same [`Source`]: tensors as tiles over byte ranges of files, so that loading one is
//! the same plan as loading our own. Opening reads headers and metadata, never tensor data, and refuses what
//! is torn, overlapping or contradictory.

mod archives;
mod dcp;
mod flex;
mod folder;
mod index;
mod mapped;
mod numpy;
mod ours;
mod paddle;
mod passing;
pub mod pickle;
pub(crate) mod python;
mod read;
pub(crate) mod roles;
mod safetensors;
mod shards;
mod source;
mod torch;
mod verified;
pub(crate) mod write;
mod zip;

pub use folder::{OpenOptions, open, open_url};
pub use mapped::MappedTensor;
pub(crate) use ours::{FOREIGN, STATE};
pub(crate) use passing::Passing;
pub(crate) use safetensors::pairs_in;
pub use source::{Entry, Format, Key, Part, Piece, Skipped, Source};
pub(crate) use verified::named;
