//! The tokens of one source: in memory or in a token file, with the places where documents start.

use super::error::{Error, Result};
use super::file::{self, TokenFile};
use super::tokenizer::Tokenizer;
use std::path::Path;

/// A long row of tokens, cut into documents.
#[derive(Debug)]
pub struct Tokens {
    origin: String,
    vocab: u64,
    held: Held,
}

#[derive(Debug)]
enum Held {
    Memory { tokens: Vec<u32>, starts: Vec<u64>, sum: u32 },
    File(TokenFile),
}

impl Tokens {
    /// Documents held in memory. `starts` are the positions of their first tokens, in order, from 0.
    pub(super) fn in_memory(
        origin: String,
        vocab: u64,
        tokens: Vec<u32>,
        starts: Vec<u64>,
    ) -> Result<Tokens> {
        check_vocabulary(&origin, vocab, 0, &tokens)?;
        let sum = file::content_sum(vocab, &tokens, &starts);
        Ok(Tokens { origin, vocab, held: Held::Memory { tokens, starts, sum } })
    }

    /// A token file, whose vocabulary must fit into that of the run.
    pub fn open(path: &Path, vocab: u64) -> Result<Tokens> {
        let file = TokenFile::open(path)?;
        if file.header().vocab > vocab {
            return Err(Error::Vocabulary { path: path.to_path_buf(), file: file.header().vocab, vocab });
        }
        let vocab = file.header().vocab;
        Ok(Tokens { origin: path.display().to_string(), vocab, held: Held::File(file) })
    }

    /// Refuses a file whose header names a tokenizer that is none of the `known`.
    pub(super) fn check_tokenizer(&self, known: &[u32], tokenizer: &Tokenizer) -> Result<()> {
        let Held::File(file) = &self.held else { return Ok(()) };
        let found = file.header().tokenizer;
        if found == 0 || known.contains(&found) {
            return Ok(());
        }
        Err(Error::OtherTokenizer {
            path: file.path().to_path_buf(),
            file: found,
            run: tokenizer.fingerprint()?,
        })
    }

    /// Where the tokens come from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Number of tokens.
    pub fn len(&self) -> u64 {
        match &self.held {
            Held::Memory { tokens, .. } => tokens.len() as u64,
            Held::File(file) => file.header().tokens,
        }
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of documents.
    pub fn documents(&self) -> u64 {
        match &self.held {
            Held::Memory { starts, .. } => starts.len() as u64,
            Held::File(file) => file.header().documents,
        }
    }

    /// Position of the first token of a document; the number of tokens past the last one.
    pub fn start(&self, document: u64) -> u64 {
        if document >= self.documents() {
            return self.len();
        }
        match &self.held {
            Held::Memory { starts, .. } => starts[document as usize],
            Held::File(file) => file.start(document),
        }
    }

    /// A checksum of the content.
    pub fn sum(&self) -> u32 {
        match &self.held {
            Held::Memory { sum, .. } => *sum,
            Held::File(file) => file.header().sum,
        }
    }

    /// Appends tokens `start..end` to `out`, each checked against the vocabulary.
    pub fn read(&self, start: u64, end: u64, out: &mut Vec<u32>) -> Result<()> {
        if start > end || end > self.len() {
            return Err(Error::OutOfRange { what: "token", index: end, len: self.len() });
        }
        let before = out.len();
        match &self.held {
            Held::Memory { tokens, .. } => out.extend_from_slice(&tokens[start as usize..end as usize]),
            Held::File(file) => {
                file.read(start, end, out);
                check_vocabulary(&self.origin, self.vocab, start, &out[before..])?;
            }
        }
        Ok(())
    }

    /// The first document that starts at or after a position, by halving. Starts that are out of order (a damaged file)
    /// give a wrong answer, never a wrong access.
    pub(super) fn document_from(&self, position: u64) -> u64 {
        let (mut low, mut high) = (0, self.documents());
        while low < high {
            let mid = low + (high - low) / 2;
            if self.start(mid) < position { low = mid + 1 } else { high = mid }
        }
        low
    }
}

fn check_vocabulary(origin: &str, vocab: u64, first: u64, tokens: &[u32]) -> Result<()> {
    match tokens.iter().position(|&t| u64::from(t) >= vocab) {
        None => Ok(()),
        Some(i) => {
            let index = first + i as u64;
            Err(Error::OutOfVocabulary { origin: origin.to_string(), index, token: tokens[i], vocab })
        }
    }
}
