//! The parameters of one tensor: what the scopes of a recipe say, or the method's own values.

use super::parts::Part;
use super::{Planner, Present, Target};
use crate::error::{Error, Result};
use crate::method::sparsify::Stream;
use crate::method::{BaseUse, Default, Given, Parameter, SettingKind};
use crate::recipe::{Reference, Scalar, Settings, Spot};

/// Who needs a parameter, and where that stands in the recipe.
struct Whose<'a> {
    name: &'a str,
    line: usize,
}

impl Planner<'_> {
    /// The values of all parameters.
    pub(super) fn given(
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
                return converted(parameter, &scalar, whose.name, line).map(Some);
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

fn converted(parameter: &Parameter, scalar: &Scalar, whose: &str, line: usize) -> Result<f64> {
    scalar.of_kind(parameter.kind).ok_or_else(|| {
        let expected = match parameter.kind {
            SettingKind::Number(range) if scalar.number().is_some() => range.to_string(),
            SettingKind::Number(_) => "a number".to_string(),
            SettingKind::Truth => "true or false".to_string(),
        };
        let what = format!("{} is '{scalar}' for {whose}; write {expected}", parameter.name);
        Error::recipe(line, what)
    })
}
