//! The rows of one source as samples: the texts of a row stand one after the other and do not see each other. Which of several an
//! epoch has is drawn by the seed, the row and the epoch.

use super::{Config, Encoded, Text, TextRow, encode};
use crate::dataset::Sample;
use crate::documents;
use crate::error::{Error, Result};
use crate::listed::fill;
use crate::pack::IGNORED;
use crate::source::Source;
use crate::tokenizer::Tokenizer;
use planaria_array::random::{Key, Window, randint};
use planaria_store::checksum;
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

/// A text as tokens, and a number that equal texts have alike.
#[derive(Clone, Debug)]
struct Piece {
    encoded: Encoded,
    mark: u64,
}

/// All texts of a row, of which an epoch draws some.
#[derive(Debug)]
struct Pieces {
    query: Piece,
    positives: Vec<Piece>,
    negatives: Vec<Piece>,
    score: Option<f64>,
}

/// The rows of one source. The texts of a row stand one after the other. A label is the number of the text that its token counts in: 0
/// for the query, 1 for what answers it, then those that do not; of pairs with a score, the bits of that ([`score_of`]).
#[derive(Debug)]
pub(crate) struct Samples {
    origin: String,
    rows: Vec<Pieces>,
    /// Texts of a row that do not answer it.
    negatives: usize,
    seed: u64,
    include_prompt: bool,
    sequence: usize,
    pad: u32,
    sum: (u32, u64),
}

impl Samples {
    pub(crate) fn open(
        source: &Source,
        tokenizer: &Tokenizer,
        config: &Config,
        sequence: usize,
        scored: bool,
    ) -> Result<Samples> {
        let mut read = Vec::new();
        for path in source.files()? {
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
        if read.is_empty() {
            return Err(Error::NoRows { origin: source.path.clone(), told: "there is no row".into() });
        }
        let fewest = read.iter().map(|read| read.row.negatives.len()).min().unwrap_or(0);
        let negatives = config.negatives.unwrap_or(fewest);
        let most = room(config, sequence, 2 + negatives)?;
        let prompts = [&source.query_prompt, &source.document_prompt];
        let [own_query, own_document] = prompts.map(|prompt| prompt.as_deref());
        let prompts =
            [own_query.unwrap_or(&config.query_prompt), own_document.unwrap_or(&config.document_prompt)];
        let encoder = Encoder { tokenizer, config, prompts, most, negatives };
        let rows = read.iter().map(|read| encoder.row(read)).collect::<Result<Vec<_>>>()?;
        let frame = tokenizer.frame();
        Ok(Samples {
            origin: source.path.clone(),
            sum: summed(&rows),
            rows,
            negatives,
            seed: config.seed,
            include_prompt: config.include_prompt,
            sequence,
            pad: frame.pad.or(frame.eos).unwrap_or(0),
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// A number that changes with the content, and the tokens of all rows.
    pub(crate) fn sum(&self) -> (u32, u64) {
        self.sum
    }

    /// What an epoch has of a row: the query, what answers it, what does not.
    fn drawn(&self, index: u64, epoch: u64) -> Result<(Vec<&Piece>, Option<f64>)> {
        let row = usize::try_from(index).ok().and_then(|index| self.rows.get(index));
        let row = row.ok_or(Error::OutOfRange { what: "sample", index, len: self.len() })?;
        let key = Key::new(self.seed, DRAW).fold(index).fold(epoch);
        let positive = &row.positives[draw(key.fold(0), row.positives.len(), 1)?[0]];
        let chosen = draw(key.fold(1), row.negatives.len(), self.negatives)?;
        let negatives = chosen.iter().map(|&at| &row.negatives[at]);
        Ok(([&row.query, positive].into_iter().chain(negatives).collect(), row.score))
    }

    pub(crate) fn read(&self, index: u64, epoch: u64, out: &mut Sample) -> Result<()> {
        let (texts, score) = self.drawn(index, epoch)?;
        *out = Sample::default();
        for (number, Piece { encoded: text, .. }) in texts.into_iter().enumerate() {
            if number > 0 {
                out.starts.push(out.tokens.len());
            }
            out.tokens.extend_from_slice(&text.tokens);
            let skipped = if self.include_prompt { 0 } else { text.prompt };
            let counted = score.map_or(number as i64, |score| score.to_bits() as i64);
            let label = |place: usize| if place < skipped { IGNORED } else { counted };
            out.labels.extend((0..text.tokens.len()).map(label));
        }
        fill(out, self.sequence, self.pad);
        Ok(())
    }

    /// A number for each text of a row, equal for equal texts.
    pub(crate) fn marks(&self, index: u64, epoch: u64) -> Result<Vec<u64>> {
        Ok(self.drawn(index, epoch)?.0.into_iter().map(|piece| piece.mark).collect())
    }
}

/// Refuses sources whose rows cannot stand in one batch.
pub(crate) fn alike(all: &[Samples]) -> Result<()> {
    let Some(first) = all.first() else { return Ok(()) };
    let Some(other) = all.iter().find(|other| other.negatives != first.negatives) else { return Ok(()) };
    let problem = format!(
        "rows of '{}' have {} negatives and rows of '{}' {}; say how many with `data.texts.negatives`, or keep sources apart with `data.texts.batches = \"proportional\"`, without an evaluation of all of them",
        first.origin, first.negatives, other.origin, other.negatives
    );
    Err(Error::Setting { key: "texts.batches", value: "\"mixed\"".into(), problem })
}

/// A checksum of all texts of rows, and their tokens.
fn summed(rows: &[Pieces]) -> (u32, u64) {
    let (mut sum, mut tokens) = (0, 0);
    for row in rows {
        let texts = std::iter::once(&row.query).chain(&row.positives).chain(&row.negatives);
        for Piece { encoded, .. } in texts {
            let ids = encoded.tokens.iter().map(|&id| i64::from(id));
            let words = ids.chain([-1 - encoded.prompt as i64]);
            sum = checksum::append(sum, &words.flat_map(i64::to_le_bytes).collect::<Vec<u8>>());
            tokens += encoded.tokens.len() as u64;
        }
        let counts = [row.positives.len() as u64, row.score.map_or(u64::MAX, f64::to_bits)];
        sum = checksum::append(sum, &counts.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
    }
    (sum, tokens)
}

/// FNV-1a of a text; of token ids, which are no text, begun elsewhere.
fn mark(text: &Text) -> u64 {
    let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    match text {
        Text::Plain(text) => text.bytes().fold(0xcbf2_9ce4_8422_2325, mix),
        Text::Ids(ids) => ids.iter().flat_map(|id| id.to_le_bytes()).fold(0x9ae1_6a3b_2f90_404f, mix),
    }
}

/// The score that the labels of a row stand for. No finite number has the bits of a label that counts nothing.
pub fn score_of(labels: &[i64]) -> Option<f64> {
    labels.iter().find(|&&label| label != IGNORED).map(|&label| f64::from_bits(label as u64))
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
    /// Of queries, and of other texts.
    prompts: [&'a str; 2],
    most: usize,
    negatives: usize,
}

impl Encoder<'_> {
    fn row(&self, read: &Read) -> Result<Pieces> {
        let bad = |problem: String| Error::Line { path: read.path.clone(), line: read.line, problem };
        let TextRow { query, positives, negatives, score } = &read.row;
        if negatives.is_empty() && self.negatives > 0 {
            return Err(bad(format!(
                "there is no negative, and `data.texts.negatives` is {}",
                self.negatives
            )));
        }
        let [asking, answering] = self.prompts;
        let piece = |text: &Text, prompt: &str| -> Result<Piece> {
            Ok(Piece { encoded: self.text(text, prompt, &bad)?, mark: mark(text) })
        };
        let all =
            |texts: &[Text]| texts.iter().map(|text| piece(text, answering)).collect::<Result<Vec<_>>>();
        // What is never drawn need not be there.
        let negatives = if self.negatives == 0 { &[][..] } else { &negatives[..] };
        Ok(Pieces {
            query: piece(query, asking)?,
            positives: all(positives)?,
            negatives: all(negatives)?,
            score: *score,
        })
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
