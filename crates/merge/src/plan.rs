//! From a recipe and its models to the tensors of the result: every name, source and parameter is decided before any byte
//! is read.

use crate::architecture::{Architecture, Weight};
use crate::error::{Error, Result};
use crate::how::How;
use crate::merged::{Merged, Prefix, Same};
use crate::method::sparsify::Stream;
use crate::method::{BaseUse, Count, Default, Given, Method, Parameter, SettingKind};
use crate::model::Model;
use crate::passes::Inputs;
use crate::recipe::{Form, Input, Module, Recipe, Reference, Scalar, Settings, Slice, Spot};
use crate::tokens::Relaying;
use crate::values::{Values, cast};
use planaria_array::promote;
use planaria_layout::{DType, Shape};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    /// Layers of the result: model and layer that the first source has.
    pub(crate) layers: Vec<(Reference, usize)>,
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

/// A slice with what it needs to be planned.
struct Part<'a> {
    inputs: Vec<Source<'a>>,
    base: Option<usize>,
    len: usize,
    slice: Option<&'a Slice>,
    line: usize,
}

#[derive(Clone, Copy)]
struct Source<'a> {
    reference: &'a Reference,
    model: &'a Model,
    from: usize,
    parameters: Option<&'a Settings>,
    line: usize,
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
        for module in &self.recipe.modules {
            if module.name != "default" {
                let what =
                    format!("there is no module '{}'; this architecture has one, 'default'", module.name);
                return Err(Error::recipe(module.line, what));
            }
            self.plan_module(module, &mut planned, &mut used)?;
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

    fn plan_module(
        &self,
        module: &'a Module,
        planned: &mut Planned,
        used: &mut BTreeSet<(&'a Reference, String)>,
    ) -> Result<()> {
        let references = self.recipe.models();
        let models: Vec<&Model> =
            references.iter().map(|reference| self.model(reference)).collect::<Result<_>>()?;
        let architecture = match self.architecture {
            Some(architecture) => architecture.clone(),
            None => {
                if let Some((other, what)) = Architecture::differ(&models).filter(|_| !self.liberties.mixed) {
                    return Err(Error::recipe(self.recipe.line_of(references[other]), what));
                }
                Architecture::of(&models)?
            }
        };
        let parts = self.parts(module, &architecture)?;
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
                let source = part.inputs[0];
                planned.layers.push((source.reference.clone(), source.from + inner));
                number += 1;
            }
        }
        for weight in &architecture.post {
            let target = Target { weight, name: weight.name.clone(), inner: 0, t: 0.0 };
            self.plan_tensor(last, &target, &scopes(last), planned, used)?;
        }
        Ok(())
    }

    /// The slices, checked.
    fn parts(&self, module: &'a Module, architecture: &Architecture) -> Result<Vec<Part<'a>>> {
        let mut parts = Vec::new();
        match &module.form {
            Form::Models(inputs) => {
                let mut sources = self.sources(inputs, architecture)?;
                let base = self.recipe.base.as_ref();
                if let Some(base) = base.filter(|base| inputs.iter().all(|input| input.model != **base)) {
                    let model = self.model(base)?;
                    sources.push((
                        Source {
                            reference: base,
                            model,
                            from: 0,
                            parameters: None,
                            line: self.recipe.line_of(base),
                        },
                        architecture.layers(model),
                    ));
                }
                parts.push(self.part(sources, base, None, module.line)?);
            }
            Form::Slices(slices) => {
                for slice in slices {
                    let sources = self.sources(&slice.sources, architecture)?;
                    let base = slice.base.as_ref().or(self.recipe.base.as_ref());
                    parts.push(self.part(sources, base, Some(slice), slice.line)?);
                }
            }
        }
        Ok(parts)
    }

    /// Inputs with their numbers of layers.
    fn sources(&self, inputs: &'a [Input], architecture: &Architecture) -> Result<Vec<(Source<'a>, usize)>> {
        let mut sources: Vec<(Source<'a>, usize)> = Vec::new();
        for input in inputs {
            let (reference, line) = (&input.model, input.line);
            let model = self.model(reference)?;
            let layers = architecture.layers(model);
            let (from, to) = match input.layers {
                None => (0, layers),
                Some((_, to)) if to > layers => {
                    let what = format!(
                        "layer {} of {reference} does not exist; it has {layers} layers, so the layer_range ends at {layers} at most",
                        to - 1
                    );
                    return Err(Error::recipe(line, what));
                }
                Some(range) => range,
            };
            if sources.iter().any(|(other, _)| other.reference == reference) {
                return Err(Error::recipe(line, format!("{reference} is the same model as one before it")));
            }
            sources.push((
                Source { reference, model, from, parameters: Some(&input.parameters), line },
                to - from,
            ));
        }
        Ok(sources)
    }

    fn part(
        &self,
        sources: Vec<(Source<'a>, usize)>,
        base: Option<&Reference>,
        slice: Option<&'a Slice>,
        line: usize,
    ) -> Result<Part<'a>> {
        let (first, len) = sources[0];
        if let Some((other, found)) = sources.iter().find(|(_, other)| *other != len) {
            let what = format!(
                "the sources differ in length: {} has {len} layers here and {} has {found}",
                first.reference, other.reference
            );
            return Err(Error::recipe(other.line, what));
        }
        let inputs: Vec<Source<'a>> = sources.into_iter().map(|(source, _)| source).collect();
        let found = base.and_then(|base| inputs.iter().position(|input| input.reference == base));
        let method = self.recipe.method;
        let base = if method.base == BaseUse::Plain { None } else { found };
        check_count(method, inputs.len(), base, line)?;
        Ok(Part { inputs, base, len, slice, line })
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

    /// The values of all parameters.
    fn given(
        &self,
        part: &Part<'_>,
        target: &Target<'_>,
        scopes: &[Option<&Settings>],
        (present, base): (&[Present<'_>], Option<usize>),
    ) -> Result<Given> {
        let method = self.recipe.method;
        let mut shared = Vec::new();
        for parameter in method.shared {
            let spot = Spot { name: &target.name, t: target.t, kind: parameter.kind };
            let whose = Whose { name: &target.name, line: part.line };
            shared.push((parameter.name, self.value(parameter, spot, scopes, &whose)?));
        }
        let mut per_input = Vec::new();
        for (number, one) in present.iter().enumerate() {
            let mut given = Vec::new();
            for parameter in method.per_input.iter().filter(|_| Some(number) != base) {
                let own: Vec<Option<&Settings>> =
                    std::iter::once(one.input.parameters).chain(scopes.iter().copied()).collect();
                let spot = Spot { name: &one.name, t: target.t, kind: parameter.kind };
                let name = format!("{} ('{}')", one.input.reference, one.name);
                let whose = Whose { name: &name, line: one.input.line };
                given.push((parameter.name, self.value(parameter, spot, &own, &whose)?));
            }
            per_input.push(given);
        }
        let stream =
            |one: &Present<'_>| Stream::new(self.seed, &one.input.reference.to_string(), &target.name);
        let streams = present.iter().map(stream).collect();
        Ok(Given { base, shared, per_input, streams })
    }

    /// The first scope that says something decides.
    fn value(
        &self,
        parameter: &Parameter,
        spot: Spot<'_>,
        scopes: &[Option<&Settings>],
        whose: &Whose<'_>,
    ) -> Result<Option<f64>> {
        for settings in scopes.iter().flatten() {
            if let Some((scalar, line)) = settings.get(parameter.name, spot) {
                return converted(parameter, &scalar, line).map(Some);
            }
        }
        match parameter.default {
            Default::Value(value) => Ok(Some(value)),
            Default::None => Ok(None),
            Default::Required => {
                let of_base = |base: &&Reference| whose.name.starts_with(&format!("{base} ("));
                let base = self.recipe.base.as_ref().filter(of_base);
                let why = match base {
                    Some(_) if self.recipe.method.base == BaseUse::Plain => {
                        format!(": base_model joins the inputs of {}", self.recipe.method.name)
                    }
                    _ => String::new(),
                };
                let (name, Whose { name: whose, line }) = (parameter.name, whose);
                let what = format!("{name} is required for {whose}{why}; set `parameters: {{{name}: ...}}`");
                Err(Error::recipe(*line, what))
            }
        }
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

/// Who needs a parameter, and where that stands in the recipe.
struct Whose<'a> {
    name: &'a str,
    line: usize,
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

fn converted(parameter: &Parameter, scalar: &Scalar, line: usize) -> Result<f64> {
    let value = match parameter.kind {
        SettingKind::Number => scalar.number(),
        SettingKind::Truth => scalar.truth().map(|truth| f64::from(u8::from(truth))),
    };
    let expected = match parameter.kind {
        SettingKind::Number => "a number",
        SettingKind::Truth => "true or false",
    };
    value.ok_or_else(|| {
        Error::recipe(line, format!("{} is '{scalar}', which is not {expected}", parameter.name))
    })
}

fn check_count(method: &Method, inputs: usize, base: Option<usize>, line: usize) -> Result<()> {
    let name = method.name;
    if method.base == BaseUse::Required && base.is_none() {
        let what = format!("{name} needs a base_model, and it must be among the inputs");
        return Err(Error::recipe(line, what));
    }
    let beside = inputs - usize::from(base.is_some());
    let (fits, expected) = match method.count {
        Count::AtLeast(least) => (inputs >= least, format!("at least {least} models with the base")),
        Count::Exactly(count) if method.base == BaseUse::Plain => (inputs == count, format!("{count} model")),
        Count::Exactly(count) => (inputs == count, format!("{count} models, the base among them")),
        Count::AtLeastBeside(least) => (beside >= least, format!("at least {least} model beside the base")),
        Count::ExactlyBeside(count) => (beside == count, format!("{count} models beside the base")),
    };
    let found = if matches!(method.count, Count::AtLeastBeside(_) | Count::ExactlyBeside(_)) {
        beside
    } else {
        inputs
    };
    match fits {
        true => Ok(()),
        false => Err(Error::recipe(line, format!("{name} takes {expected}, and there are {found}"))),
    }
}
