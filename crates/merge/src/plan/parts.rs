//! The slices of a module: which layers of which models stand side by side.

use super::Planner;
use crate::architecture::Architecture;
use crate::error::{Error, Result};
use crate::method::{BaseUse, Count, Method};
use crate::model::Model;
use crate::recipe::{Form, Input, Module, Reference, Settings, Slice};

/// A slice with what it needs to be planned.
pub(super) struct Part<'a> {
    pub(super) inputs: Vec<Source<'a>>,
    pub(super) base: Option<usize>,
    pub(super) len: usize,
    pub(super) slice: Option<&'a Slice>,
    pub(super) line: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) reference: &'a Reference,
    pub(super) model: &'a Model,
    pub(super) from: usize,
    pub(super) parameters: Option<&'a Settings>,
    pub(super) line: usize,
}

impl<'a> Planner<'a> {
    /// The slices, checked.
    pub(super) fn parts(&self, module: &'a Module, architecture: &Architecture) -> Result<Vec<Part<'a>>> {
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
