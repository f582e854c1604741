//! Which parts of a result are finished, written down while the work goes on: what a killed process did is not lost.

use crate::error::{Error, Result};
use crate::formats::write::NewFile;
use planaria_store::{Reader, checksum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes that are finished together: a process that is killed loses at most this much for each of its threads.
const PART: u64 = 16 << 20;

/// Bytes that are read together when a part is looked at again.
const READ: usize = 4 << 20;

/// How the names of the journals of a folder begin; each rank writes one of its own.
const NAME: &str = "parts-";

/// A finished part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    /// The file's number.
    pub(super) file: usize,
    pub(super) range: Range<u64>,
    /// CRC-32C of its bytes.
    sum: u32,
}

/// First byte, length and sum of pieces of a part.
type Pieces = BTreeMap<u64, (u64, u32)>;

/// The finished parts of a result in preparation.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Parts that were finished when it was opened.
    pub(super) found: Vec<Part>,
    file: Mutex<File>,
    /// Bytes and part size of each file.
    sizes: OnceLock<Vec<(u64, u64)>>,
    /// By file and first byte of the part: what is there of it.
    begun: Mutex<BTreeMap<(usize, u64), Pieces>>,
}

impl Journal {
    /// The journal of a rank, beside those that it and others left in the folder.
    pub(crate) fn open(folder: &Path, rank: usize) -> Result<Journal> {
        let failed = |error: std::io::Error| {
            let (name, kind, message) = (folder.display().to_string(), error.kind(), error.to_string());
            Error::Store(planaria_store::Error::Io { name, op: "keep the journal of", kind, message })
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(NAME)) {
                let text = fs::read_to_string(entry.path()).unwrap_or_default();
                // The last line may be torn.
                found.extend(
                    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter_map(parsed),
                );
            }
        }
        let path = folder.join(format!("{NAME}{rank}"));
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        Ok(Journal { found, file: Mutex::new(file), sizes: OnceLock::new(), begun: Mutex::default() })
    }

    /// Says what the files are; once.
    pub(super) fn begin(&self, files: &[NewFile]) {
        let _ = self.sizes.set(files.iter().map(|file| (file.len, step(file))).collect());
    }

    /// Bytes of a file that were written.
    pub(super) fn wrote(&self, file: usize, mut offset: u64, mut bytes: &[u8]) -> std::io::Result<()> {
        let Some((len, step)) = self.sizes.get().and_then(|sizes| sizes.get(file).copied()) else {
            return Ok(());
        };
        while !bytes.is_empty() {
            let start = offset / step * step;
            let end = (start + step).min(len);
            let (now, later) = bytes.split_at((bytes.len() as u64).min(end - offset) as usize);
            let sum = checksum::crc32c(now);
            let whole = {
                let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
                let pieces = begun.entry((file, start)).or_default();
                pieces.insert(offset, (now.len() as u64, sum));
                let there: u64 = pieces.values().map(|(len, _)| len).sum();
                (there == end - start).then(|| begun.remove(&(file, start))).flatten()
            };
            if let Some(pieces) = whole {
                let join = |sum, (len, next): &(u64, u32)| checksum::combine(sum, *next, *len as usize);
                let sum = pieces.values().fold(checksum::crc32c(&[]), join);
                let line = format!("{file} {start} {end} {sum:08x}\n");
                self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())?;
            }
            offset += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }
}

/// A line of a journal.
fn parsed(line: &str) -> Option<Part> {
    let mut words = line.split_whitespace();
    let file = words.next()?.parse().ok()?;
    let range = words.next()?.parse().ok()?..words.next()?.parse().ok()?;
    Some(Part { file, range, sum: u32::from_str_radix(words.next()?, 16).ok()? })
}

/// Bytes of a part of a file. What ends with sums of itself is made in one piece.
fn step(file: &NewFile) -> u64 {
    if file.tails.is_empty() { PART } else { file.len.max(1) }
}

/// The parts of a file.
pub(super) fn parts(file: &NewFile) -> impl Iterator<Item = Range<u64>> + '_ {
    let step = step(file);
    (0..file.len.div_ceil(step)).map(move |number| number * step..((number + 1) * step).min(file.len))
}

impl Part {
    /// Whether a file still holds what was written; its bytes, where there are few of them.
    pub(super) fn again(&self, file: &dyn Reader) -> Option<Vec<u8>> {
        let (mut sum, mut kept, mut at) = (checksum::crc32c(&[]), Vec::new(), self.range.start);
        let few = self.range.end - self.range.start <= PART;
        let mut bytes = vec![0; READ];
        while at < self.range.end {
            let take = (self.range.end - at).min(READ as u64) as usize;
            if file.read_at(at, &mut bytes[..take]).ok()? != take {
                return None;
            }
            sum = checksum::append(sum, &bytes[..take]);
            if few {
                kept.extend_from_slice(&bytes[..take]);
            }
            at += take as u64;
        }
        (sum == self.sum).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_store::{Local, Store, StoreExt};

    #[test]
    fn parts_are_known_once_they_are_whole_and_only_while_they_are_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let len = PART + 1000;
        let bytes: Vec<u8> = (0..len as usize).map(|i| (i * 7 + i / 256) as u8).collect();
        let file = NewFile { name: "f".to_string(), len, ..NewFile::default() };
        let journal = Journal::open(folder.path(), 0).unwrap();
        journal.begin(std::slice::from_ref(&file));
        let half = len as usize / 2;
        journal.wrote(0, half as u64, &bytes[half..]).unwrap();
        let found = |folder: &Path| Journal::open(folder, 1).unwrap().found;
        assert_eq!(found(folder.path()).len(), 1, "the last part is whole, the first is not");
        journal.wrote(0, 0, &bytes[..half]).unwrap();
        let done = found(folder.path());
        assert_eq!(done.iter().map(|part| part.range.clone()).collect::<Vec<_>>(), [PART..len, 0..PART]);
        assert_eq!(parts(&file).collect::<Vec<_>>(), [0..PART, PART..len]);
        let store = Local::new(folder.path());
        store.write("f", &bytes).unwrap();
        let again = |part: &Part| part.again(&*store.reader("f").unwrap());
        assert!(done.iter().all(|part| again(part).unwrap() == bytes[part.range.start as usize..part.range.end as usize]));
        let mut broken = bytes;
        broken[len as usize - 1] ^= 1;
        store.write("f", &broken).unwrap();
        assert!(again(&done[0]).is_none() && again(&done[1]).is_some());
        // A torn line, as a kill leaves it.
        fs::write(folder.path().join("parts-7"), "0 0 10 00000000\n0 10 2").unwrap();
        assert_eq!(found(folder.path()).len(), 3);
    }
}
