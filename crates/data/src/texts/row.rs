//! One row of texts that belong together, in the forms that people write them in.

use serde_json::{Map, Value};

/// A text, or the ids of its tokens, which are taken as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Text {
    /// As it is written.
    Plain(String),
    /// As ids.
    Ids(Vec<u32>),
}

/// A query, what answers it, and what does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRow {
    /// The query.
    pub query: Text,
    /// At least one.
    pub positives: Vec<Text>,
    /// Any number.
    pub negatives: Vec<Text>,
}

/// Names of a query, of its answers, and of what does not answer it.
const FORMS: [[&str; 3]; 3] = [
    ["query", "positive", "negative"],
    ["anchor", "positive", "negative"],
    ["query", "pos_passage", "neg_passage"],
];

impl TextRow {
    /// Reads a JSON object: `query` (or `anchor`), `positive`, `negative` (a text or a list, or `negative_1`, `negative_2`, ...),
    /// or PaddleNLP's `query`, `pos_passage`, `neg_passage`. What is wrong with it, else.
    pub fn parse(line: &str) -> Result<TextRow, String> {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("not valid JSON: {e}"))?;
        let Value::Object(map) = value else { return Err("the line is not a JSON object".into()) };
        let has = |form: &&[&str; 3]| map.contains_key(form[0]) && map.contains_key(form[1]);
        let Some([query, positive, negative]) = FORMS.iter().find(has) else {
            let keys: Vec<String> = map.keys().map(|key| format!("`{key}`")).collect();
            return Err(format!(
                "expected `query` or `anchor` with `positive`, or `query` with `pos_passage`; the row has {}",
                keys.join(", ")
            ));
        };
        let mut negatives = texts(&map, negative)?;
        for number in 1.. {
            let more = texts(&map, &format!("{negative}_{number}"))?;
            if more.is_empty() {
                break;
            }
            negatives.extend(more);
        }
        let (mut queries, positives) = (texts(&map, query)?, texts(&map, positive)?);
        if queries.len() != 1 || positives.is_empty() {
            return Err(format!("`{query}` is one text and `{positive}` at least one"));
        }
        Ok(TextRow { query: queries.swap_remove(0), positives, negatives })
    }
}

/// The texts under a key; none where it is missing or null.
fn texts(map: &Map<String, Value>, key: &str) -> Result<Vec<Text>, String> {
    let wrong = || format!("`{key}` is neither a text, nor token ids, nor a list of these");
    match map.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        // A list of numbers is one text, a list of anything else several.
        Some(Value::Array(list)) if !list.first().is_some_and(Value::is_number) => {
            list.iter().map(|value| text(value).ok_or_else(wrong)).collect()
        }
        Some(value) => Ok(vec![text(value).ok_or_else(wrong)?]),
    }
}

fn text(value: &Value) -> Option<Text> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::String(text) => Some(Text::Plain(text.clone())),
        Value::Array(list) => Some(Text::Ids(list.iter().map(id).collect::<Option<_>>()?)),
        _ => None,
    }
}
