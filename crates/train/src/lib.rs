//! The main job: data, pipeline schedules, the training loop, exact resume on any mesh.

pub mod config;
pub mod data;
pub mod geometry;
mod error;
pub mod pipeline;
pub mod reduce;
mod share;

pub use config::Config;
pub use error::{Error, Result};
pub use share::Share;
