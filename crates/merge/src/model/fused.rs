//! Adapters of modules that a model has in parts: factors of queries, keys and values together, or of gate and up together.
//!
//! As Paddle divides them: outputs lie one part after the other, so each part has its rows of the second factor, and all of them
//! the first.

use super::Model;
use super::adapter::{Adapter, Parts};
use crate::error::{Error, Result};
use crate::values::{Span, Values};
use planaria_layout::Shape;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fused modules by the last part of their names, with the parts in the order in which their outputs lie.
const FUSED: [(&str, &[&str]); 4] = [
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("up_gate_proj", &["gate_proj", "up_proj"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
    ("gate_up_fused_proj", &["gate_proj", "up_proj"]),
];

/// The name of a module in a model: adapters of a model without a head, such as those that make embeddings, have no `model.` before
/// their names, and the other way round.
fn named_in(module: String, model: &Model) -> String {
    let has = |name: &str| model.tensors.contains_key(&format!("{name}.weight"));
    let longer = format!("model.{module}");
    if has(&module) {
        return module;
    }
    if has(&longer) {
        return longer;
    }
    let shorter = module.strip_prefix("model.").filter(|name| has(name)).map(str::to_string);
    shorter.unwrap_or(module)
}

impl Adapter {
    /// The tensors by module, as a model has its modules.
    pub(crate) fn modules_on(&self, model: &Model) -> Result<BTreeMap<String, Parts>> {
        let mut modules = BTreeMap::new();
        for (module, parts) in self.without_stacks(model)? {
            let module = named_in(module, model);
            match parts_of(&module, model).filter(|_| parts.down.is_some()) {
                None => drop(modules.insert(module, parts)),
                Some(names) => modules.extend(self.divided(&module, &parts, &names, model)?),
            }
        }
        Ok(modules)
    }

    /// The factors of a module as those of its parts, whose weights the model has.
    pub(super) fn divided(
        &self,
        module: &str,
        parts: &Parts,
        names: &[String],
        model: &Model,
    ) -> Result<Vec<(String, Parts)>> {
        let wrong = |what: String| Error::model(self.name(), format!("'{module}': {what}"));
        if self.start()?.is_some() {
            let what = "its start was taken out of the fused weight, which this model has in parts; convert it with the fused model first";
            return Err(wrong(what.to_string()));
        }
        let rows = |name: &String| Ok(model.tensor(&format!("{name}.weight"))?.shape()[0]);
        let sizes: Vec<usize> = names.iter().map(rows).collect::<Result<_>>()?;
        let up =
            parts.up.as_ref().ok_or_else(|| wrong("one factor is there without the other".to_string()))?;
        let outputs = up.shape().first().copied().unwrap_or(0);
        if outputs != sizes.iter().sum::<usize>() {
            let sizes: Vec<String> =
                names.iter().zip(&sizes).map(|(name, size)| format!("{size} of '{name}'")).collect();
            let what = format!("it has {outputs} outputs, and {} has {}", model.name, sizes.join(", "));
            return Err(wrong(what));
        }
        let mut first = 0;
        let mut made = Vec::new();
        for (name, size) in names.iter().zip(sizes) {
            let of = |values: &Option<Arc<dyn Values>>| {
                values.as_ref().map(|all| rows_of(all, first, size)).transpose()
            };
            let own = Parts {
                up: of(&parts.up)?,
                up_bias: of(&parts.up_bias)?,
                magnitude: of(&parts.magnitude)?,
                fused: Some(parts.fused.clone().unwrap_or_else(|| module.to_string())),
                ..parts.clone()
            };
            made.push((name.clone(), own));
            first += size;
        }
        Ok(made)
    }
}

/// The parts of a module that a model does not have fused.
fn parts_of(module: &str, model: &Model) -> Option<Vec<String>> {
    let (before, last) = module.rsplit_once('.').unwrap_or(("", module));
    let (_, parts) = FUSED.iter().find(|(name, _)| *name == last)?;
    let named =
        |part: &&str| if before.is_empty() { (*part).to_string() } else { format!("{before}.{part}") };
    let names: Vec<String> = parts.iter().map(named).collect();
    let has = |name: &str| model.tensors.contains_key(&format!("{name}.weight"));
    (!has(module) && names.iter().all(|name| has(name))).then_some(names)
}

/// Some rows of a tensor.
pub(super) fn rows_of(all: &Arc<dyn Values>, first: usize, count: usize) -> Result<Arc<dyn Values>> {
    let mut shape = all.shape().to_vec();
    let width: usize = shape[1..].iter().product();
    shape[0] = count;
    Ok(Arc::new(Span { inner: all.clone(), first: first * width, shape: Shape::new(&shape)? }))
}
