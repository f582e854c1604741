//! Pipeline parallelism: a schedule is data, checked and simulated before it runs.
//!
//! A model is cut into stages. A [`Schedule`] lists for each rank what it does, in order: forward and backward work of
//! its stages on the micro-batches of a step, and the messages in between. Generators make the known schedules
//! ([`ScheduleKind`]); [`Schedule::validate`] finds what cannot work; [`Schedule::simulate`] tells time and memory;
//! [`engine::Engine`] carries one rank's list out on any communicator.
//!
//! ```
//! use planaria_pipeline::{Costs, ScheduleKind};
//!
//! let schedule = ScheduleKind::OneForwardOneBackward.build(4, 8, 1)?;
//! let told = schedule.simulate(&Costs::unit())?;
//! assert_eq!(told.makespan, 33.0);
//! assert_eq!(told.live, [4, 3, 2, 1]);
//! # Ok::<_, planaria_pipeline::Error>(())
//! ```

mod action;
pub mod engine;
mod error;
mod generate;
mod memory;
mod picture;
mod schedule;
mod simulate;
mod stages;
mod text;
mod validate;

#[cfg(test)]
mod tests;

pub use action::{Action, Step};
pub use error::{Error, Failure, Result};
pub use generate::{Limit, ScheduleKind};
pub use memory::{Release, StageBytes};
pub use picture::picture;
pub use schedule::Schedule;
pub use simulate::{Costs, Simulation, Span, StageCost};
pub use stages::Stages;

/// The examples of the page on pipelines, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/concepts/pipelines.md")]
struct PipelinesPage;
