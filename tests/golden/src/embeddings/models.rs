//! Folders of sentence-transformers and the embeddings that they must give, however texts are batched.

use crate::values::{Numbers, Tolerance, elements, field, list, number, numbers, text};
use anyhow::{Context, Result, ensure};
use planaria_train::embedding::{EncodeOptions, Encoder, TextPrompt, similarities};
use serde_json::Value;
use std::path::Path;

pub(super) fn check(folder: &Path) -> Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let content = std::fs::read_to_string(folder.with_file_name(format!("{name}.expected.json")))?;
    let expected: Value = serde_json::from_str(&content)?;
    let tolerance = Tolerance::of(&expected, "tol")?;
    let encoder = Encoder::open(folder)?;
    let longest = number(field(&expected, "max_seq_length")?)? as usize;
    ensure!(
        encoder.longest() == longest,
        "texts have at most {} tokens, expected {longest}",
        encoder.longest()
    );
    let sentences = list(&expected, "sentences")?;
    let sentences: Vec<&str> =
        sentences.iter().map(Value::as_str).collect::<Option<_>>().context("a sentence is a text")?;
    for run in list(&expected, "runs")? {
        let prompt = match field(run, "prompt_name")? {
            Value::String(name) => TextPrompt::Named(name.clone()),
            _ => TextPrompt::Default,
        };
        let before = encoder.prompt(&prompt)?;
        ensure!(before == text(run, "prompt")?, "the prompt is '{before}'");
        for (sentence, want) in sentences.iter().zip(list(run, "input_ids")?) {
            let found: Vec<i64> =
                encoder.tokens(&before, sentence)?.tokens.iter().map(|&id| i64::from(id)).collect();
            ensure!(found == numbers(want)?.integers(), "'{sentence}' is {found:?}, expected {want}");
        }
        for batch in [1, 3, 32] {
            let options = EncodeOptions { batch, prompt: prompt.clone(), dims: None };
            let found = encoder.encode(&sentences, &options, &|_, _| {})?;
            same(&tolerance, "embeddings", &found, run)?;
            let options = EncodeOptions { dims: Some(8), ..options };
            same(
                &tolerance,
                "truncated_8_normalized",
                &encoder.encode(&sentences, &options, &|_, _| {})?,
                run,
            )?;
            let data: Vec<f64> = found.iter().flatten().map(|&value| f64::from(value)).collect();
            let all = Numbers { shape: vec![found.len(), found[0].len()], data }.plain()?;
            let alike = elements(similarities(&all, &all, encoder.similarity())?.local())?;
            tolerance.same_all("similarity", &alike, &numbers(field(run, "similarity")?)?.data)?;
        }
    }
    Ok(())
}

fn same(tolerance: &Tolerance, name: &str, found: &[Vec<f32>], run: &Value) -> Result<()> {
    let found: Vec<f64> = found.iter().flatten().map(|&value| f64::from(value)).collect();
    tolerance.same_all(name, &found, &numbers(field(run, name)?)?.data)
}
