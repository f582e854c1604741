//! Writing a local file at offsets: whole blocks directly, ragged edges through the page cache.

use super::reader::is_aligned;
use super::{DirectIo, sync_folder, sys};
use crate::BLOCK;
use crate::error::{Error, Result};
use crate::store::{Sharing, Writer, check_inside};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

#[derive(Debug)]
pub(super) struct LocalWriter {
    name: String,
    len: u64,
    sharing: Sharing,
    buffered: File,
    direct: Option<File>,
    refused: AtomicBool,
    written: AtomicU64,
    /// Folders whose entries become durable with the file.
    folders: Vec<PathBuf>,
}

impl LocalWriter {
    pub(super) fn open(
        path: &Path,
        name: &str,
        len: u64,
        sharing: Sharing,
        direct: DirectIo,
        folders: Vec<PathBuf>,
    ) -> Result<LocalWriter> {
        let fail = |error: io::Error| Error::io(name, "create", &error);
        // Processes that share a file must not cut off what another has written already.
        let truncate = sharing == Sharing::Threads;
        let buffered =
            OpenOptions::new().write(true).create(true).truncate(truncate).open(path).map_err(fail)?;
        sys::reserve(&buffered, len).map_err(fail)?;
        let wanted = direct == DirectIo::WherePossible && len >= BLOCK as u64;
        let flagged = || OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).ok();
        Ok(LocalWriter {
            name: name.to_string(),
            len,
            sharing,
            direct: wanted.then(flagged).flatten(),
            buffered,
            refused: AtomicBool::new(false),
            written: AtomicU64::new(0),
            folders,
        })
    }

    /// Direct where offset, address and length allow it. Blocks written directly are never also written
    /// through the cache, so the two ways do not meet.
    fn write_part(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(file) = &self.direct
            && is_aligned(offset, bytes)
            && !self.refused.load(Relaxed)
        {
            match file.write_all_at(bytes, offset) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.refused.store(true, Relaxed)
                }
                done => return done,
            }
        }
        self.buffered.write_all_at(bytes, offset)
    }
}

impl Writer for LocalWriter {
    fn name(&self) -> &str {
        &self.name
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        check_inside(&self.name, self.len, offset, len)?;
        let (head, middle) = block_parts(offset, bytes.len());
        let at = |part: usize| offset + part as u64;
        let written = self
            .write_part(offset, &bytes[..head])
            .and_then(|()| self.write_part(at(head), &bytes[head..head + middle]))
            .and_then(|()| self.write_part(at(head + middle), &bytes[head + middle..]));
        written.map_err(|error| Error::io(&self.name, "write", &error))?;
        self.written.fetch_add(len, Relaxed);
        Ok(())
    }

    fn takes_parts(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let written = self.written.load(Relaxed);
        if self.sharing == Sharing::Threads && written != self.len {
            return Err(Error::Incomplete { name: self.name, written, len: self.len });
        }
        let synced =
            self.buffered.sync_all().and_then(|()| self.folders.iter().try_for_each(|f| sync_folder(f)));
        synced.map_err(|error| Error::io(&self.name, "sync", &error))
    }
}

/// Bytes before the first block boundary, and bytes in whole blocks after it.
fn block_parts(offset: u64, len: usize) -> (usize, usize) {
    let past = (offset % BLOCK as u64) as usize;
    let head = if past == 0 { 0 } else { (BLOCK - past).min(len) };
    (head, (len - head) / BLOCK * BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_cut_at_blocks() {
        assert_eq!(block_parts(0, 10), (0, 0));
        assert_eq!(block_parts(0, 8192), (0, 8192));
        assert_eq!(block_parts(4090, 4), (4, 0));
        assert_eq!(block_parts(4090, 6 + 4096 + 7), (6, 4096));
    }
}
