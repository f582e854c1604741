//! Parameters: scalars, gradients over the layers, and choices by the name of a tensor.

use super::yaml::{Node, Yaml};
use crate::error::{Error, Result};
use crate::method::SettingKind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What a parameter is set to.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) line: usize,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Scalar(Scalar),
    Gradient(Vec<Scalar>),
    Choices(Vec<Choice>),
}

/// A value for the tensors whose names hold a text.
#[derive(Debug)]
struct Choice {
    line: usize,
    filter: Option<String>,
    value: Setting,
    /// The first name that it decided about.
    used: OnceLock<String>,
    /// Whether it stood at the end of a part of a name, as in `input_layernorm` for `norm`.
    at_edge: AtomicBool,
}

/// A filter that does less than it seems to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weak {
    pub(crate) line: usize,
    pub(crate) filter: String,
    /// A name that it was found in the middle of a part of; none where it decided nothing.
    pub(crate) inside: Option<String>,
}

/// A single value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Scalar {
    Bool(bool),
    Number(f64),
    Text(String),
}

/// The settings of one scope, in the order of the text.
#[derive(Debug, Default)]
pub(crate) struct Settings(pub(crate) Vec<(String, usize, Setting)>);

/// What a parameter is asked for: a tensor by its name and its place among the layers from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot<'a> {
    pub(crate) name: &'a str,
    pub(crate) t: f64,
    /// What the parameter is.
    pub(crate) kind: SettingKind,
}

impl Settings {
    pub(crate) fn parse(node: &Node) -> Result<Settings> {
        if node.value == Yaml::Null {
            return Ok(Settings::default());
        }
        let entries = node.entries("a map of parameters")?;
        let entries: Result<Vec<_>> =
            entries.into_iter().map(|(name, line, value)| Ok((name, line, Setting::parse(value)?))).collect();
        Ok(Settings(entries?))
    }

    /// The value of a parameter here, if this scope says one.
    pub(crate) fn get(&self, name: &str, spot: Spot<'_>) -> Option<(Scalar, usize)> {
        let (_, _, setting) = self.0.iter().find(|(other, ..)| other == name)?;
        setting.evaluate(spot)
    }

    /// Filters that have decided nothing, or only about names that hold them by chance.
    pub(crate) fn weak_filters(&self) -> Vec<Weak> {
        let mut weak = Vec::new();
        self.0.iter().for_each(|(_, _, setting)| setting.collect_weak(&mut weak));
        weak
    }
}

impl Setting {
    fn parse(node: &Node) -> Result<Setting> {
        let line = node.line;
        let form = match &node.value {
            Yaml::Map(_) => Form::Choices(vec![Choice::parse(node)?]),
            Yaml::List(items) if items.iter().any(|item| matches!(item.value, Yaml::Map(_))) => {
                Form::Choices(items.iter().map(Choice::parse).collect::<Result<_>>()?)
            }
            Yaml::List(items) => Form::Gradient(items.iter().map(Scalar::parse).collect::<Result<_>>()?),
            // Nothing: this scope does not say.
            Yaml::Null => Form::Gradient(Vec::new()),
            _ => Form::Scalar(Scalar::parse(node)?),
        };
        Ok(Setting { line, form })
    }

    fn evaluate(&self, spot: Spot<'_>) -> Option<(Scalar, usize)> {
        match &self.form {
            Form::Scalar(value) => Some((value.clone(), self.line)),
            Form::Gradient(values) => Some((gradient(values, spot)?, self.line)),
            Form::Choices(choices) => {
                let fits = |choice: &&Choice| {
                    choice.filter.as_ref().is_none_or(|text| text == "*" || spot.name.contains(text.as_str()))
                };
                let choice = choices.iter().find(fits)?;
                choice.decide(spot.name);
                choice.value.evaluate(spot)
            }
        }
    }

    fn collect_weak(&self, weak: &mut Vec<Weak>) {
        let Form::Choices(choices) = &self.form else { return };
        for choice in choices {
            let named = choice.filter.as_ref().filter(|filter| *filter != "*");
            if let Some(filter) = named.filter(|_| !choice.at_edge.load(Relaxed)) {
                let inside = choice.used.get().cloned();
                weak.push(Weak { line: choice.line, filter: filter.clone(), inside });
            }
            choice.value.collect_weak(weak);
        }
    }
}

impl Choice {
    fn parse(node: &Node) -> Result<Choice> {
        let (mut filter, mut value) = (None, None);
        for (name, line, node) in node.entries("a map with `value` and `filter`")? {
            match name.as_str() {
                "filter" if node.value == Yaml::Null => {}
                "filter" => filter = Some(node.text("a part of a tensor's name")?),
                "value" => value = Some(Setting::parse(node)?),
                other => {
                    let what = format!("'{other}' stands where `value` and `filter` belong");
                    return Err(Error::recipe(line, what));
                }
            }
        }
        let value = value.ok_or_else(|| Error::recipe(node.line, "a choice needs a `value`"))?;
        Ok(Choice { line: node.line, filter, value, used: OnceLock::new(), at_edge: AtomicBool::new(false) })
    }

    /// Remembers that it was asked about a name and fits.
    fn decide(&self, name: &str) {
        let Some(filter) = &self.filter else { return };
        self.used.get_or_init(|| name.to_string());
        let ends = |byte: Option<&u8>| byte.is_none_or(|byte| *byte == b'.');
        let at_edge = name.match_indices(filter.as_str()).any(|(at, _)| {
            let bytes = name.as_bytes();
            at == 0 || bytes[at - 1] == b'.' || ends(bytes.get(at + filter.len()))
        });
        if at_edge {
            self.at_edge.store(true, Relaxed);
        }
    }
}

impl Scalar {
    fn parse(node: &Node) -> Result<Scalar> {
        match &node.value {
            Yaml::Bool(value) => Ok(Scalar::Bool(*value)),
            Yaml::Int(value) => Ok(Scalar::Number(*value as f64)),
            Yaml::Float(value) => Ok(Scalar::Number(*value)),
            Yaml::Text(value) => Ok(Scalar::Text(value.clone())),
            _ => Err(node.wrong("a number, true, false or a text")),
        }
    }

    /// As a number: texts such as `1e-3` are converted.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Scalar::Number(value) => Some(*value),
            Scalar::Text(text) => text.trim().parse().ok().filter(|value: &f64| value.is_finite()),
            Scalar::Bool(value) => Some(f64::from(u8::from(*value))),
        }
    }

    /// As what a parameter may be; truth values are 0 and 1.
    pub(crate) fn of_kind(&self, kind: SettingKind) -> Option<f64> {
        match kind {
            SettingKind::Number(range) => self.number().filter(|value| range.has(*value)),
            SettingKind::Truth => self.truth().map(|truth| f64::from(u8::from(truth))),
        }
    }

    /// As a truth value.
    pub(crate) fn truth(&self) -> Option<bool> {
        match self {
            Scalar::Bool(value) => Some(*value),
            Scalar::Number(value) if *value == 0.0 || *value == 1.0 => Some(*value == 1.0),
            Scalar::Text(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Some(true),
                "false" | "no" | "off" | "0" => Some(false),
                _ => None,
            },
            Scalar::Number(_) => None,
        }
    }
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scalar::Bool(value) => write!(f, "{value}"),
            Scalar::Number(value) => write!(f, "{value}"),
            Scalar::Text(value) => f.write_str(value),
        }
    }
}

/// Every element is first what the parameter is: numbers are interpolated, truth values are chosen. An element that cannot be
/// is the answer, so that it is refused by name.
fn gradient(values: &[Scalar], spot: Spot<'_>) -> Option<Scalar> {
    let last = values.len().checked_sub(1)?;
    let at = spot.t * last as f64;
    let below = (at.floor() as usize).min(last);
    if let Some(wrong) = values.iter().find(|value| value.of_kind(spot.kind).is_none()) {
        return Some(wrong.clone());
    }
    if spot.kind == SettingKind::Truth {
        return values[below].truth().map(Scalar::Bool);
    }
    let (above, part) = ((below + 1).min(last), at - below as f64);
    let (below, above) = (values[below].number()?, values[above].number()?);
    Some(Scalar::Number((1.0 - part) * below + part * above))
}

#[cfg(test)]
mod tests {
    use super::super::yaml::documents;
    use super::*;
    use crate::method::Range;

    fn of_kind(text: &str, name: &str, t: f64, kind: SettingKind) -> Option<Scalar> {
        let node = documents(text).unwrap().remove(0);
        Settings::parse(&node).unwrap().get("w", Spot { name, t, kind }).map(|(value, _)| value)
    }

    fn value(text: &str, name: &str, t: f64) -> Option<Scalar> {
        of_kind(text, name, t, SettingKind::Number(Range::Finite))
    }

    #[test]
    fn gradients_run_over_the_layers_and_the_first_choice_that_fits_decides() {
        let number = |text: &str, t: f64| value(text, "x", t).and_then(|value| value.number());
        assert_eq!(number("w: [0, 1, 0]", 0.25), Some(0.5));
        assert_eq!(number("w: [0, 1, 4]", 1.0), Some(4.0));
        assert_eq!(number("w: ['1e-3', 1]", 0.0), Some(0.001));
        assert_eq!(number("w: []", 0.5), None);
        let choices = "w: [{filter: mlp, value: [1, 3]}, {filter: '*', value: 5}, {value: 7}]";
        assert_eq!(value(choices, "layers.0.mlp.up", 0.5).unwrap().number(), Some(2.0));
        assert_eq!(value(choices, "norm", 0.5).unwrap().number(), Some(5.0));
        assert_eq!(value("w: {filter: mlp, value: 2}", "norm", 0.0), None);
    }

    #[test]
    fn elements_of_a_gradient_are_what_the_parameter_is_before_one_is_chosen() {
        let truth = |text: &str, t: f64| of_kind(text, "x", t, SettingKind::Truth);
        assert_eq!(truth("w: [true, false, true]", 0.6), Some(Scalar::Bool(false)));
        // Numbers stand for truth values where the parameter is one, and are not interpolated.
        assert_eq!(truth("w: [1, 0]", 0.5), Some(Scalar::Bool(true)));
        assert_eq!(truth("w: ['yes', 0]", 1.0), Some(Scalar::Bool(false)));
        assert_eq!(truth("w: [1, 0.5]", 0.0), Some(Scalar::Number(0.5)));
        // And truth values for numbers.
        assert_eq!(value("w: [true, 3]", "x", 0.5), Some(Scalar::Number(2.0)));
        assert_eq!(value("w: [1, half]", "x", 0.0), Some(Scalar::Text("half".into())));
    }

    #[test]
    fn a_half_is_neither_true_nor_false() {
        assert_eq!(Scalar::Number(0.5).truth(), None);
        assert_eq!(Scalar::Text("Yes".into()).truth(), Some(true));
    }
}
