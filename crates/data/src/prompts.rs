//! Prompts with responses of which one is better, and prompts alone: rows of JSON lines whose texts may be ids.

use crate::dataset::Sample;
use crate::documents;
use crate::error::{Error, Result};
use crate::listed::ListedSamples;
use crate::pack::IGNORED;
use crate::source::Source;
use crate::tokenizer::Tokenizer;
use serde_json::Value;

/// The tokens of a text; ids are taken as they are.
fn tokens(tokenizer: &Tokenizer, value: &Value, begins: bool) -> Result<Vec<u32>, String> {
    let vocab = tokenizer.vocab_size() as u64;
    match value {
        Value::String(text) if begins => tokenizer.encode_prompt(text).map_err(|e| e.to_string()),
        Value::String(text) => {
            let mut out = tokenizer.encode(text).map_err(|e| e.to_string())?;
            out.extend(tokenizer.frame().eos);
            Ok(out)
        }
        Value::Array(list) => {
            let id = |value: &Value| value.as_u64().filter(|&id| id < vocab).map(|id| id as u32);
            let found: Option<Vec<u32>> = list.iter().map(id).collect();
            found.ok_or_else(|| format!("token ids are numbers below {vocab}"))
        }
        other => Err(format!("{other} is neither a text nor token ids")),
    }
}

/// The tokens of a field, at least one.
fn field(tokenizer: &Tokenizer, row: &Value, name: &str, begins: bool) -> Result<Vec<u32>, String> {
    let value = row.get(name).ok_or_else(|| format!("there is no `{name}`"))?;
    let found = tokens(tokenizer, value, begins).map_err(|problem| format!("`{name}`: {problem}"))?;
    if found.is_empty() { Err(format!("`{name}` has no token")) } else { Ok(found) }
}

/// The rows of a source, each made into a sample.
fn rows(source: &Source, mut make: impl FnMut(Value) -> Result<Sample, String>) -> Result<Vec<Sample>> {
    let mut out = Vec::new();
    for path in source.files()? {
        documents::each_row(&path, &mut |line, text| {
            let bad = |problem: String| Error::Line { path: path.clone(), line, problem };
            let row: Value = serde_json::from_str(text).map_err(|e| bad(format!("not valid JSON: {e}")))?;
            out.push(make(row).map_err(bad)?);
            Ok(())
        })?;
    }
    Ok(out)
}

/// Rows of `prompt`, `chosen` and `rejected`: both responses behind the prompt, each a document of its own. A label is the next
/// token of a response.
pub(crate) fn preferences(source: &Source, tokenizer: &Tokenizer, sequence: usize) -> Result<ListedSamples> {
    let made = rows(source, |row| {
        let prompt = field(tokenizer, &row, "prompt", true)?;
        let mut sample = Sample::default();
        for name in ["chosen", "rejected"] {
            let response = field(tokenizer, &row, name, false)?;
            if !sample.tokens.is_empty() {
                sample.starts.push(sample.tokens.len());
            }
            sample.tokens.extend(prompt.iter().chain(&response));
            sample.labels.extend(std::iter::repeat_n(IGNORED, prompt.len() - 1));
            sample.labels.extend(response.iter().map(|&id| i64::from(id)));
            sample.labels.push(IGNORED);
        }
        match sample.tokens.len() {
            long if long > sequence => Err(format!(
                "both responses have {long} tokens with their prompts; `data.sequence` is {sequence}"
            )),
            _ => Ok(sample),
        }
    })?;
    ListedSamples::new(&source.path, made, sequence, tokenizer)
}

/// Rows of `prompt` and anything else. The first label of a sample is the number of its row in `kept`, which is what else the
/// rows have.
pub(crate) fn prompts(
    source: &Source,
    tokenizer: &Tokenizer,
    sequence: usize,
    kept: &mut Vec<Value>,
) -> Result<ListedSamples> {
    let made = rows(source, |row| {
        let tokens = field(tokenizer, &row, "prompt", true)?;
        if tokens.len() >= sequence {
            return Err(format!(
                "the prompt has {} tokens and leaves no room for a response; `data.sequence` is {sequence}",
                tokens.len()
            ));
        }
        let mut labels = vec![IGNORED; tokens.len()];
        labels[0] = kept.len() as i64;
        kept.push(row);
        Ok(Sample { tokens, labels, ..Sample::default() })
    })?;
    ListedSamples::new(&source.path, made, sequence, tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_no_tokens_and_rows_without_a_token_are_refused_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.jsonl");
        let fine = r#"{"prompt": [1, 2], "chosen": [3], "rejected": "b"}"#;
        for (row, told) in [
            (
                r#"{"prompt": [1, -100], "chosen": [3], "rejected": [4]}"#,
                "`prompt`: token ids are numbers below",
            ),
            (r#"{"prompt": [1], "chosen": [-5], "rejected": [4]}"#, "`chosen`: token ids are numbers below"),
            (r#"{"prompt": [1], "chosen": [3], "rejected": [99999]}"#, "`rejected`: token ids"),
            (r#"{"prompt": "", "chosen": [3], "rejected": [4]}"#, "`prompt` has no token"),
            (r#"{"prompt": [1], "chosen": [], "rejected": [4]}"#, "`chosen` has no token"),
            (r#"{"prompt": [1], "chosen": true, "rejected": [4]}"#, "neither a text nor token ids"),
        ] {
            std::fs::write(&path, format!("{fine}\n{row}\n")).unwrap();
            let source = Source::new(path.display().to_string());
            let error = preferences(&source, &Tokenizer::bytes(), 16).unwrap_err().to_string();
            assert!(error.contains("rows.jsonl:2") && error.contains(told), "{error}");
        }
    }
}
