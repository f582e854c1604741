//! A file seen as memory, read when it is touched.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

/// The bytes of a file. Processes of one machine share the pages.
#[derive(Debug)]
pub(super) struct Map(memmap2::Mmap);

impl Map {
    /// Maps the whole file.
    pub(super) fn new(file: &File) -> io::Result<Map> {
        // SAFETY: token files are written under another name and then renamed, so what stands under the final name
        // does not change; bytes are copied out before they are judged, and no reference to them leaves this crate.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Map(map))
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
