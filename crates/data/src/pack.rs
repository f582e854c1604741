//! Packing: cutting a long row of tokens into samples of one length.

use super::dataset::Sample;
use super::error::{Error, Result};
use super::tokens::Tokens;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How documents share samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Packing {
    /// Documents follow each other and are cut wherever a sample ends.
    #[default]
    Stream,
    /// The same, but the first token of a document is not a label: nothing is learnt across the border.
    Masked,
    /// A document is only cut if it is longer than a sample; the rest of a sample is filled with padding.
    Documents,
}

/// What the tokens of a document see of the others in their sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Borders {
    /// Everything before them.
    #[default]
    Joined,
    /// Nothing: attention stays inside a document, positions begin again with it, and its first token is not a label.
    Separate,
}

/// Most tokens of a sample: padding must not fill the memory.
const LONGEST: usize = 1 << 24;

/// Label that the loss ignores.
pub const IGNORED: i64 = -100;

/// The samples of one row of tokens: `sequence` inputs and as many labels, which are the next tokens.
#[derive(Debug)]
pub struct Packed {
    tokens: Tokens,
    sequence: u64,
    packing: Packing,
    borders: Borders,
    pad: u32,
    /// First token and end of each sample, where they do not follow from its number.
    windows: Vec<(u64, u32)>,
    samples: u64,
}

impl Packed {
    /// Cuts `tokens`; `pad` fills samples and is never a label.
    pub fn new(tokens: Tokens, sequence: usize, packing: Packing, pad: u32) -> Result<Packed> {
        if sequence == 0 || sequence > LONGEST {
            let problem = format!("a sequence has 1 to {LONGEST} tokens");
            return Err(Error::Setting { key: "sequence", value: sequence.to_string(), problem });
        }
        let mut out = Packed {
            tokens,
            sequence: sequence as u64,
            packing,
            borders: Borders::Joined,
            pad,
            windows: Vec::new(),
            samples: 0,
        };
        if packing == Packing::Documents {
            out.windows = out.fill();
            out.samples = out.windows.len() as u64;
        } else {
            out.samples = out.tokens.len().saturating_sub(1) / out.sequence;
        }
        if out.samples == 0 {
            let needed = if packing == Packing::Documents { 2 } else { out.sequence + 1 };
            let origin = out.tokens.origin().to_string();
            return Err(Error::TooShort { origin, tokens: out.tokens.len(), needed });
        }
        Ok(out)
    }

    /// The same, with documents that see each other or do not.
    #[must_use]
    pub fn with_borders(self, borders: Borders) -> Packed {
        Packed { borders, ..self }
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.samples
    }

    /// Never: a row without a sample is refused.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// The tokens that are cut.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Documents in order, as many whole ones in each window as fit.
    fn fill(&self) -> Vec<(u64, u32)> {
        let most = self.sequence + 1;
        let mut out: Vec<(u64, u32)> = Vec::new();
        let mut window = 0..0u64;
        let mut close = |window: std::ops::Range<u64>| {
            // One token alone has no label.
            if window.end - window.start > 1 {
                out.push((window.start, (window.end - window.start) as u32));
            }
        };
        for document in 0..self.tokens.documents() {
            let (mut start, end) = (self.tokens.start(document), self.tokens.start(document + 1));
            // A damaged file may have starts out of order; they only move borders.
            if end <= start || start < window.end || end > self.tokens.len() {
                continue;
            }
            if end - window.start <= most && !window.is_empty() {
                window.end = end;
                continue;
            }
            close(window);
            // The last token of a full window is a label there and an input in the next one.
            while end - start > most {
                close(start..start + most);
                start += self.sequence;
            }
            window = start..end;
        }
        close(window);
        out
    }

    fn window(&self, index: u64) -> (u64, u64) {
        match self.windows.get(index as usize) {
            Some(&(start, len)) => (start, start + u64::from(len)),
            None => (index * self.sequence, (index + 1) * self.sequence + 1),
        }
    }

    /// Reads one sample.
    pub fn read(&self, index: u64, out: &mut Sample) -> Result<()> {
        if index >= self.samples {
            return Err(Error::OutOfRange { what: "sample", index, len: self.samples });
        }
        let (start, end) = self.window(index);
        out.tokens.clear();
        self.tokens.read(start, end, &mut out.tokens)?;
        let valid = out.tokens.len();
        out.tokens.resize(self.sequence as usize + 1, self.pad);
        out.labels.clear();
        out.labels.extend(out.tokens[1..].iter().map(|&t| i64::from(t)));
        out.labels[valid - 1..].fill(IGNORED);
        out.starts.clear();
        if self.packing == Packing::Stream && self.borders == Borders::Joined {
            return Ok(());
        }
        for at in self.starts(start, end) {
            // What comes before would learn the first token of the next document.
            out.labels[at - 1] = IGNORED;
            if self.borders == Borders::Separate && at < self.sequence as usize {
                out.starts.push(at);
            }
        }
        if self.borders == Borders::Separate && valid < self.sequence as usize {
            // Padding is seen by nobody.
            out.starts.push(valid);
        }
        Ok(())
    }

    /// Where in tokens `start..end` documents begin, after the first token. A damaged file may have starts out of
    /// order; those are left out.
    fn starts(&self, start: u64, end: u64) -> impl Iterator<Item = usize> {
        let mut last = start;
        let numbers = self.tokens.document_from(start + 1)..self.tokens.documents();
        let starts = numbers.map(|document| self.tokens.start(document));
        let inside = starts.take_while(move |at| (start + 1..end).contains(at));
        inside.filter_map(move |at| {
            let before = std::mem::replace(&mut last, at);
            (at > before).then_some((at - start) as usize)
        })
    }
}
