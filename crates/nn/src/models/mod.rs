//! Decoder models: configuration, table of parameters, blocks, and the model itself.

mod block;
mod config;
mod json;
mod model;
mod moe;
mod table;

pub use block::Block;
pub use config::{Config, Experts, Family};
pub use model::{Activations, Cache, Loss, Model, Recompute, Run, Stage};
pub use moe::Moe;
