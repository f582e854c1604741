//! Reading a local file, around the page cache when that is faster.

use super::cached::Cached;
use super::map::Parts;
use super::{DirectIo, Mapped, sys};
use crate::BLOCK;
use crate::error::{Error, Result};
use crate::staging::Staging;
use crate::store::{Identity, Medium, Reader, check_range};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Below this, reads go through the page cache: read-ahead helps them.
const DIRECT_MIN: usize = 64 << 10;
/// The same for ranges that are not whole blocks, which are copied once more.
const BOUNCE_MIN: usize = 512 << 10;
/// Bytes of such a range that are read at once.
const BOUNCE_LEN: usize = 2 << 20;

#[derive(Debug)]
pub(super) struct LocalReader {
    name: String,
    size: u64,
    identity: Identity,
    buffered: File,
    direct: Option<File>,
    /// Set when the file system accepts the flag but not the transfers.
    refused: AtomicBool,
    cached: Cached,
    in_memory: bool,
    /// All of it as memory, once some of it was mapped; none where that cannot be.
    parts: OnceLock<Option<Parts>>,
}

/// Why a file was not opened.
enum Unopened {
    Folder,
    /// What it is, as in `a pipe`.
    Other(&'static str),
    Io(io::Error),
}

/// Opens a file for reading. What is not a regular file is refused and never waited for: a pipe that nobody writes into would block
/// for ever.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let folder = tempfile::tempdir()?;
/// assert!(planaria_store::open_file(folder.path()).is_err());
/// # Ok(())
/// # }
/// ```
pub fn open_file(path: &Path) -> io::Result<File> {
    let refused = |what| io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a file"));
    open_regular(path).map_err(|error| match error {
        Unopened::Folder => refused("a folder"),
        Unopened::Other(what) => refused(what),
        Unopened::Io(error) => error,
    })
}

fn open_regular(path: &Path) -> std::result::Result<File, Unopened> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => Unopened::Other("a socket or a device"),
        _ => Unopened::Io(error),
    })?;
    let about = file.metadata().map_err(Unopened::Io)?;
    match () {
        () if about.is_file() => Ok(file),
        () if about.is_dir() => Err(Unopened::Folder),
        () if about.file_type().is_fifo() => Err(Unopened::Other("a pipe")),
        () => Err(Unopened::Other("a device")),
    }
}

impl LocalReader {
    pub(super) fn open(path: &Path, name: &str, direct: DirectIo) -> Result<LocalReader> {
        let fail = |error: io::Error| match error.kind() {
            // `a/b` where `a` is a file.
            io::ErrorKind::NotADirectory => Error::NotFound { name: name.to_string() },
            _ => Error::io(name, "open", &error),
        };
        let buffered = match open_regular(path) {
            Ok(file) => file,
            Err(Unopened::Folder) => return Err(Error::NotFound { name: name.to_string() }),
            Err(Unopened::Other(what)) => return Err(Error::NotAFile { name: name.to_string(), what }),
            Err(Unopened::Io(error)) => return Err(fail(error)),
        };
        let about = buffered.metadata().map_err(fail)?;
        let in_memory = sys::is_in_memory(&buffered);
        let wanted = direct == DirectIo::WherePossible && about.len() >= DIRECT_MIN as u64 && !in_memory;
        let flagged = || OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok();
        let direct = wanted.then(flagged).flatten();
        Ok(LocalReader {
            name: name.to_string(),
            size: about.len(),
            identity: Identity {
                file: (about.dev(), about.ino()),
                size: about.len(),
                written: (about.mtime(), about.mtime_nsec()),
                changed: (about.ctime(), about.ctime_nsec()),
            },
            in_memory,
            buffered,
            direct,
            refused: AtomicBool::new(false),
            cached: Cached::default(),
            parts: OnceLock::new(),
        })
    }

    /// The file to read this range from directly, if that is possible and the cache does not have it.
    fn direct_for(&self, offset: u64, into: &[u8]) -> Option<&File> {
        let file = self.direct.as_ref()?;
        let least = if is_aligned(offset, into) { DIRECT_MIN } else { BOUNCE_MIN };
        if into.len() < least || self.refused.load(Relaxed) {
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
            let read = if is_aligned(offset, into) { read_full } else { read_bounced };
            done = read(file, offset, into).or_else(|error| match error.kind() {
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

    fn identity(&self) -> Option<Identity> {
        Some(self.identity)
    }

    fn medium(&self) -> Medium {
        if self.in_memory { Medium::Memory } else { Medium::Disk }
    }

    fn map(&self, range: Range<u64>) -> Result<Option<Mapped>> {
        let Some(len) = range.end.checked_sub(range.start).filter(|len| *len > 0) else { return Ok(None) };
        check_range(self, range.start, len)?;
        // Memory past the end of a file that was cut since would end the process when it is touched; a read says what is wrong.
        if !self.buffered.metadata().is_ok_and(|now| now.len() >= range.end) {
            return Ok(None);
        }
        // What must come from the disk comes faster in large direct reads than page by page.
        if !self.in_memory && !self.cached.has_most_of(&self.buffered, self.size, &range) {
            return Ok(None);
        }
        let parts = self.parts.get_or_init(|| Parts::new(&self.buffered, self.size).ok());
        let part = parts.as_ref().and_then(|parts| parts.take(&range));
        // A file system that cannot map is read.
        Ok(part.or_else(|| Mapped::new(&self.buffered, range).ok()))
    }
}

thread_local! {
    /// Aligned memory for reads that are not.
    static BOUNCE: RefCell<Staging> = RefCell::new(Staging::new(BOUNCE_LEN));
}

/// Direct reads of the blocks around an unaligned range, copied from there.
fn read_bounced(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    BOUNCE.with_borrow_mut(|staging| {
        let mut done = 0;
        while done < into.len() {
            let at = offset.saturating_add(done as u64);
            let past = (at % BLOCK as u64) as usize;
            let len = (past + into.len() - done).next_multiple_of(BLOCK).min(BOUNCE_LEN);
            let read = read_full(file, at - past as u64, &mut staging.bytes_mut()[..len])?;
            let part = read.saturating_sub(past).min(into.len() - done);
            into[done..done + part].copy_from_slice(&staging.bytes()[past..past + part]);
            done += part;
            // The file ends here, or the rest cannot be read directly.
            if read < len {
                break;
            }
        }
        Ok(done)
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_and_never_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let socket = place.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, expected) in
            [(&*pipe, "a pipe"), (&socket, "a socket or a device"), (Path::new("/dev/zero"), "a device")]
        {
            match LocalReader::open(path, "f", DirectIo::WherePossible) {
                Err(Error::NotAFile { what, .. }) => assert_eq!(what, expected),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_is_in_the_page_cache_is_mapped_and_writes_stay_in_the_mapping() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = LocalReader::open(&path, "f", DirectIo::WherePossible).unwrap();
        if sys::cached_bytes(&file.buffered, 0, 4096).is_none() {
            // A kernel before 6.5 cannot say what is cached; then nothing is mapped.
            return;
        }
        let map = |range| file.map(range).unwrap().unwrap();
        let (mut one, other, apart) = (map(5000..150_001), map(0..200_000), map(150_001..200_000));
        // The second shares bytes with the first, so it has a mapping of its own.
        assert!(one.is_part() && !other.is_part() && apart.is_part());
        assert!(one.bytes() == &bytes[5000..150_001]);
        one.bytes_mut()[7] = !bytes[5007];
        one.bytes_mut()[145_000] = !bytes[150_000];
        assert!(other.bytes() == bytes && std::fs::read(&path).unwrap() == bytes);
        assert!(apart.bytes() == &bytes[150_001..], "in the page of what was written");
        assert_eq!(one.bytes()[7], !bytes[5007]);
        drop(one);
        assert!(map(5000..150_001).bytes() == &bytes[5000..150_001]);
        assert!(matches!(file.map(0..200_001), Err(Error::OutOfFile { .. })));
        assert!(file.map(9..9).unwrap().is_none());
    }

    #[test]
    fn bounced_reads_give_any_range_and_stop_at_the_end() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        let bytes: Vec<u8> = (0..3 * BOUNCE_LEN + 777).map(|i| (i * 31 / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        let ends = [(0, 10), (1, BOUNCE_LEN), (4095, BOUNCE_LEN + 2), (5000, 2 * BOUNCE_LEN + 99)];
        for (offset, len) in ends.into_iter().chain([(bytes.len() - 1000, 5000), (100, bytes.len())]) {
            let mut into = vec![0; len];
            let read = read_bounced(&file, offset as u64, &mut into).unwrap();
            assert_eq!(read, len.min(bytes.len() - offset), "{offset} {len}");
            assert!(into[..read] == bytes[offset..offset + read], "{offset} {len}");
        }
    }
}
