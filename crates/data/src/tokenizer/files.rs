//! The files of a tokenizer: which there are, what `tokenizer_config.json` says, and a `tokenizer.json` where only others are.

use super::TokenKind;
use super::{pairs, sentencepiece};
use crate::chat;
use crate::error::{Error, Result};
use planaria_store::open_file;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const CONFIG: &str = "tokenizer_config.json";
/// The class of `transformers` that a `tokenizer.json` is enough for.
const FAST: &str = "PreTrainedTokenizerFast";
const SPECIAL_MAP: &str = "special_tokens_map.json";

/// The files that are kept with a model.
pub(super) const NAMES: [&str; 6] = [TOKENIZER, CONFIG, SPECIAL_MAP, ADDED, chat::FILES[0], chat::FILES[1]];

/// A SentencePiece model.
const MODEL: &str = "tokenizer.model";
const ADDED: &str = "added_tokens.json";
/// What a `tokenizer.json` can be made from where there is none; the last one tells the model's kind.
const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const MODEL_CONFIG: &str = "config.json";

/// All files that are read.
pub(super) const READ: [&str; 10] = [
    TOKENIZER,
    CONFIG,
    SPECIAL_MAP,
    ADDED,
    chat::FILES[0],
    chat::FILES[1],
    MODEL,
    VOCAB,
    MERGES,
    MODEL_CONFIG,
];

/// Largest file that is read: vocabularies have some ten megabytes.
const LIMIT: u64 = 512 << 20;

/// The files of a folder, or of the folder of a `tokenizer.json` or `tokenizer.model`.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let is_model = path.extension().is_some_and(|ending| ending == "model");
    let main = (!path.is_dir()).then_some(if is_model { MODEL } else { TOKENIZER });
    let mut out = BTreeMap::new();
    for name in READ {
        let is_main = Some(name) == main;
        let other = main.is_some() && [TOKENIZER, MODEL, VOCAB, MERGES].contains(&name);
        let file = if is_main { path.to_path_buf() } else { folder.join(name) };
        if !is_main && (other || !file.is_file()) {
            continue;
        }
        let mut opened = open_file(&file).map_err(Error::io("read", &file))?;
        let size = opened.metadata().map_err(Error::io("read", &file))?.len();
        if size > LIMIT {
            return Err(Error::tokenizer(file.display().to_string(), format!("{size} bytes are too many")));
        }
        let mut bytes = Vec::new();
        opened.read_to_end(&mut bytes).map_err(Error::io("read", &file))?;
        out.insert(name.to_string(), bytes);
    }
    Ok(out)
}

/// Whether some of these files make a tokenizer.
pub(super) fn are_enough(files: &BTreeMap<String, Vec<u8>>) -> bool {
    let has = |name: &str| files.contains_key(name);
    has(TOKENIZER) || has(MODEL) || (has(VOCAB) && has(MERGES))
}

/// The files that are kept with a model: where there is no `tokenizer.json` it is made from the others, and what those said
/// besides is written into `tokenizer_config.json`.
pub(super) fn complete(
    name: &str,
    mut files: BTreeMap<String, Vec<u8>>,
) -> Result<BTreeMap<String, Vec<u8>>> {
    if !files.contains_key(TOKENIZER) {
        let mut config = config(name, &files)?;
        let made = match (files.get(MODEL), files.get(VOCAB), files.get(MERGES)) {
            (Some(model), _, _) => sentencepiece::convert(model, &config),
            (None, Some(vocab), Some(merges)) => {
                let model = parse(name, &files, MODEL_CONFIG)?;
                let model_type = model.get("model_type").and_then(Value::as_str);
                pairs::convert(vocab, merges, &config, model_type)
            }
            _ => Err(format!("there is no {TOKENIZER}, no {MODEL}, and no {VOCAB} with {MERGES}")),
        };
        let made = made.map_err(|problem| Error::tokenizer(name, problem))?;
        for (role, token) in ["bos_token", "eos_token", "pad_token"].into_iter().zip(made.roles) {
            if let (None, Some(token)) = (config.get(role), token) {
                config.insert(role.into(), token.into());
            }
        }
        add_listed(&mut config, &parse(name, &files, ADDED)?);
        config.entry("tokenizer_class").or_insert(FAST.into());
        files.insert(TOKENIZER.into(), format!("{:#}\n", made.tokenizer).into_bytes());
        files.insert(CONFIG.into(), format!("{:#}\n", Value::Object(config)).into_bytes());
    }
    files.retain(|name, _| NAMES.contains(&name.as_str()));
    Ok(files)
}

/// The tokens of `added_tokens.json`, which has only their ids.
fn add_listed(config: &mut Map<String, Value>, listed: &Map<String, Value>) {
    let special: Vec<String> = match config.get("additional_special_tokens") {
        Some(Value::Array(tokens)) => tokens.iter().filter_map(content).collect(),
        _ => Vec::new(),
    };
    let Some(decoder) = config.entry("added_tokens_decoder").or_insert_with(|| json!({})).as_object_mut()
    else {
        return;
    };
    for (token, id) in listed {
        let entry = json!({ "content": token, "special": special.contains(token) });
        decoder.entry(id.to_string()).or_insert(entry);
    }
}

fn parse(name: &str, files: &BTreeMap<String, Vec<u8>>, file: &str) -> Result<Map<String, Value>> {
    let Some(text) = files.get(file) else { return Ok(Map::new()) };
    serde_json::from_slice(text).map_err(|e| Error::tokenizer(name, format!("{file}: {e}")))
}

/// `tokenizer_config.json` with the tokens of `special_tokens_map.json` where it names none.
pub(super) fn config(name: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<Map<String, Value>> {
    let mut out = parse(name, files, SPECIAL_MAP)?;
    for (key, value) in parse(name, files, CONFIG)? {
        if !value.is_null() || !out.contains_key(&key) {
            out.insert(key, value);
        }
    }
    Ok(out)
}

/// A token is written as text or as an object with its content.
pub(super) fn content(value: &Value) -> Option<String> {
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
        "tokenizer_class": FAST,
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "clean_up_tokenization_spaces": false,
    });
    format!("{config:#}\n").into_bytes()
}

/// A `tokenizer.json` whose template ends every text with a token.
pub(super) fn with_ending(json: &[u8], token: &str, id: u32) -> Result<Vec<u8>, serde_json::Error> {
    let mut json: Value = serde_json::from_slice(json)?;
    let part = |name: &str, id: &str, kind: u64| json!({ name: { "id": id, "type_id": kind } });
    let end = |kind: u64| part("SpecialToken", token, kind);
    let template = json!({
        "type": "TemplateProcessing",
        "single": [part("Sequence", "A", 0), end(0)],
        "pair": [part("Sequence", "A", 0), end(0), part("Sequence", "B", 1), end(1)],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    });
    let before = json["post_processor"].take();
    json["post_processor"] = match before.is_null() {
        true => template,
        false => json!({ "type": "Sequence", "processors": [before, template] }),
    };
    serde_json::to_vec_pretty(&json)
}
