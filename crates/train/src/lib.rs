//! The main job: data, pipeline schedules, the training loop, exact resume on any mesh.

pub mod data;
pub mod geometry;
pub mod pipeline;
