//! Texts that belong together, as sentence embeddings are trained on: a query, a text that answers it, and texts that do not.

mod row;
mod samples;
#[cfg(test)]
mod tests;

pub use row::{Text, TextRow};
pub use samples::score_of;
pub(crate) use samples::{Samples, alike};

use crate::error::{Error, Result};
use crate::sampler::BatchesFrom;
use crate::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[data.texts]` of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Config {
    /// Most tokens of a text, with what the tokenizer adds; longer ones lose their end. The texts of a row must fit
    /// `data.sequence` together: without it each has its even part of that.
    pub max_length: Option<usize>,
    /// Texts of a row that do not answer it, drawn where a row has more and repeated where it has fewer. Without it as many as
    /// every row has.
    pub negatives: Option<usize>,
    /// Every text ends with the tokenizer's `eos`, which the saved tokenizer then adds too.
    pub append_eos: bool,
    /// Put before every query: `"Instruct: find the answer\nQuery: "`.
    pub query_prompt: String,
    /// Put before every other text.
    pub document_prompt: String,
    /// Whether what stands before a text counts in its embedding; it is always seen by the tokens after it.
    pub include_prompt: bool,
    /// Seed of what is drawn of a row, another in every epoch.
    pub seed: u64,
    /// Which sources the rows of a step come from: `mixed` for any, `proportional` for one in each step, chosen by its weight or its
    /// number of rows, `round_robin` for one after the other.
    pub batches: BatchesFrom,
    /// No text stands twice in a step: a row that would bring one again waits for the next. What no whole step of an epoch takes is
    /// left out of that epoch.
    pub no_duplicates: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_length: None,
            negatives: None,
            append_eos: false,
            query_prompt: String::new(),
            document_prompt: String::new(),
            include_prompt: true,
            seed: 0,
            batches: BatchesFrom::Mixed,
            no_duplicates: false,
        }
    }
}

/// The tokens of a text, and how many of the first are not its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// At least one.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt, and of what the tokenizer puts before it.
    pub prompt: usize,
}

/// The tokens of `prompt` and `text` as one string. Where they are more than `most`, the text loses its end and what the
/// tokenizer adds stays.
pub fn encode(tokenizer: &Tokenizer, prompt: &str, text: &str, most: usize) -> Result<Encoded> {
    let whole = format!("{prompt}{text}");
    let (mut tokens, plain) = (tokenizer.encode_prompt(&whole)?, tokenizer.encode(&whole)?);
    let added = tokens.len().saturating_sub(plain.len());
    // What the tokenizer's template puts before and after the text itself.
    let before = (0..=added).find(|&at| tokens[at..].starts_with(&plain)).unwrap_or(0);
    let after = added - before;
    if tokens.len() > most {
        if most <= added {
            let problem = format!("the tokenizer adds {added} tokens to every text");
            return Err(Error::Setting { key: "texts.max_length", value: most.to_string(), problem });
        }
        let kept = most - after;
        tokens.drain(kept..before + plain.len());
    }
    let prompt = if prompt.is_empty() { 0 } else { before + tokenizer.encode(prompt)?.len() };
    Ok(Encoded { prompt: prompt.min(tokens.len()), tokens })
}
