//! From a recipe and its models to the tensors of the result: every name, source and parameter is decided before any byte
//! is read.

use crate::architecture::{Architecture, Weight};
use crate::error::{Error, Result, nearest};
use crate::how::How;
use crate::merged::{Merged, Prefix, Same};
use crate::method::BaseUse;
use crate::model::Model;
use crate::passes::Inputs;
use crate::recipe::{Form, Module, Recipe, Reference, Settings};
use crate::tokens::Relaying;
use crate::values::{Values, cast};
use planaria_array::promote;
use planaria_layout::{DType, Shape};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod given;
mod parts;

use parts::{Part, Source};

/// What a merge may do that it should not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Liberties {
    /// Merge models of different architectures by the names of the first.
    pub(crate) mixed: bool,
    /// Keep the rows that all vocabularies have.
    pub(crate) truncate: bool,
    /// Copy tensors of the base that the architecture does not name.
    pub(crate) keep_extra: bool,
}

/// The tensors of a result.
#[derive(Debug, std::default::Default)]
pub(crate) struct Planned {
    /// In the order of the model.
    pub(crate) tensors: Vec<(String, Arc<dyn Values>)>,
    /// Tensors of inputs that nothing was made of, with their model and bytes.
    pub(crate) dropped: Vec<(String, String, u64)>,
    /// Layers of the result's main module: model and layer that the first source has.
    pub(crate) layers: Vec<(Reference, usize)>,
    /// Layers of every module, with the keys by which a configuration may tell them.
    pub(crate) depths: Vec<(&'static [&'static str], usize)>,
    /// What every tensor is made of, for people.
    pub(crate) notes: Vec<String>,
    /// How every tensor is made.
    pub(crate) hows: BTreeMap<String, How>,
}

/// The models of a recipe by reference.
pub(crate) type Models = BTreeMap<Reference, Arc<Model>>;

/// Plans the tensors.
pub(crate) struct Planner<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) models: &'a Models,
    pub(crate) liberties: &'a Liberties,
    pub(crate) relaying: Option<&'a Relaying>,
    /// The tensors, where no architecture says them.
    pub(crate) architecture: Option<&'a Architecture>,
    pub(crate) seed: u64,
}

/// A tensor to be planned: its weight, its number in the result and in the slice.
struct Target<'a> {
    weight: &'a Weight,
    name: String,
    /// Layer within its slice.
    inner: usize,
    t: f64,
}

impl<'a> Planner<'a> {
    pub(crate) fn plan(&self) -> Result<Planned> {
        let mut planned = Planned::default();
        let mut used: BTreeSet<(&Reference, String)> = BTreeSet::new();
        let architectures = self.architectures()?;
        for (module, architecture) in self.chosen(&architectures)? {
            self.plan_module(module, architecture, &mut planned, &mut used)?;
        }
        for reference in self.recipe.models() {
            let model = self.model(reference)?;
            for (name, values) in &model.tensors {
                if used.contains(&(reference, name.clone())) {
                    continue;
                }
                let is_base = self.recipe.donor() == Some(reference);
                if self.liberties.keep_extra
                    && is_base
                    && planned.tensors.iter().all(|(other, _)| other != name)
                {
                    planned.tensors.push((name.clone(), values.clone()));
                    continue;
                }
                let bytes = (values.shape().numel() * values.dtype().size()) as u64;
                planned.dropped.push((model.name.clone(), name.clone(), bytes));
            }
        }
        Ok(planned)
    }

    fn model(&self, reference: &Reference) -> Result<&'a Model> {
        let model = self.models.get(reference).ok_or_else(|| Error::model(reference, "it was not opened"))?;
        Ok(model)
    }

    /// The modules of the architecture that all models have.
    fn architectures(&self) -> Result<Vec<Architecture>> {
        if let Some(architecture) = self.architecture {
            return Ok(vec![architecture.clone()]);
        }
        let references = self.recipe.models();
        let models: Vec<&Model> =
            references.iter().map(|reference| self.model(reference)).collect::<Result<_>>()?;
        match Architecture::differ(&models).filter(|_| !self.liberties.mixed) {
            Some((other, what)) => Err(Error::recipe(self.recipe.line_of(references[other]), what)),
            None => Architecture::modules(&models),
        }
    }

    /// The modules that a recipe makes: those it names, or all, each of the same models.
    fn chosen<'m>(&self, all: &'m [Architecture]) -> Result<Vec<(&'a Module, &'m Architecture)>> {
        let mut chosen = Vec::new();
        let names = || all.iter().map(|module| format!("'{}'", module.name)).collect::<Vec<_>>().join(", ");
        for module in &self.recipe.modules {
            match (&module.name, &module.form) {
                (None, Form::Slices(_)) if all.len() > 1 => {
                    let (first, names) = (all[0].name, names());
                    let what = format!(
                        "this architecture has several modules, {names}; say whose layers these are: `modules: {{{first}: {{slices: ...}}}}`"
                    );
                    return Err(Error::recipe(module.line, what));
                }
                (None, _) => chosen.extend(all.iter().map(|architecture| (module, architecture))),
                (Some(name), _) => {
                    let found = all.iter().find(|architecture| architecture.name == name.as_str());
                    let near = nearest(name, all.iter().map(|module| module.name));
                    let what =
                        format!("there is no module '{name}'{near}; this architecture has {}", names());
                    chosen.push((module, found.ok_or_else(|| Error::recipe(module.line, what))?));
                }
            }
        }
        Ok(chosen)
    }

    fn plan_module(
        &self,
        module: &'a Module,
        architecture: &Architecture,
        planned: &mut Planned,
        used: &mut BTreeSet<(&'a Reference, String)>,
    ) -> Result<()> {
        let parts = self.parts(module, architecture)?;
        let scopes = |part: &Part<'a>| {
            [
                part.slice.map(|slice| &slice.parameters),
                Some(&module.parameters),
                Some(&self.recipe.parameters),
            ]
        };
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
        for weight in &architecture.pre {
            let target = Target { weight, name: weight.name.clone(), inner: 0, t: 0.0 };
            self.plan_tensor(first, &target, &scopes(first), planned, used)?;
        }
        let mut number = 0;
        for part in &parts {
            for inner in 0..part.len {
                let t = if part.len == 1 { 1.0 } else { inner as f64 / (part.len - 1) as f64 };
                for weight in &architecture.layer {
                    let target = Target { weight, name: weight.in_layer(number), inner, t };
                    self.plan_tensor(part, &target, &scopes(part), planned, used)?;
                }
                if architecture.is_main() {
                    let source = part.inputs[0];
                    planned.layers.push((source.reference.clone(), source.from + inner));
                }
                number += 1;
            }
        }
        if number > 0 {
            planned.depths.push((architecture.depth_keys(), number));
        }
        for weight in &architecture.post {
            let target = Target { weight, name: weight.name.clone(), inner: 0, t: 0.0 };
            self.plan_tensor(last, &target, &scopes(last), planned, used)?;
        }
        Ok(())
    }

    /// Plans one tensor, if it is there.
    fn plan_tensor(
        &self,
        part: &Part<'a>,
        target: &Target<'_>,
        scopes: &[Option<&Settings>],
        planned: &mut Planned,
        used: &mut BTreeSet<(&'a Reference, String)>,
    ) -> Result<()> {
        let weight = target.weight;
        let mut found: Vec<Option<(String, Arc<dyn Values>)>> = Vec::new();
        for input in &part.inputs {
            let name = weight.in_layer(input.from + target.inner);
            found.push(match input.model.tensors.get(&name) {
                Some(values) => Some((name, values.clone())),
                None if weight.optional => None,
                None => {
                    let missing = input.model.tensor(&name).err();
                    let missing = missing.unwrap_or_else(|| Error::model(input.reference, name));
                    return Err(missing.at_line(input.line));
                }
            });
        }
        if found.iter().all(Option::is_none) {
            return Ok(());
        }
        for (input, found) in part.inputs.iter().zip(&mut found) {
            if let (None, Some(tied)) = (&found, &weight.tied)
                && let Some(values) = input.model.tensors.get(tied)
            {
                *found = Some((tied.clone(), values.clone()));
            }
        }
        let mut present: Vec<Present<'_>> = Vec::new();
        for (number, (input, found)) in part.inputs.iter().zip(found).enumerate() {
            let Some((stored, values)) = found else { continue };
            input.model.tensor(&stored).map_err(|error| error.at_line(input.line))?;
            used.insert((input.reference, stored.clone()));
            let name = weight.in_layer(input.from + target.inner);
            present.push(Present { number, name, stored, values, input });
        }
        let base = part.base.and_then(|base| present.iter().position(|one| one.number == base));
        let made = match present.len() < part.inputs.len() {
            true => self.of_some(part, base, present.len(), &target.name)?,
            false => Made::Merged,
        };
        if made == Made::Absent {
            return Ok(());
        }
        let (values, how) = self.tensor(part, target, scopes, (&present, base), made)?;
        planned.hows.insert(target.name.clone(), how);
        planned.notes.push(format!("{}: {}", target.name, names(&present)));
        planned.tensors.push((target.name.clone(), values));
        Ok(())
    }

    /// What becomes of a tensor that only some inputs have.
    fn of_some(&self, part: &Part<'_>, base: Option<usize>, present: usize, name: &str) -> Result<Made> {
        let missing = || {
            let what =
                format!("'{name}' is not in all inputs, and {} needs it there", self.recipe.method.name);
            Err(Error::recipe(part.line, what))
        };
        match self.recipe.method.name {
            "slerp" | "nuslerp" | "arcee_fusion" if present == 1 => Ok(Made::Copied(0)),
            "nearswap" if present == 1 => Ok(base.map_or(Made::Absent, Made::Copied)),
            "model_stock" if present < 3 => Ok(base.map_or(Made::Absent, Made::Copied)),
            "slerp" | "nuslerp" | "arcee_fusion" | "nearswap" => missing(),
            "multislerp" if base.is_some() && present == 1 => missing(),
            _ if self.recipe.method.base == BaseUse::Required && base.is_none() => missing(),
            _ => Ok(Made::Merged),
        }
    }

    fn tensor(
        &self,
        part: &Part<'_>,
        target: &Target<'_>,
        scopes: &[Option<&Settings>],
        (present, base): (&[Present<'_>], Option<usize>),
        made: Made,
    ) -> Result<(Arc<dyn Values>, How)> {
        let owners: Vec<String> = present.iter().map(|one| one.input.reference.to_string()).collect();
        let copied = |from: usize| How::plain(format!("copied from {}", owners[from]));
        let mut values: Vec<Arc<dyn Values>> = present.iter().map(|one| one.values.clone()).collect();
        if let (true, Some(relaying)) = (target.weight.vocabulary, self.relaying) {
            let owners: Vec<&Reference> = present.iter().map(|one| one.input.reference).collect();
            let line = self.recipe.tokenizer.as_ref().map_or(part.line, |section| section.line);
            // Means of rows are taken in the type that inputs are cast to.
            let relaid = relaying.relay(target.weight, (&owners, &values), self.models, self.recipe.dtype);
            values = relaid.map_err(|error| error.at_line(line))?;
        }
        let shape = self.common_shape(target, present, &mut values)?;
        if values.iter().any(|values| !values.dtype().is_float()) {
            let how = How::plain(format!("compared, then copied from {}", owners[0]));
            return Ok((Arc::new(Same { name: target.name.clone(), values }), how));
        }
        let mut dtype = values[0].dtype();
        for other in &values[1..] {
            dtype = promote("merge", dtype, other.dtype())?;
        }
        if let Some(wanted) = self.recipe.dtype {
            dtype = wanted;
            values = values.into_iter().map(|values| cast(values, wanted)).collect();
        }
        if let Made::Copied(from) = made {
            return Ok((self.finished(values[from].clone(), dtype), copied(from)));
        }
        let given = self.given(part, target, scopes, (present, base))?;
        let rule = self.recipe.method.rule(&given).map_err(|error| match error {
            Error::Request { what } => Error::recipe(part.line, format!("'{}': {what}", target.name)),
            other => other,
        })?;
        if let ([only], true) = (&values[..], rule.is_copy()) {
            return Ok((self.finished(cast(only.clone(), dtype), dtype), copied(0)));
        }
        let how = How::method(self.recipe.method, &owners, &given);
        let inputs = Inputs { values, base, shape, wide: dtype == DType::F64 };
        Ok((self.finished(Arc::new(Merged::new(&target.name, inputs, rule, dtype)?), dtype), how))
    }

    /// In the element type of the result.
    fn finished(&self, values: Arc<dyn Values>, dtype: DType) -> Arc<dyn Values> {
        cast(values, self.recipe.out_dtype.unwrap_or(dtype))
    }

    /// The shape that all have, or can be given.
    fn common_shape(
        &self,
        target: &Target<'_>,
        present: &[Present<'_>],
        values: &mut [Arc<dyn Values>],
    ) -> Result<Vec<usize>> {
        let shape = values[0].shape().clone();
        let Some(other) = values.iter().position(|values| *values.shape() != shape) else {
            return Ok(shape.to_vec());
        };
        let (first, second) = (&present[0], &present[other]);
        let differ = format!(
            "the shapes differ: {} in {} and {} in {}",
            shape,
            first.input.reference,
            values[other].shape(),
            second.input.reference
        );
        let rows_alone = values
            .iter()
            .all(|values| values.shape().get(1..) == shape.get(1..) && !values.shape().is_empty());
        let refused =
            |what: String| Err(Error::recipe(second.input.line, format!("'{}': {what}", target.name)));
        if !(target.weight.vocabulary && rows_alone) {
            return refused(differ);
        }
        if !self.liberties.truncate {
            let what = format!(
                "{differ}; a `tokenizer` section (such as `tokenizer_source: union`) makes the vocabularies one, `--unsafe-truncate-embeddings` keeps the rows that all have"
            );
            return refused(what);
        }
        let rows = values.iter().map(|values| values.shape()[0]).min().unwrap_or(0);
        let mut shape = shape.to_vec();
        shape[0] = rows;
        for values in values.iter_mut() {
            *values = Arc::new(Prefix { inner: values.clone(), shape: Shape::new(&shape)? });
        }
        Ok(shape)
    }
}

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// It is made by the method.
    Merged,
    /// It is that of one of the inputs that have it.
    Copied(usize),
    /// It is left out.
    Absent,
}

/// An input that has a tensor.
struct Present<'a> {
    number: usize,
    /// As the table of the architecture has it, which is what parameters speak of.
    name: String,
    /// As it is stored: another one where a tied tensor stands in.
    stored: String,
    values: Arc<dyn Values>,
    input: &'a Source<'a>,
}

fn names(present: &[Present<'_>]) -> String {
    let all: Vec<String> =
        present.iter().map(|one| format!("{} {}", one.input.reference, one.stored)).collect();
    all.join(", ")
}
