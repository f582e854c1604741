//! A recipe of any form: models, mixtures of experts, files of tensors, Paddle's own.

use crate::error::Result;
use crate::merge::{Merge, Options, plan};
use crate::moe::plan_moe;
use crate::paddle::plan_paddle;
use crate::raw::{Missing, plan_raw};

/// What a recipe speaks of, where its text does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Models with a configuration.
    Models,
    /// Files of tensors without a model, name by name.
    Tensors(Missing),
}

/// Plans a merge by a recipe of any form.
pub fn plan_any(text: &str, inputs: Inputs, options: &Options) -> Result<Merge> {
    // A configuration of Paddle is an object of JSON, and a mixture has experts at the beginning of a line.
    if text.trim_start().starts_with('{') {
        return plan_paddle(text, options);
    }
    match inputs {
        Inputs::Tensors(missing) => plan_raw(text, missing, options),
        Inputs::Models if text.lines().any(|line| line.starts_with("experts:")) => plan_moe(text, options),
        Inputs::Models => plan(text, options),
    }
}
