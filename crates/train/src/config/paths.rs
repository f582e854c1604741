//! Relative paths by one rule: a path is relative to where it is written. In a file that is the file's folder; on the command line, in
//! a variable and in a program, the current folder.

use super::Config;
use crate::error::{Error, Result};
use planaria_ckpt::step_of;
use planaria_data::Tokenizer;
use std::path::{Component, Path, PathBuf};
use toml::Value;

/// Every key whose value is a path. `extends` is not among them: it is followed while the file is read.
const KEYS: [&str; 15] = [
    "model.config",
    "model.init",
    "lora.adapter",
    "dpo.reference",
    "rl.reference",
    "rl.reward",
    "ppo.critic",
    "data.tokenizer",
    "data.cache",
    "data.chat.template",
    "data.source",
    "data.eval",
    "checkpoint.from",
    "checkpoint.tiers",
    "log.dir",
];

/// The value of `key` as it stands in a file of this folder.
pub(super) fn written_in(folder: &Path, key: &str, value: &mut Value) {
    change(key, value, &|path| joined(folder, path).to_str().map(String::from));
}

/// A path seen from a folder, without the steps that lead back: `stages/../text` is `text`.
fn joined(folder: &Path, path: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for part in folder.join(path).components() {
        match (part, out.components().next_back()) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => {
                out.pop();
            }
            (Component::ParentDir, Some(Component::RootDir)) => {}
            (part, _) => out.push(part),
        }
    }
    if out.as_os_str().is_empty() { PathBuf::from(".") } else { out }
}

/// A configuration whose paths mean the same in whatever folder its text is kept.
pub(super) fn absolute(config: &Config) -> Result<Config> {
    let lost = |what: String| Error::Bug { what: format!("the configuration has no text: {what}") };
    let mut value = Value::try_from(config).map_err(|e| lost(e.to_string()))?;
    make_absolute(&mut value);
    value.try_into().map_err(|e: toml::de::Error| lost(e.to_string()))
}

fn make_absolute(config: &mut Value) {
    // Where there is no current folder, paths stay as they are.
    let Ok(here) = std::env::current_dir() else { return };
    for key in KEYS {
        let found = key.split('.').try_fold(&mut *config, |at, name| at.get_mut(name));
        if let Some(value) = found {
            written_in(&here, key, value);
        }
    }
}

/// Changes the paths of a key, where it has any: sources have one each.
fn change(key: &str, value: &mut Value, to: &dyn Fn(&str) -> Option<String>) {
    if !KEYS.contains(&key) {
        return;
    }
    match value {
        Value::Array(items) => {
            items.iter_mut().filter_map(|item| item.get_mut("path")).for_each(|path| change(key, path, to));
        }
        Value::String(path) if is_relative(key, path) => *path = to(path).unwrap_or(std::mem::take(path)),
        _ => {}
    }
}

/// True for a path that does not say by itself where it begins; `bytes`, `step-00000004` and `s3://bucket` are no such paths.
fn is_relative(key: &str, text: &str) -> bool {
    let known = match key {
        "data.tokenizer" => Tokenizer::is_bytes(text),
        "checkpoint.from" => step_of(text).is_some(),
        _ => false,
    };
    let local = planaria_store::local_path(text).is_some_and(|path| path == Path::new(text));
    !known && local && !text.is_empty() && Path::new(text).is_relative()
}
