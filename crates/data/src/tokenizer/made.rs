//! A `tokenizer.json` made from other files: what the ways to make one share.

use serde_json::{Map, Value, json};

/// A tokenizer as a `tokenizer.json`, and the tokens that begin, end and fill a document.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) tokenizer: Value,
    pub(super) roles: [Option<String>; 3],
}

/// A token that is looked for in the text before anything else.
#[derive(Debug)]
pub(super) struct Added<'a> {
    pub(super) id: usize,
    pub(super) text: &'a str,
    pub(super) special: bool,
    /// Looked for in the normalised text.
    pub(super) normalized: bool,
}

impl Added<'_> {
    pub(super) fn json(&self) -> Value {
        json!({
            "id": self.id, "content": self.text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": self.normalized, "special": self.special,
        })
    }
}

/// What is put around a prompt.
#[derive(Debug)]
pub(super) struct Template {
    before: Option<String>,
    after: Option<String>,
}

impl Template {
    /// As `tokenizer_config.json` says; a prompt begins with a token where nothing is said and `begins` holds.
    pub(super) fn of(config: &Map<String, Value>, roles: &[Option<String>; 3], begins: bool) -> Template {
        let said = |key: &str| config.get(key).and_then(Value::as_bool);
        let named = |role: &str| config.get(role).and_then(super::files::content);
        let bos = named("bos_token").or_else(|| roles[0].clone());
        let eos = named("eos_token").or_else(|| roles[1].clone());
        Template {
            before: bos.filter(|_| said("add_bos_token").unwrap_or(begins)),
            after: eos.filter(|_| said("add_eos_token").unwrap_or(false)),
        }
    }

    /// As a post-processor; a token without an id is left out.
    pub(super) fn json(&self, id: impl Fn(&str) -> Option<usize>) -> Value {
        let found =
            |token: &Option<String>| token.as_ref().and_then(|token| Some((token.clone(), id(token)?)));
        let (before, after) = (found(&self.before), found(&self.after));
        if before.is_none() && after.is_none() {
            return Value::Null;
        }
        let part = |token: &Option<(String, usize)>, kind: u32| {
            token.as_ref().map(|(token, _)| json!({ "SpecialToken": { "id": token, "type_id": kind } }))
        };
        let around = |name: &str, kind: u32| {
            let text = json!({ "Sequence": { "id": name, "type_id": kind } });
            let all = [part(&before, kind), Some(text), part(&after, kind)];
            all.into_iter().flatten().collect::<Vec<Value>>()
        };
        let tokens = [&before, &after].into_iter().flatten();
        let tokens =
            tokens.map(|(token, id)| (token.clone(), json!({ "id": token, "ids": [id], "tokens": [token] })));
        let pair = [around("A", 0), around("B", 1)].concat();
        json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": tokens.collect::<Map<String, Value>>(),
        })
    }
}
