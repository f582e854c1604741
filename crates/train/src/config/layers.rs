//! Where values come from, and which of them wins.

use super::{Config, paths, schema};
use crate::error::{Error, Result};
use planaria_nn::models::Models;
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Spanned, Table, Value};

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// In a file.
    File {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
    },
    /// In an environment variable.
    Variable(String),
    /// By `--set`.
    Set,
    /// In the `config.json` of the model that is named.
    Model(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Variable(name) => write!(f, "variable {name}"),
            Origin::Set => f.write_str("--set"),
            Origin::Model(path) => write!(f, "config.json of {path}"),
        }
    }
}

/// A checked configuration and where its values come from.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// Origins of the values that are not defaults, by key.
    pub origins: BTreeMap<String, Origin>,
}

impl Resolved {
    /// Where the value of a key was set.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Every key with its value and origin, in order.
    pub fn list(&self) -> Vec<(String, Json, Origin)> {
        let mut found = Vec::new();
        if let Ok(json) = serde_json::to_value(&self.config) {
            leaves(&json, String::new(), &mut |key, value| {
                found.push((key.clone(), value.clone(), self.origin(&key)));
            });
        }
        if let Some((kind, origin)) = self.kind() {
            let at = found.iter().position(|(key, ..)| key.starts_with("model.")).unwrap_or(found.len());
            found.insert(at, ("model.kind".into(), kind, origin));
        }
        found
    }

    /// The kind of the model where the configuration does not say it: that of the file it names, if that can be read.
    fn kind(&self) -> Option<(Json, Origin)> {
        let model = &self.config.model;
        if model.kind.is_some() {
            return None;
        }
        let Some(path) = model.config.as_ref().or(model.init.as_ref()) else {
            return Some((Json::String(super::ModelKind::default().0), Origin::Default));
        };
        let base = crate::pretrained::base_config(&self.config).ok()??;
        Some((base.get("model_type")?.clone(), Origin::Model(path.display().to_string())))
    }
}

fn leaves(json: &Json, key: String, each: &mut dyn FnMut(String, &Json)) {
    match json {
        Json::Object(map) => {
            for (name, value) in map {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                leaves(value, key, each);
            }
        }
        other => each(key, other),
    }
}

/// What a configuration is made from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    file: Option<PathBuf>,
    text: Option<(String, String)>,
    variables: Vec<(String, String)>,
    set: Vec<String>,
    models: Models,
    own_data: bool,
}

/// The prefix of our variables.
const PREFIX: &str = "PLANARIA_";

/// One value on its way into the configuration.
struct Entry {
    path: Vec<String>,
    /// Absent for a key inside a list of tables, which is only checked: the list goes in as a whole.
    value: Option<Value>,
    origin: Origin,
}

impl Sources {
    /// A file.
    pub fn file(path: impl Into<PathBuf>) -> Sources {
        Sources { file: Some(path.into()), ..Sources::default() }
    }

    /// A text; `name` stands in messages.
    pub fn text(name: &str, text: &str) -> Sources {
        Sources { text: Some((name.into(), text.into())), ..Sources::default() }
    }

    /// With environment variables: `PLANARIA_OPTIM__LR` sets `optim.lr`. Those without our prefix, and those that
    /// name neither a section nor a key, like `PLANARIA_LOG`, mean something else and are left alone.
    pub fn variables(self, all: impl IntoIterator<Item = (String, String)>) -> Sources {
        let ours = |(name, _): &(String, String)| {
            name.strip_prefix(PREFIX).is_some_and(|key| {
                let key = key.to_lowercase();
                key.contains("__") || schema::find(&[&key]).is_ok_and(|s| s.get("properties").is_none())
            })
        };
        let mut variables: Vec<_> = all.into_iter().filter(ours).collect();
        variables.sort();
        Sources { variables, ..self }
    }

    /// With overrides of the form `key=value`.
    pub fn set(self, set: impl IntoIterator<Item = String>) -> Sources {
        Sources { set: set.into_iter().collect(), ..self }
    }

    /// With models of one's own, which `model.kind` may name.
    pub fn models(self, models: Models) -> Sources {
        Sources { models, ..self }
    }

    /// For a run on samples that the program makes itself: there are no sources.
    pub fn with_own_data(self) -> Sources {
        Sources { own_data: true, ..self }
    }

    /// The configuration.
    pub fn resolve(&self) -> Result<Resolved> {
        let mut entries = Vec::new();
        if let Some(file) = &self.file {
            read_file(file, &mut Vec::new(), &mut entries)?;
        }
        if let Some((name, text)) = &self.text {
            read_text(name, text, &mut entries)?;
        }
        for (name, value) in &self.variables {
            let path = name[PREFIX.len()..].to_lowercase().replace("__", ".");
            given(&path, value, &Origin::Variable(name.clone()), &mut entries);
        }
        for text in &self.set {
            let (key, value) = text.split_once('=').ok_or_else(|| Error::Syntax {
                origin: "--set".into(),
                what: format!("`{text}` has no `=`; write `--set optim.lr=3e-4`"),
            })?;
            given(key.trim(), value.trim(), &Origin::Set, &mut entries);
        }
        let mut resolved = merge(entries)?;
        if resolved.config.name.is_empty() {
            resolved.config.name = self.default_name();
        }
        resolved.config.extends = None;
        match self.own_data {
            true => resolved.config.check_with_own_data(&self.models)?,
            false => resolved.config.check(&self.models)?,
        }
        Ok(resolved)
    }

    fn default_name(&self) -> String {
        let stem = self.file.as_ref().and_then(|f| f.file_stem()).map(|s| s.to_string_lossy().into_owned());
        // Nobody chose this name, so it is made to fit.
        let fits = |c: char| if super::fits_name(c) { c } else { '-' };
        let name: String = stem.unwrap_or_default().trim_start_matches('.').chars().map(fits).collect();
        if name.is_empty() { "run".into() } else { name }
    }
}

/// A value given as text: TOML where it is one and the key is not a text, else the text itself. Tables are taken apart
/// as those of a file are, so that their keys are checked too.
fn given(key: &str, text: &str, origin: &Origin, entries: &mut Vec<Entry>) {
    let mut path: Vec<String> = key.split('.').map(String::from).collect();
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let line = format!("value = {text}");
    let parsed = DeTable::parse(&line).ok().filter(|_| !text.contains('\n'));
    let parsed = parsed.as_ref().and_then(|table| table.get_ref().get("value"));
    let meant = |value: &&Spanned<DeValue<'_>>| {
        let value = value.get_ref();
        let listed = value.is_array() && schema::takes(&names, "array");
        value.is_str() || value.is_table() || listed || !schema::takes(&names, "string")
    };
    let parsed = parsed.filter(meant).filter(|value| value_of(value).is_ok());
    let mut add = |path: &[String], value: Option<Value>, _: usize| {
        entries.push(Entry { path: path.to_vec(), value, origin: origin.clone() });
    };
    // What can be read as a whole can be read in parts.
    if parsed.is_none_or(|value| walk_value(value, 0, &mut path, &mut add).is_err()) {
        add(&path, Some(Value::String(text.into())), 0);
    }
}

fn read_file(file: &Path, open: &mut Vec<PathBuf>, entries: &mut Vec<Entry>) -> Result<()> {
    let name = file.display().to_string();
    let io = |source| Error::Io { path: name.clone(), source };
    let real = file.canonicalize().map_err(io)?;
    if open.contains(&real) {
        let through: Vec<String> = open.iter().map(|f| f.display().to_string()).collect();
        return Err(Error::Circle { file: name, through: through.join(", ") });
    }
    let text = std::fs::read_to_string(file).map_err(io)?;
    let mut own = Vec::new();
    read_text(&name, &text, &mut own)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    for entry in &mut own {
        entry.value.iter_mut().for_each(|value| paths::written_in(folder, &entry.path.join("."), value));
    }
    let base = own
        .iter()
        .find(|e| e.path == ["extends"])
        .and_then(|e| e.value.as_ref()?.as_str())
        .map(PathBuf::from);
    if let Some(base) = base {
        open.push(real);
        read_file(&folder.join(base), open, entries)?;
        open.pop();
    }
    entries.extend(own);
    Ok(())
}

fn read_text(name: &str, text: &str, entries: &mut Vec<Entry>) -> Result<()> {
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let syntax = |e: toml::de::Error| Error::Syntax {
        origin: format!("{name}:{}", line(e.span().map_or(0, |s| s.start))),
        what: e.message().to_string(),
    };
    let table = DeTable::parse(text).map_err(syntax)?;
    let mut add = |path: &[String], value: Option<Value>, at: usize| {
        let origin = Origin::File { path: name.into(), line: line(at) };
        entries.push(Entry { path: path.to_vec(), value, origin });
    };
    walk(table.get_ref(), &mut Vec::new(), &mut add).map_err(syntax)
}

/// Takes a path, its value unless that is inside a list, and its position in the text.
type Add<'a> = dyn FnMut(&[String], Option<Value>, usize) + 'a;

/// A number too large for TOML is found here.
type Walked = std::result::Result<(), toml::de::Error>;

/// Every value that is not a table, with its path and position.
fn walk(table: &DeTable<'_>, path: &mut Vec<String>, add: &mut Add<'_>) -> Walked {
    for (key, value) in table.iter() {
        path.push(key.get_ref().to_string());
        walk_value(value, Spanned::span(key).start, path, add)?;
        path.pop();
    }
    Ok(())
}

/// The value of a path, or those inside it; `at` is where its key stands.
fn walk_value(value: &Spanned<DeValue<'_>>, at: usize, path: &mut Vec<String>, add: &mut Add<'_>) -> Walked {
    match value.get_ref() {
        DeValue::Table(table) => return walk(table, path, add),
        DeValue::Array(items) => {
            add(path, Some(value_of(value)?), at);
            path.push(schema::ITEM.into());
            for item in items.iter().filter_map(|item| item.get_ref().as_table()) {
                keys(item, path, add);
            }
            path.pop();
        }
        _ => add(path, Some(value_of(value)?), at),
    }
    Ok(())
}

fn value_of(value: &Spanned<DeValue<'_>>) -> std::result::Result<Value, toml::de::Error> {
    Value::deserialize(ValueDeserializer::from(value.clone()))
}

/// The keys of a table in a list.
fn keys(table: &DeTable<'_>, path: &mut Vec<String>, add: &mut Add<'_>) {
    for (key, value) in table.iter() {
        path.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) => keys(inner, path, add),
            _ => add(path, None, Spanned::span(key).start),
        }
        path.pop();
    }
}

fn merge(entries: Vec<Entry>) -> Result<Resolved> {
    let (mut table, mut origins) = (Table::new(), BTreeMap::new());
    for Entry { path, value, origin } in entries {
        let key = path.join(".").replace(&format!(".{}", schema::ITEM), "");
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        if let Err((depth, known)) = schema::find(&names) {
            return Err(Error::unknown_key(key, names[depth], &known, origin.to_string()));
        }
        let Some(value) = value else { continue };
        insert(&mut table, &path, value)
            .map_err(|what| Error::Syntax { origin: origin.to_string(), what: format!("`{key}`: {what}") })?;
        let below = format!("{key}.");
        origins.retain(|k: &String, _| !k.starts_with(&below));
        origins.insert(key, origin);
    }
    let config: Config = serde_path_to_error::deserialize(Value::Table(table)).map_err(|e| {
        let key = e.path().to_string();
        // Of a list the whole has an origin.
        let stem = key.split('[').next().unwrap_or_default();
        let near = origins.iter().find(|(k, _)| **k == stem || k.starts_with(&format!("{stem}.")));
        let origin = near.map_or_else(|| "config".into(), |(_, o)| o.to_string());
        Error::Syntax { origin, what: plain(&key, &e.inner().to_string()) }
    })?;
    Ok(Resolved { config, origins })
}

/// What is wrong with the value of a key, in the words of a user instead of those of the code.
fn plain(key: &str, message: &str) -> String {
    const WORDS: [(&str, &str); 14] = [
        ("expected usize", "expected a whole number of at least 0"),
        ("expected u64", "expected a whole number of at least 0"),
        ("expected u32", "expected a whole number of at least 0"),
        ("expected u8", "expected a whole number from 0 to 255"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
        ("expected a borrowed string", "expected a text"),
        ("expected a string", "expected a text"),
        ("expected path string", "expected a path"),
        (": sequence,", ": a list,"),
        (": map,", ": a table,"),
        (
            "data did not match any variant of untagged enum MeshText",
            "expected axes like \"dp=2 tp=2\", or a table of them",
        ),
    ];
    // The key stands in front already.
    let mut out = message.split("\nin `").next().unwrap_or_default().trim_end().to_string();
    for (code, words) in WORDS {
        out = out.replace(code, words);
    }
    // `struct Source` and `enum Kind` say nothing to who wrote a table.
    if let Some((before, _)) = out.split_once("expected struct ").or_else(|| out.split_once("expected enum "))
    {
        out = format!("{before}expected a table with its keys");
    }
    let named = ["invalid type: ", "invalid value: ", "unknown variant "];
    let found = named.iter().find_map(|head| out.strip_prefix(head)?.split_once(", expected "));
    match found {
        Some((found, expected)) => {
            let kinds = ["string ", "integer ", "floating point ", "boolean "];
            let found = kinds.iter().find_map(|kind| found.strip_prefix(kind)).unwrap_or(found);
            format!("`{key}` is {found}; expected {expected}")
        }
        None if out.starts_with(&format!("`{key}` ")) => out,
        None => format!("`{key}`: {out}"),
    }
}

/// Puts a value at its path; tables on the way are made. Behind a list stands the number of an item, unless it has but one.
fn insert(table: &mut Table, path: &[String], value: Value) -> std::result::Result<(), String> {
    let [first, rest @ ..] = path else { return Ok(()) };
    if rest.is_empty() {
        table.insert(first.clone(), value);
        return Ok(());
    }
    let slot = table.entry(first.clone()).or_insert_with(|| Value::Table(Table::new()));
    if let Value::String(text) = slot {
        *slot = Value::Table(axes(text));
    }
    match slot {
        Value::Table(inner) => insert(inner, rest, value),
        Value::Array(items) => {
            let (number, rest) = match rest[0].parse::<usize>() {
                Ok(number) => (number, &rest[1..]),
                Err(_) if items.len() > 1 => {
                    return Err(format!(
                        "there are {}; write `{first}.0.{}` for the first",
                        items.len(),
                        rest[0]
                    ));
                }
                Err(_) => (0, rest),
            };
            match items.get_mut(number) {
                Some(Value::Table(item)) => insert(item, rest, value),
                _ => Err(format!("there are {}, none of the number {number}", items.len())),
            }
        }
        other => {
            *other = value;
            Ok(())
        }
    }
}

/// The table form of a mesh text, so that one axis can be set in it.
fn axes(text: &str) -> Table {
    let mesh: super::MeshSection = text.parse().unwrap_or_default();
    let all = [("pp", Some(mesh.pp)), ("dp", mesh.dp), ("ep", Some(mesh.ep)), ("tp", Some(mesh.tp))];
    all.into_iter().filter_map(|(k, v)| Some((k.to_string(), Value::Integer(v? as i64)))).collect()
}
