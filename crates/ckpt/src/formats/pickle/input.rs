//! The bytes of a pickle, read through a window; long strings are stepped over.

use crate::error::{Error, Result};
use planaria_store::Reader;

/// Bytes read at once.
const WINDOW: usize = 64 << 10;
/// Longest line of a text opcode.
const LINE: usize = 64 << 10;

pub(super) struct Input<'a> {
    file: &'a dyn Reader,
    at: u64,
    end: u64,
    window: Vec<u8>,
    window_start: u64,
}

impl<'a> Input<'a> {
    pub(super) fn new(file: &'a dyn Reader, start: u64, end: u64) -> Input<'a> {
        Input { file, at: start, end: end.min(file.size()), window: Vec::new(), window_start: start }
    }

    /// The next byte to be read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> Error {
        Error::Pickle { file: self.file.name().to_string(), offset: self.at, problem: problem.into() }
    }

    /// Steps over `len` bytes.
    pub(super) fn skip(&mut self, len: u64) -> Result<()> {
        self.check(len)?;
        self.at += len;
        Ok(())
    }

    fn check(&self, len: u64) -> Result<()> {
        if len > self.end.saturating_sub(self.at) {
            return Err(self.error(format!("the pickle ends inside a value of {len} bytes")));
        }
        Ok(())
    }

    /// The next `len` bytes. Nothing is allocated before it is known that they exist.
    pub(super) fn take(&mut self, len: usize) -> Result<&[u8]> {
        self.check(len as u64)?;
        let skipped = self.at - self.window_start;
        if skipped + len as u64 > self.window.len() as u64 {
            let wanted = (len.max(WINDOW) as u64).min(self.end - self.at) as usize;
            self.window = self.file.read(self.at, wanted)?;
            self.window_start = self.at;
        }
        let start = (self.at - self.window_start) as usize;
        self.at += len as u64;
        Ok(&self.window[start..start + len])
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// A little-endian unsigned number of `N` bytes.
    pub(super) fn number<const N: usize>(&mut self) -> Result<u64> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(self.take(N)?);
        Ok(u64::from_le_bytes(wide))
    }

    /// A line without its end.
    pub(super) fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Ok(line),
                _ if line.len() == LINE => return Err(self.error("a line is too long")),
                byte => line.push(byte),
            }
        }
    }
}
