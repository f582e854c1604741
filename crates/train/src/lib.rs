//! The main job: data, pipeline schedules, the training loop, exact resume on any mesh.

pub mod average;
pub mod beat;
mod beside;
mod bundle;
pub mod config;
pub mod drill;
pub mod embedding;
mod error;
pub mod event;
pub mod explain;
mod fit;
mod freeze;
mod gather;
mod generate;
pub mod objective;
mod opened;
mod partition;
pub mod plan;
mod pretrained;
pub mod programs;
pub mod reduce;
mod replica;
pub mod rl;
mod sight;
mod signals;
pub mod simulate;
mod trainer;
mod update;
mod weights;

pub use config::Config;
pub use error::{Error, Result};
pub use generate::{
    BatchTime, Continuation, Continued, Dialogue, Generator, Measure, MeasureOptions, Prepared, Sampling,
    Weights,
};
pub use objective::{Objective, Objectives};
pub use opened::Opened;
pub use planaria_data as data;
pub use planaria_data::geometry;
pub use planaria_layout::Share;
pub use planaria_pipeline as pipeline;
pub use signals::Requests;
pub use trainer::{Healing, Kept, Outcome, Trainer, clear_memory, persist_memory, read_model_config};
pub use weights::Zero;
