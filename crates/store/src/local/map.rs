//! A range of a local file as memory of this process: read when it is touched, and private when it is written.
#![allow(unsafe_code)]

use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::io;
use std::ops::Range;

/// Bytes of a file, mapped. Writes change this mapping alone, neither the file nor another mapping of it.
#[derive(Debug)]
pub struct Mapped(MmapMut);

impl Mapped {
    /// Maps a range that lies inside the file.
    pub(super) fn new(file: &File, range: Range<u64>) -> io::Result<Mapped> {
        let len = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: files of checkpoints get their names when they are whole and are not changed afterwards; the range was
        // compared with the size. Who changes or cuts a file all the same changes numbers, or ends the process when they are
        // touched, as with every program that maps files.
        Ok(Mapped(unsafe { MmapOptions::new().offset(range.start).len(len).map_copy(file) }?))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, for writing: they change here alone.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
