//! Which model a recipe means: `PATH`, `PATH@REVISION`, `PATH+LORA`.

use super::yaml::{Node, Yaml};
use crate::error::{Error, Result};
use std::fmt;

/// A model, perhaps with an adapter. Compared by value: `models/a` and `./models/a` are two models.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reference {
    pub(crate) path: String,
    pub(crate) revision: Option<String>,
    /// Path and revision of an adapter.
    pub(crate) lora: Option<(String, Option<String>)>,
    /// Takes the place of `architectures` in the configuration.
    pub(crate) architecture: Option<String>,
}

impl Reference {
    /// A folder or file.
    pub(crate) fn path(path: &str) -> Reference {
        Reference { path: path.to_string(), revision: None, lora: None, architecture: None }
    }

    pub(crate) fn parse(node: &Node) -> Result<Reference> {
        if let Yaml::Map(_) = node.value {
            return Reference::of_map(node);
        }
        let text = node.text("a model")?;
        Reference::of_text(&text).map_err(|what| Error::recipe(node.line, what))
    }

    fn of_text(text: &str) -> Result<Reference, String> {
        let parts: Vec<&str> = text.split('+').collect();
        let (model, lora) = match parts[..] {
            [model] => (model, None),
            [model, lora] => (model, Some(at_revision(lora)?)),
            _ => return Err(format!("'{text}' has more than one '+'; a model takes one adapter")),
        };
        let (path, revision) = at_revision(model)?;
        if path.is_empty() {
            return Err(format!("'{text}' names no model"));
        }
        Ok(Reference { path, revision, lora, architecture: None })
    }

    fn of_map(node: &Node) -> Result<Reference> {
        let mut found: Option<Reference> = None;
        let (mut lora, mut architecture) = (None, None);
        for (name, line, value) in node.entries("a model")? {
            match name.as_str() {
                "model" => found = Some(located(value)?),
                "path" => found = Some(located(node)?),
                "lora" if value.value != Yaml::Null => {
                    let reference = located(value)?;
                    lora = Some((reference.path, reference.revision));
                }
                "override_architecture" if value.value != Yaml::Null => {
                    architecture = Some(value.text("an architecture")?);
                }
                "lora" | "override_architecture" | "revision" => {}
                other => return Err(Error::recipe(line, format!("a model has no '{other}'"))),
            }
        }
        let mut found = found.ok_or_else(|| node.wrong("a model with `path`"))?;
        (found.lora, found.architecture) = (lora.or(found.lora), architecture);
        Ok(found)
    }
}

/// `PATH`, `PATH@REVISION` or `{path, revision}`.
fn located(node: &Node) -> Result<Reference> {
    if !matches!(node.value, Yaml::Map(_)) {
        return Reference::parse(node);
    }
    let (mut path, mut revision) = (None, None);
    for (name, _, value) in node.entries("a model")? {
        match name.as_str() {
            "path" => path = Some(value.text("a path")?),
            "revision" if value.value != Yaml::Null => revision = Some(value.text("a revision")?),
            _ => {}
        }
    }
    let path = path.ok_or_else(|| node.wrong("a model with `path`"))?;
    Ok(Reference { revision, ..Reference::path(&path) })
}

fn at_revision(text: &str) -> Result<(String, Option<String>), String> {
    // `s3://...@...` has a revision like any other; the scheme has no '@'.
    let parts: Vec<&str> = text.split('@').collect();
    match parts[..] {
        [path] => Ok((path.to_string(), None)),
        [path, revision] => Ok((path.to_string(), Some(revision.to_string()))),
        _ => Err(format!("'{text}' has more than one '@'; a path has one revision")),
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revision = |revision: &Option<String>| {
            revision.as_ref().map_or_else(String::new, |revision| format!("@{revision}"))
        };
        write!(f, "{}{}", self.path, revision(&self.revision))?;
        match &self.lora {
            Some((path, rev)) => write!(f, "+{path}{}", revision(rev)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_prints_as_it_is_written() {
        for text in ["models/a", "models/a@main", "a+b", "a@1+b@2"] {
            assert_eq!(Reference::of_text(text).unwrap().to_string(), text);
        }
        for text in ["a+b+c", "a@1@2", "", "+b"] {
            assert!(Reference::of_text(text).is_err(), "{text}");
        }
    }
}
