//! Paddle's files: programs as JSON, version patches, and combined parameters.

mod action;
mod data;
mod downgrade;
mod params;
mod patch;
mod read;
mod write;

pub use params::{Record, Records, read_parameters, write_parameters, write_record};
pub use patch::{Change, PatchFile, downgrade, upgrade};
pub use read::read;
pub use write::write;

pub(crate) use data::Nodes;
pub(crate) use write::node_json;
