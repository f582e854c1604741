//! Samples that were made when a source was opened, and wait in memory as they are: padding comes when they are read.

use crate::dataset::Sample;
use crate::error::{Error, Result};
use crate::pack::IGNORED;
use crate::tokenizer::Tokenizer;
use planaria_store::checksum;

/// The samples of one source.
#[derive(Debug)]
pub(crate) struct ListedSamples {
    origin: String,
    rows: Vec<Sample>,
    sequence: usize,
    pad: u32,
    sum: u32,
}

impl ListedSamples {
    /// Rows with as many labels as tokens, at most `sequence`.
    pub(crate) fn new(
        origin: &str,
        rows: Vec<Sample>,
        sequence: usize,
        tokenizer: &Tokenizer,
    ) -> Result<ListedSamples> {
        if rows.is_empty() {
            return Err(Error::NoRows { origin: origin.to_string(), told: "there is no row".into() });
        }
        let mut sum = 0;
        for row in &rows {
            let words = row.tokens.iter().map(|&id| i64::from(id)).chain(row.labels.iter().copied());
            let words = words.chain(row.starts.iter().map(|&start| start as i64)).chain([i64::MIN]);
            sum = checksum::append(sum, &words.flat_map(i64::to_le_bytes).collect::<Vec<u8>>());
        }
        let frame = tokenizer.frame();
        let pad = frame.pad.or(frame.eos).unwrap_or(0);
        Ok(ListedSamples { origin: origin.to_string(), rows, sequence, pad, sum })
    }

    pub(crate) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// A number that changes with the content, and the tokens of all rows.
    pub(crate) fn sum(&self) -> (u32, u64) {
        (self.sum, self.rows.iter().map(|row| row.tokens.len() as u64).sum())
    }

    /// Reads one sample.
    pub(crate) fn read(&self, index: u64, out: &mut Sample) -> Result<()> {
        let row = usize::try_from(index).ok().and_then(|index| self.rows.get(index));
        out.clone_from(row.ok_or(Error::OutOfRange { what: "sample", index, len: self.len() })?);
        fill(out, self.sequence, self.pad);
        Ok(())
    }
}

/// Fills a sample up to its length. What fills it up is a document of its own, which counts nothing.
pub(crate) fn fill(out: &mut Sample, sequence: usize, pad: u32) {
    if out.tokens.len() < sequence {
        out.starts.push(out.tokens.len());
    }
    out.tokens.resize(sequence + 1, pad);
    out.labels.resize(sequence, IGNORED);
}
