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

/// A query, what answers it, and what does not; or two texts and how alike they should be.
#[derive(Clone, Debug, PartialEq)]
pub struct TextRow {
    /// The query.
    pub query: Text,
    /// At least one.
    pub positives: Vec<Text>,
    /// Any number.
    pub negatives: Vec<Text>,
    /// How alike the query and its one positive should be, of a pair that says so.
    pub score: Option<f64>,
}

/// Names of a query, of its answers, and of what does not answer it.
const FORMS: [[&str; 3]; 3] = [
    ["query", "positive", "negative"],
    ["anchor", "positive", "negative"],
    ["query", "pos_passage", "neg_passage"],
];

impl TextRow {
    /// Reads a JSON object: `query` (or `anchor`), `positive`, `negative` (a text or a list, or `negative_1`, `negative_2`, ...),
    /// or PaddleNLP's `query`, `pos_passage`, `neg_passage`; or a pair, `sentence1` and `sentence2` with a `score`. What is wrong
    /// with it, else.
    pub fn parse(line: &str) -> Result<TextRow, String> {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("not valid JSON: {e}"))?;
        let Value::Object(map) = value else { return Err("the line is not a JSON object".into()) };
        if map.contains_key("sentence1") {
            return pair(&map);
        }
        let has = |form: &&[&str; 3]| map.contains_key(form[0]) && map.contains_key(form[1]);
        let Some([query, positive, negative]) = FORMS.iter().find(has) else {
            let keys: Vec<String> = map.keys().map(|key| format!("`{key}`")).collect();
            return Err(format!(
                "expected `query` or `anchor` with `positive`, `query` with `pos_passage`, or `sentence1` with `sentence2` and \
                 `score`; the row has {}",
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
        Ok(TextRow { query: queries.swap_remove(0), positives, negatives, score: None })
    }
}

fn pair(map: &Map<String, Value>) -> Result<TextRow, String> {
    let (mut first, second) = (texts(map, "sentence1")?, texts(map, "sentence2")?);
    if first.len() != 1 || second.len() != 1 {
        return Err("`sentence1` and `sentence2` are one text each".into());
    }
    let score = map.get("score").and_then(Value::as_f64).filter(|score| score.is_finite());
    if score.is_none() {
        let found = map.get("score").map_or("missing".to_string(), Value::to_string);
        return Err(format!("`score` is {found}, expected a number"));
    }
    Ok(TextRow { query: first.swap_remove(0), positives: second, negatives: Vec::new(), score })
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
