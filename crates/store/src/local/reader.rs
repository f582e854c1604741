//! Reading a local file, around the page cache when that is faster.

use super::{DirectIo, sys};
use crate::BLOCK;
use crate::error::{Error, Result};
use crate::store::Reader;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Below this, reads go through the page cache: read-ahead helps them.
const DIRECT_MIN: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct LocalReader {
    name: String,
    size: u64,
    buffered: File,
    direct: Option<File>,
    /// Set when the file system accepts the flag but not the transfers.
    refused: AtomicBool,
}

impl LocalReader {
    pub(super) fn open(path: &Path, name: &str, direct: DirectIo) -> Result<LocalReader> {
        let fail = |error: io::Error| match error.kind() {
            // `a/b` where `a` is a file.
            io::ErrorKind::NotADirectory => Error::NotFound { name: name.to_string() },
            _ => Error::io(name, "open", &error),
        };
        let buffered = File::open(path).map_err(fail)?;
        let about = buffered.metadata().map_err(fail)?;
        if about.is_dir() {
            return Err(Error::NotFound { name: name.to_string() });
        }
        let wanted = direct == DirectIo::WherePossible && about.len() >= DIRECT_MIN as u64;
        let flagged = || OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok();
        let direct = wanted.then(flagged).flatten();
        Ok(LocalReader {
            name: name.to_string(),
            size: about.len(),
            buffered,
            direct,
            refused: AtomicBool::new(false),
        })
    }

    /// The file to read this range from directly, if that is possible and the cache does not have it.
    fn direct_for(&self, offset: u64, into: &[u8]) -> Option<&File> {
        let file = self.direct.as_ref()?;
        let aligned = is_aligned(offset, into) && into.len() >= DIRECT_MIN;
        if !aligned || self.refused.load(Relaxed) {
            return None;
        }
        let len = (into.len() as u64).min(self.size.saturating_sub(offset));
        let cached = sys::cached_bytes(&self.buffered, offset, len).unwrap_or(0);
        (cached < len / 2).then_some(file)
    }
}

/// Whether offset, address and length are whole blocks.
pub(super) fn is_aligned(offset: u64, bytes: &[u8]) -> bool {
    offset.is_multiple_of(BLOCK as u64)
        && bytes.len().is_multiple_of(BLOCK)
        && (bytes.as_ptr() as usize).is_multiple_of(BLOCK)
}

impl Reader for LocalReader {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        if offset >= self.size {
            return Ok(0);
        }
        let mut done = 0;
        if let Some(file) = self.direct_for(offset, into) {
            done = read_full(file, offset, into).or_else(|error| match error.kind() {
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => {
                    self.refused.store(true, Relaxed);
                    Ok(0)
                }
                _ => Err(Error::io(&self.name, "read", &error)),
            })?;
        }
        // Also what a direct read left: it may stop early at an unaligned end.
        let rest = read_full(&self.buffered, offset.saturating_add(done as u64), &mut into[done..])
            .map_err(|error| Error::io(&self.name, "read", &error))?;
        Ok(done + rest)
    }
}

fn read_full(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A direct read that ended unaligned cannot be continued directly.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
