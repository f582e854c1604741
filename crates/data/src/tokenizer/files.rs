//! The files of a Hugging Face tokenizer: which there are, and what `tokenizer_config.json` says.

use super::TokenKind;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_MAP: &str = "special_tokens_map.json";

/// The files that are kept with a model.
pub(super) const NAMES: [&str; 5] =
    [TOKENIZER, CONFIG, SPECIAL_MAP, "added_tokens.json", "chat_template.jinja"];

/// Largest file that is read: vocabularies have some ten megabytes.
const LIMIT: u64 = 512 << 20;

/// The files of a folder, or of the folder of a `tokenizer.json`.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let mut out = BTreeMap::new();
    for name in NAMES {
        let is_main = name == TOKENIZER;
        let file = if is_main && !path.is_dir() { path.to_path_buf() } else { folder.join(name) };
        if !is_main && !file.is_file() {
            continue;
        }
        let size = fs::metadata(&file).map_err(Error::io("read", &file))?.len();
        if size > LIMIT {
            return Err(Error::tokenizer(file.display().to_string(), format!("{size} bytes are too many")));
        }
        out.insert(name.to_string(), fs::read(&file).map_err(Error::io("read", &file))?);
    }
    Ok(out)
}

/// `tokenizer_config.json` with the tokens of `special_tokens_map.json` where it names none.
pub(super) fn config(name: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<Map<String, Value>> {
    let parse = |file: &str| -> Result<Map<String, Value>> {
        let Some(text) = files.get(file) else { return Ok(Map::new()) };
        serde_json::from_slice(text).map_err(|e| Error::tokenizer(name, format!("{file}: {e}")))
    };
    let mut out = parse(SPECIAL_MAP)?;
    for (key, value) in parse(CONFIG)? {
        if !value.is_null() || !out.contains_key(&key) {
            out.insert(key, value);
        }
    }
    Ok(out)
}

/// A token is written as text or as an object with its content.
fn content(value: &Value) -> Option<String> {
    let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
    (!text.is_empty()).then(|| text.to_string())
}

/// The tokens with a role, by the name of the role.
pub(super) fn roles(config: &Map<String, Value>) -> Vec<(&'static str, String)> {
    let named = |role: &'static str| Some((role, content(config.get(role)?)?));
    ["bos_token", "eos_token", "pad_token"].into_iter().filter_map(named).collect()
}

/// Tokens added to the vocabulary, by id.
pub(super) fn added_tokens(config: &Map<String, Value>) -> Vec<(u32, String, TokenKind)> {
    let Some(Value::Object(list)) = config.get("added_tokens_decoder") else { return Vec::new() };
    let read = |(id, token): (&String, &Value)| {
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        let kind = if special { TokenKind::Special } else { TokenKind::Text };
        Some((id.parse().ok()?, content(token)?, kind))
    };
    let mut out: Vec<_> = list.iter().filter_map(read).collect();
    out.sort_by_key(|entry| entry.0);
    out
}

/// A `tokenizer_config.json` for a tokenizer that came without one.
pub(super) fn new_config(roles: [Option<String>; 3]) -> Vec<u8> {
    let [bos, eos, pad] = roles;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "clean_up_tokenization_spaces": false,
    });
    format!("{config:#}\n").into_bytes()
}
