//! What is done to make tensors, in words: for a look before anything is done.

use crate::method::{Default, Given, Method, Parameter, SettingKind};
use planaria_layout::{DType, Shape};
use std::fmt::Write;

/// How one tensor is made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct How {
    /// In words.
    pub(crate) what: String,
    /// Parameters that are not what they are where nobody sets them: a value, or one of every input.
    pub(crate) parameters: Vec<(&'static str, Vec<f64>)>,
}

/// Tensors that are made in the same way.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The stage that they belong to, where it has a name.
    pub stage: Option<String>,
    /// The way, with its parameters and the range of each.
    pub what: String,
    /// How many.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A tensor of a result and how it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorPlan {
    /// The stage that it belongs to, where it has a name.
    pub stage: Option<String>,
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its extents.
    pub shape: Shape,
    /// The way, with inputs and parameters.
    pub what: String,
}

impl How {
    /// In words, with its parameters.
    pub(crate) fn told(&self) -> String {
        let group = groups(None, std::iter::once((self, 0))).pop();
        group.map(|group| group.what).unwrap_or_default()
    }

    pub(crate) fn plain(what: impl Into<String>) -> How {
        How { what: what.into(), parameters: Vec::new() }
    }

    /// By a method, of inputs.
    pub(crate) fn method(method: &Method, inputs: &[String], given: &Given) -> How {
        let mut names = inputs.to_vec();
        if let Some(base) = given.base {
            names[base].push_str(" (base)");
        }
        let mut what = format!("{} of {}", method.name, names.join(", "));
        let mut parameters = Vec::new();
        for parameter in method.shared {
            let value = given.shared.iter().find(|(name, _)| *name == parameter.name).and_then(|(_, v)| *v);
            match value.filter(|value| is_set(parameter, *value)) {
                Some(value) if parameter.kind == SettingKind::Truth => {
                    let _ = write!(what, ", {} {}", parameter.name, value != 0.0);
                }
                Some(value) => parameters.push((parameter.name, vec![value])),
                None => {}
            }
        }
        for parameter in method.per_input {
            let of = |given: &Vec<(&'static str, Option<f64>)>| {
                given.iter().find(|(name, _)| *name == parameter.name).and_then(|(_, value)| *value)
            };
            let values: Vec<f64> = given.per_input.iter().filter_map(of).collect();
            if values.iter().any(|value| is_set(parameter, *value)) {
                parameters.push((parameter.name, values));
            }
        }
        How { what, parameters }
    }
}

fn is_set(parameter: &Parameter, value: f64) -> bool {
    parameter.default != Default::Value(value)
}

/// A way of making tensors while its members are counted: smallest and largest values of the parameters.
struct Counted<'h> {
    how: &'h How,
    ranges: Vec<Vec<(f64, f64)>>,
    tensors: usize,
    bytes: u64,
}

/// Tensors with their bytes, by the way they are made, in order of the first of each.
pub(crate) fn groups<'h>(stage: Option<&str>, tensors: impl Iterator<Item = (&'h How, u64)>) -> Vec<Group> {
    let mut found: Vec<Counted<'h>> = Vec::new();
    for (how, bytes) in tensors {
        let alike = |other: &Counted<'_>| {
            let shapes =
                |how: &How| how.parameters.iter().map(|(name, v)| (*name, v.len())).collect::<Vec<_>>();
            other.how.what == how.what && shapes(other.how) == shapes(how)
        };
        match found.iter_mut().find(|other| alike(other)) {
            Some(group) => {
                group.tensors += 1;
                group.bytes += bytes;
                for (ranges, (_, values)) in group.ranges.iter_mut().zip(&how.parameters) {
                    for (range, value) in ranges.iter_mut().zip(values) {
                        *range = (range.0.min(*value), range.1.max(*value));
                    }
                }
            }
            None => {
                let same =
                    |(_, values): &(&str, Vec<f64>)| values.iter().map(|value| (*value, *value)).collect();
                found.push(Counted {
                    how,
                    ranges: how.parameters.iter().map(same).collect(),
                    tensors: 1,
                    bytes,
                });
            }
        }
    }
    let group = |counted: Counted<'_>| {
        let mut what = counted.how.what.clone();
        for (number, ((name, _), ranges)) in counted.how.parameters.iter().zip(&counted.ranges).enumerate() {
            let _ = write!(what, "{} {name} {}", if number == 0 { ":" } else { ";" }, told(ranges));
        }
        Group { stage: stage.map(str::to_string), what, tensors: counted.tensors, bytes: counted.bytes }
    };
    found.into_iter().map(group).collect()
}

/// Values, or their ranges, one after the other.
fn told(ranges: &[(f64, f64)]) -> String {
    let one =
        |(low, high): &(f64, f64)| if low == high { low.to_string() } else { format!("{low} to {high}") };
    ranges.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_made_alike_are_one_group_with_the_ranges_of_its_parameters() {
        let how = |what: &str, t: f64| How { what: what.into(), parameters: vec![("t", vec![t, 1.0])] };
        let all = [
            how("slerp of a, b", 0.5),
            how("linear of a", 1.0),
            how("slerp of a, b", 0.25),
            How::plain("copy"),
        ];
        let groups = groups(None, all.iter().map(|how| (how, 10)));
        let told: Vec<(&str, usize, u64)> =
            groups.iter().map(|g| (g.what.as_str(), g.tensors, g.bytes)).collect();
        let expected =
            [("slerp of a, b: t 0.25 to 0.5, 1", 2, 20), ("linear of a: t 1, 1", 1, 10), ("copy", 1, 10)];
        assert_eq!(told, expected);
    }
}
