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
pub use adapter::{Adapter, Switch, TokenRows, without_adapters};
pub(crate) use adapter::{ExpertFactors, oriented, split_experts};
pub use config::{Biases, Factors, Layers, LoraConfig, Names, Tokens};
pub use rows::PREFIX;
pub use targets::{Target, Targets, find};

use crate::error::{Error, Result};
use crate::models::Network;
use crate::param::Adaptable;

/// Puts what adapters of products do into the weights of a whole model, and these adapters away, where each has one: it then computes as
/// a model without them, but for rounding. Weights that it shares with others are not touched.
pub fn merge_into_weights(network: &mut dyn Network) -> Result<()> {
    let mut failed: Option<Error> = None;
    network.visit_layers(&mut |layer| {
        if let Adaptable::Linear(linear) = layer {
            failed = failed.take().or_else(|| linear.merge().err());
        }
    });
    failed.map_or(Ok(()), Err)
}
