//! The rows of one source as samples: the texts of a row stand one after the other and do not see each other.

use super::{Config, Encoded, Text, TextRow, encode};
use crate::dataset::Sample;
use crate::documents;
use crate::error::{Error, Result};
use crate::glob;
use crate::listed::ListedSamples;
use crate::pack::IGNORED;
use crate::source::Source;
use crate::tokenizer::Tokenizer;
use planaria_array::random::{Key, Window, randint};
use std::path::PathBuf;

/// Keeps these draws apart from others of the same seed.
const DRAW: u64 = 0x7465_7874;

const WITH_SCORE: &str = "a pair with a score; `embedding.loss` is for queries and what answers them, and \"cosent\", \"angle\" or \"cosine_mse\" learn scores";
const WITHOUT_SCORE: &str =
    "`embedding.loss` learns from pairs with a score: `sentence1`, `sentence2` and `score` are expected";

/// A row and where it stands.
struct Read {
    path: PathBuf,
    line: u64,
    row: TextRow,
}

/// Reads a source. The texts of a row stand one after the other. A label is the number of the text that its token counts in: 0
/// for the query, 1 for what answers it, then those that do not; of pairs with a score, the bits of that ([`score_of`]).
pub(crate) fn open(
    source: &Source,
    tokenizer: &Tokenizer,
    config: &Config,
    sequence: usize,
    scored: bool,
) -> Result<ListedSamples> {
    let mut read = Vec::new();
    for path in glob::list(&source.path)? {
        documents::each_row(&path, &mut |line, text| {
            let bad = |problem| Error::Line { path: path.clone(), line, problem };
            let row = TextRow::parse(text).map_err(bad)?;
            match (row.score.is_some(), scored) {
                (true, false) => return Err(bad(WITH_SCORE.into())),
                (false, true) => return Err(bad(WITHOUT_SCORE.into())),
                _ => read.push(Read { path: path.clone(), line, row }),
            }
            Ok(())
        })?;
    }
    let fewest = read.iter().map(|read| read.row.negatives.len()).min().unwrap_or(0);
    let negatives = config.negatives.unwrap_or(fewest);
    let most = room(config, sequence, 2 + negatives)?;
    let encoder = Encoder { tokenizer, config, most, negatives };
    let rows = read
        .iter()
        .enumerate()
        .map(|(number, read)| Ok(sample(&encoder.row(number as u64, read)?, read.row.score, config)));
    ListedSamples::new(&source.path, rows.collect::<Result<_>>()?, sequence, tokenizer)
}

/// The score that the labels of a row stand for. No finite number has the bits of a label that counts nothing.
pub fn score_of(labels: &[i64]) -> Option<f64> {
    labels.iter().find(|&&label| label != IGNORED).map(|&label| f64::from_bits(label as u64))
}

fn sample(texts: &[Encoded], score: Option<f64>, config: &Config) -> Sample {
    let mut out = Sample::default();
    for (number, text) in texts.iter().enumerate() {
        if number > 0 {
            out.starts.push(out.tokens.len());
        }
        out.tokens.extend_from_slice(&text.tokens);
        let skipped = if config.include_prompt { 0 } else { text.prompt };
        let counted = score.map_or(number as i64, |score| score.to_bits() as i64);
        let label = |place: usize| if place < skipped { IGNORED } else { counted };
        out.labels.extend((0..text.tokens.len()).map(label));
    }
    out
}

/// Most tokens of a text.
fn room(config: &Config, sequence: usize, texts: usize) -> Result<usize> {
    let even = sequence / texts;
    let most = config.max_length.unwrap_or(even);
    if most == 0 || most > even {
        let problem = format!(
            "{texts} texts of a row have room for {even} tokens each in samples of {sequence}; set `data.sequence` to {}",
            texts * most.max(1)
        );
        return Err(Error::Setting { key: "texts.max_length", value: most.to_string(), problem });
    }
    Ok(most)
}

/// Turns rows into tokens.
struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    config: &'a Config,
    most: usize,
    negatives: usize,
}

impl Encoder<'_> {
    fn row(&self, number: u64, read: &Read) -> Result<Vec<Encoded>> {
        let bad = |problem: String| Error::Line { path: read.path.clone(), line: read.line, problem };
        let TextRow { query, positives, negatives, .. } = &read.row;
        let key = Key::new(self.config.seed, DRAW).fold(number);
        let positive = &positives[draw(key.fold(0), positives.len(), 1)?[0]];
        if negatives.is_empty() && self.negatives > 0 {
            return Err(bad(format!(
                "there is no negative, and `data.texts.negatives` is {}",
                self.negatives
            )));
        }
        let chosen = draw(key.fold(1), negatives.len(), self.negatives)?;
        let documents = std::iter::once(positive).chain(chosen.iter().map(|&at| &negatives[at]));
        let documents = documents.map(|text| (text, &self.config.document_prompt));
        let all = std::iter::once((query, &self.config.query_prompt)).chain(documents);
        all.map(|(text, prompt)| self.text(text, prompt, &bad)).collect()
    }

    fn text(&self, text: &Text, prompt: &str, bad: &dyn Fn(String) -> Error) -> Result<Encoded> {
        let encoded = match text {
            Text::Plain(text) => encode(self.tokenizer, prompt, text, self.most)?,
            Text::Ids(ids) if ids.len() > self.most => {
                return Err(bad(format!("a text has {} token ids, and {} fit", ids.len(), self.most)));
            }
            Text::Ids(ids) => Encoded { tokens: ids.clone(), prompt: 0 },
        };
        let (vocab, own) =
            (self.tokenizer.vocab_size() as u32, if self.config.include_prompt { 0 } else { encoded.prompt });
        if let Some(id) = encoded.tokens.iter().find(|id| **id >= vocab) {
            return Err(bad(format!("token {id} is outside the vocabulary of {vocab}")));
        }
        if encoded.tokens.len() <= own {
            return Err(bad(
                "a text has no token of its own; `data.texts.append_eos` gives every text one".into()
            ));
        }
        Ok(encoded)
    }
}

/// `wanted` of `count` numbers: in order where they are as many, others drawn without repeating one before all were there.
fn draw(key: Key, count: usize, wanted: usize) -> Result<Vec<usize>> {
    if count == wanted {
        return Ok((0..count).collect());
    }
    let mut words = vec![0i64; wanted];
    randint(&mut words, key, &Window::flat(0, wanted), 0, i64::MAX)?;
    let (mut left, mut out): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::with_capacity(wanted));
    for word in words {
        if left.is_empty() {
            left = (0..count).collect();
        }
        out.push(left.swap_remove(word as usize % left.len()));
    }
    Ok(out)
}
