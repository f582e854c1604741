//! Files of tensors without a model: every name is merged by the method.

use crate::architecture::{Architecture, Weight};
use crate::error::Result;
use crate::merge::{Merge, Options, stage};
use crate::model::Model;
use crate::recipe::parse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What to do about tensors that not all files have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Refuse.
    Refuse,
    /// Leave them out.
    Skip,
    /// Merge those that are there.
    Take,
}

/// Plans the merge of files of tensors by a recipe. No tensor is read.
pub fn plan_raw(text: &str, missing: Missing, options: &Options) -> Result<Merge> {
    let recipe = parse(text)?;
    let mut opened = BTreeMap::new();
    let mut names: Vec<BTreeSet<String>> = Vec::new();
    for reference in recipe.all_models() {
        let model = Model::open(reference, &options.root)
            .map_err(|error| error.at_line(recipe.line_of(reference)))?;
        names.push(model.tensors.keys().cloned().collect());
        opened.insert(reference.clone(), Arc::new(model));
    }
    let all: BTreeSet<&String> = names.iter().flatten().collect();
    let everywhere = |name: &str| names.iter().all(|names| names.contains(name));
    let chosen = all.into_iter().filter(|name| missing != Missing::Skip || everywhere(name));
    let weights = chosen.map(|name| Weight::named(name, missing == Missing::Take)).collect();
    let architecture = Architecture::flat(weights);
    let merge = stage(&recipe, &mut opened, &BTreeMap::new(), Some(&architecture), options)?;
    let removed = recipe.removed.iter().map(|(line, pattern)| (Some(*line), pattern.clone()));
    Ok(merge.finished(removed.collect(), options)?.told("mergekit_config.yml", text))
}
