//! Modules, models, losses and optimizers; parallelism written as layouts.
//!
//! A model is plain structs of [`Param`]s and functions of tensors. [`models::Config`] reads a Hugging Face
//! `config.json` and lists the parameters with their names, shapes and layouts; [`models::Model`] is built from that
//! list, on one rank or on a mesh, and the same lines compute on both.

#![forbid(unsafe_code)]

mod error;
pub mod generate;
pub mod layers;
mod loss;
pub mod models;
pub mod optim;
mod parallel;
mod param;

pub use error::{Error, Result};
pub use loss::{IGNORED, linear_cross_entropy, linear_cross_entropy_by};
pub use parallel::{ExpertRanks, Lanes, Parallel};
pub use param::{Cut, Init, Kind, Module, Param, ParamSpec, Source, Start};
