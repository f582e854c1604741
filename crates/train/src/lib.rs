//! The main job: data, pipeline schedules, the training loop, exact resume on any mesh.

pub mod config;
pub mod data;
mod error;
pub mod pipeline;

pub use config::Config;
pub use error::{Error, Result};
