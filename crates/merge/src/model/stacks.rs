//! Factors of parameters that are no weights of modules (peft's `target_parameters`): those of experts that lie in one tensor.
//!
//! The first factor has the rows of one expert after the other; in each row of the second the experts change faster than the rank.
//! A model may have such a tensor, `[experts, out, in]`, or the weights of every expert apart.

use super::Model;
use super::adapter::{Adapter, Parts};
use super::fused::rows_of;
use crate::error::Result;
use crate::values::{Joined, Packed, Span, Values, whole};
use planaria_layout::Shape;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Parameters of experts in the order in which transformers registers them: peft nests its layers in it.
const ORDER: [&str; 2] = ["gate_up_proj", "down_proj"];
/// Where peft puts what a further parameter of a module is wrapped around.
pub(super) const INNER: &str = ".base_layer";

/// The factors of one parameter.
struct Stack {
    owner: String,
    parameter: String,
    rank: usize,
    experts: usize,
    down: Arc<dyn Values>,
    up: Arc<dyn Values>,
}

impl Stack {
    fn name(&self) -> String {
        format!("{}.{}", self.owner, self.parameter)
    }

    /// Both factors of every expert.
    fn each(&self) -> Result<Vec<Parts>> {
        let all = whole(&*self.up)?;
        let outputs = self.up.shape()[0];
        let part = |expert: usize| -> Result<Parts> {
            let places = (0..outputs * self.rank).map(|at| at * self.experts + expert);
            let up: Vec<f64> = places.map(|at| all[at]).collect();
            Ok(Parts {
                down: Some(rows_of(&self.down, expert * self.rank, self.rank)?),
                up: Some(Arc::new(Packed::new(&up, Shape::new(&[outputs, self.rank])?, self.up.dtype())?)),
                fused: Some(self.name()),
                ..Parts::default()
            })
        };
        (0..self.experts).map(part).collect()
    }

    /// The weights of an expert where a model has them apart, in the order of the outputs.
    fn apart(&self, expert: usize) -> Vec<Vec<String>> {
        let owner = &self.owner;
        let older = owner.replace(".mlp.experts", ".block_sparse_moe.experts");
        let named = |owner: &str, parts: &[&str]| -> Vec<String> {
            parts.iter().map(|part| format!("{owner}.{expert}.{part}")).collect()
        };
        match self.parameter.as_str() {
            "gate_up_proj" => vec![named(owner, &["gate_proj", "up_proj"]), named(&older, &["w1", "w3"])],
            "down_proj" => vec![named(owner, &["down_proj"]), named(&older, &["w2"])],
            _ => Vec::new(),
        }
    }
}

impl Adapter {
    /// The tensors by module; stacked factors are those of every expert, unless a model has such a tensor.
    pub(super) fn without_stacks(&self, model: &Model) -> Result<BTreeMap<String, Parts>> {
        let mut modules = self.modules();
        for stack in self.stacks(model)? {
            modules.retain(|module, _| module.trim_end_matches(INNER) != stack.owner);
            if !model.tensors.contains_key(&stack.name()) {
                for (expert, parts) in stack.each()?.into_iter().enumerate() {
                    modules.extend(self.of_expert(&stack, expert, &parts, model)?);
                }
            }
        }
        Ok(modules)
    }

    /// Puts stacked factors on the tensors that a model has for all experts.
    pub(super) fn apply_stacks(&self, model: &mut Model) -> Result<()> {
        for stack in self.stacks(model)? {
            let Some(base) = model.tensors.get(&stack.name()).cloned() else { continue };
            let (rows, columns) = match base.shape()[..] {
                [experts, rows, columns] if experts == stack.experts => (rows, columns),
                [rows, columns] if stack.experts == 1 => (rows, columns),
                _ => {
                    let (name, shape) = (stack.name(), base.shape());
                    let what = format!("'{name}': factors of {} experts do not fit {shape}", stack.experts);
                    return Err(self.wrong(what));
                }
            };
            // Some families keep inputs before outputs.
            let (outputs, inputs) = (stack.up.shape()[0], stack.down.shape()[1]);
            let turned = (rows, columns) != (outputs, inputs) && (rows, columns) == (inputs, outputs);
            let shape = Shape::new(&[rows, columns])?;
            let mut adapted = Vec::with_capacity(stack.experts);
            for (expert, parts) in stack.each()?.into_iter().enumerate() {
                let (inner, first) = (base.clone(), expert * rows * columns);
                let own: Arc<dyn Values> = Arc::new(Span { inner, first, shape: shape.clone() });
                adapted.push(self.adapted(&stack.name(), &parts, own, (turned, None))?);
            }
            let all = Joined { parts: adapted, shape: base.shape().clone(), dtype: base.dtype() };
            model.tensors.insert(stack.name(), Arc::new(all));
        }
        Ok(())
    }

    /// Refuses factors that would get lost where only modules can be said: those of a tensor that the model has for all experts, or
    /// any without a model.
    pub(crate) fn check_apart(&self, model: Option<&Model>) -> Result<()> {
        let Some(first) = self.config.target_parameters.iter().flatten().next() else { return Ok(()) };
        let Some(model) = model else {
            let what = format!(
                "'{first}' of `target_parameters` is no module; name a model that has its experts apart with --model"
            );
            return Err(self.wrong(what));
        };
        let stacks = self.stacks(model)?;
        match stacks.iter().find(|stack| model.tensors.contains_key(&stack.name())) {
            None => Ok(()),
            Some(stack) => Err(self.wrong(format!(
                "'{}' is one tensor in {}, so its experts are no modules; name a model that has them apart, or merge the adapter",
                stack.name(),
                model.name
            ))),
        }
    }

    /// The factors of an expert by the modules that the model has for it.
    fn of_expert(
        &self,
        stack: &Stack,
        expert: usize,
        parts: &Parts,
        model: &Model,
    ) -> Result<Vec<(String, Parts)>> {
        let has = |name: &String| model.tensors.contains_key(&format!("{name}.weight"));
        let Some(names) = stack.apart(expert).into_iter().find(|names| names.iter().all(has)) else {
            let (name, model) = (stack.name(), &model.name);
            return Err(self.wrong(format!(
                "it changes '{name}', and {model} has neither this tensor nor the weights of its experts apart"
            )));
        };
        match &names[..] {
            [one] => Ok(vec![(one.clone(), parts.clone())]),
            several => self.divided(&stack.name(), parts, several, model),
        }
    }

    /// The factors that belong to parameters; those of a weight are a module's like any other.
    fn stacks(&self, model: &Model) -> Result<Vec<Stack>> {
        let mut owners: BTreeMap<String, Vec<(usize, Parts)>> = BTreeMap::new();
        for (module, parts) in self.modules().into_iter().filter(|(_, parts)| parts.down.is_some()) {
            let owner = module.trim_end_matches(INNER).to_string();
            let plain = model.tensors.contains_key(&format!("{owner}.weight"));
            if !plain && !self.parameters_of(&owner).is_empty() {
                let depth = (module.len() - owner.len()) / INNER.len();
                owners.entry(owner).or_default().push((depth, parts));
            }
        }
        let mut stacks = Vec::new();
        for (owner, found) in owners {
            let parameters = self.parameters_of(&owner);
            let known = |name: &&String| ORDER.contains(&name.as_str());
            if found.len() != parameters.len()
                || parameters.len() > 1 && !parameters.iter().all(|p| known(&p))
            {
                let what = format!(
                    "'{owner}' has {} pairs of factors, and `target_parameters` names {} of its parameters in an order that is not known: {}",
                    found.len(),
                    parameters.len(),
                    parameters.join(", ")
                );
                return Err(self.wrong(what));
            }
            for (depth, parts) in found {
                // The last parameter is outermost.
                let place = parameters.len().checked_sub(depth + 1);
                let parameter = place.and_then(|place| parameters.get(place));
                let parameter =
                    parameter.ok_or_else(|| self.wrong(format!("'{owner}' is wrapped {depth} times")))?;
                stacks.push(self.stack(&owner, parameter, &parts)?);
            }
        }
        Ok(stacks)
    }

    fn stack(&self, owner: &str, parameter: &str, parts: &Parts) -> Result<Stack> {
        let name = format!("{owner}.{parameter}");
        let rank = self.config.rank(&name).map_err(|error| self.wrong(error.to_string()))?;
        let (Some(down), Some(up)) = (parts.down.clone(), parts.up.clone()) else {
            return Err(self.wrong(format!("'{name}' has one factor without the other")));
        };
        match (&down.shape()[..], &up.shape()[..]) {
            ([rows, _], [_, columns]) if rows == columns && rank > 0 && rows % rank == 0 => {
                let (owner, parameter) = (owner.to_string(), parameter.to_string());
                Ok(Stack { owner, parameter, rank, experts: rows / rank, down, up })
            }
            (down, up) => Err(self.wrong(format!(
                "'{name}': factors of the shapes {down:?} and {up:?} are not those of experts of rank {rank}"
            ))),
        }
    }

    /// Parameters of a module that are adapted, in the order in which peft wraps them.
    pub(super) fn parameters_of(&self, owner: &str) -> Vec<String> {
        let targets = self.config.target_parameters.iter().flatten();
        let own = targets.filter_map(|target| {
            let (before, parameter) = target.rsplit_once('.').unwrap_or(("", target));
            let rest = owner.strip_suffix(before)?;
            (before.is_empty() || rest.is_empty() || rest.ends_with('.')).then(|| parameter.to_string())
        });
        let mut own: Vec<String> = own.collect();
        own.sort_by_key(|name| (ORDER.iter().position(|known| known == name), name.clone()));
        own.dedup();
        own
    }
}
