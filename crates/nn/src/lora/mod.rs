//! Low-rank adapters: small factors beside frozen weights, as peft defines and writes them.
//!
//! [`Adapted`] is a model like any other: its table has the rows of the model under it and, after those of each adapted
//! module, the rows of the adapter, whose cuts follow from the weight's. What trains, plans and saves knows only the rows and
//! their [`Role`](crate::Role)s.

mod adapted;
mod adapter;
mod config;
pub mod narrow;
pub mod pairs;
mod rows;
pub mod starts;
mod targets;

pub use adapted::Adapted;
pub use adapter::{Adapter, Switch, TokenRows};
pub(crate) use adapter::{ExpertFactors, oriented, split_experts};
pub use config::{Biases, Factors, Layers, LoraConfig, Names, Tokens};
pub use rows::PREFIX;
pub use targets::{Target, Targets, find};
