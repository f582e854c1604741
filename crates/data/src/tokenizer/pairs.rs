//! `vocab.json` and `merges.txt`: pairs of bytes that were joined, as GPT-2 and Qwen2 keep them.

use super::made::{Added, Made, Template};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// What ends a document in both families.
const END: &str = "<|endoftext|>";
/// Where Qwen2 cuts a text.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The families differ in where a text is cut before its bytes are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Gpt2,
    Qwen2,
}

/// The one that the class, or else the kind of the model, belongs to: the files alone do not tell.
fn family(config: &Map<String, Value>, model_type: Option<&str>) -> Result<Family, String> {
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    let class_stem = class.map(|class| class.trim_end_matches("Fast"));
    match (class_stem, model_type) {
        (Some("GPT2Tokenizer"), _) | (None, Some("gpt2")) => Ok(Family::Gpt2),
        (Some("Qwen2Tokenizer"), _) | (None, Some("qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe")) => Ok(Family::Qwen2),
        (Some(_), _) => Err(format!("vocab.json and merges.txt of a {} are not supported", class.unwrap_or_default())),
        (None, _) => Err("vocab.json and merges.txt do not tell where a text is cut, and no tokenizer_config.json names a `tokenizer_class`".into()),
    }
}

/// The `tokenizer.json` of both files; `config` is the `tokenizer_config.json` beside them.
pub(super) fn convert(
    vocab: &[u8],
    merges: &[u8],
    config: &Map<String, Value>,
    model_type: Option<&str>,
) -> Result<Made, String> {
    let family = family(config, model_type)?;
    let vocab: HashMap<String, usize> =
        serde_json::from_slice(vocab).map_err(|e| format!("vocab.json: {e}"))?;
    let merges = std::str::from_utf8(merges).map_err(|_| "merges.txt: not UTF-8 text")?;
    let lines = merges.lines().enumerate();
    let lines =
        lines.filter(|(number, line)| !(line.is_empty() || *number == 0 && line.starts_with("#version")));
    let mut pairs: Vec<[&str; 2]> = Vec::new();
    for (number, line) in lines {
        let wrong = || format!("merges.txt:{}: '{line}' is not a pair of known tokens", number + 1);
        let (left, right) = line.split_once(' ').ok_or_else(wrong)?;
        if ![left, right, &format!("{left}{right}")].iter().all(|token| vocab.contains_key(*token)) {
            return Err(wrong());
        }
        pairs.push([left, right]);
    }
    let end = vocab.get(END).map(|_| END.to_string());
    let roles = match family {
        Family::Gpt2 => [end.clone(), end, None],
        Family::Qwen2 => [None, end.clone(), end],
    };
    let prefix = config.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(false);
    let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": use_regex });
    let (normalizer, pre_tokenizer) = match family {
        Family::Gpt2 => (Value::Null, bytes(true)),
        Family::Qwen2 => {
            let cut = json!({ "type": "Split", "pattern": { "Regex": QWEN2 }, "behavior": "Isolated", "invert": false });
            (json!({ "type": "NFC" }), json!({ "type": "Sequence", "pretokenizers": [cut, bytes(false)] }))
        }
    };
    let template = Template::of(config, &roles, false).json(|token| vocab.get(token).copied());
    let added = vocab.get(END).map(|&id| Added { id, text: END, special: true, normalized: false }.json());
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.into_iter().collect::<Vec<Value>>(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": template,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": pairs,
        },
    });
    Ok(Made { tokenizer, roles })
}
