//! Merging models: recipes as mergekit writes them, from checkpoints of any format to any we write.
//!
//! A tensor of the result is a function of its elements: which inputs it has, which rule makes it of them, and what must be
//! known of all their elements beforehand. [`plan`] decides all of it from names, shapes and the recipe alone and refuses what
//! cannot be; the values come into being while [`Merge::conversion`] is written, block by block, in bounded memory. Nothing
//! depends on the number of threads, on files or on the order in which elements are asked for.
//!
//! ```no_run
//! use planaria_ckpt::convert::{ConvertOptions, To};
//! use planaria_merge::{Options, plan};
//! use planaria_store::Local;
//!
//! let recipe = "merge_method: slerp\nbase_model: a\nmodels: [{model: a}, {model: b}]\nparameters: {t: 0.5}\n";
//! let merge = plan(recipe, &Options::default())?;
//! merge.conversion(To::HuggingFace, &ConvertOptions::default())?.run(&Local::new("out"), "", &())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod any;
mod architecture;
mod card;
mod combine;
mod error;
mod extract;
mod how;
mod input;
mod layout;
mod merge;
mod merged;
mod method;
mod model;
mod moe;
mod paddle;
mod passes;
mod plan;
mod raw;
mod recipe;
mod result;
mod seen;
mod select;
#[cfg(test)]
mod tests;
mod tokens;
mod unmerge;
mod values;

pub use any::{Inputs, plan_any};
pub use combine::{Combination, CombineOptions, Majority, combine};
pub use error::{Error, Result};
pub use extract::{ExtractOptions, extract};
pub use how::{Group, TensorPlan};
pub use input::InputSummary;
pub use layout::{AdapterLayout, convert_adapter};
pub use merge::{Merge, Options, plan, plan_adapted};
pub use model::Root;
pub use moe::plan_moe;
pub use paddle::plan_paddle;
pub use raw::{Missing, plan_raw};
pub use unmerge::{originals, unmerge};
