//! One file in an agent's memory: chunks that several connections fill at once, straight from their sockets.

use super::frame::CHUNK;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Pieces a chunk may be written in before they join; keeps the notes about them small.
const PIECES: usize = 4096;

/// Room that is held; it is free again when this goes.
#[derive(Debug)]
pub(super) struct Reserved {
    used: Arc<AtomicU64>,
    len: u64,
}

impl Reserved {
    /// Takes `len` bytes if no more than `limit` are used then.
    pub(super) fn take(used: &Arc<AtomicU64>, len: u64, limit: u64) -> Option<Reserved> {
        let more = |now: u64| now.checked_add(len).filter(|sum| *sum <= limit);
        used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Reserved { used: used.clone(), len })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.used.fetch_sub(self.len, Ordering::AcqRel);
    }
}

/// A file of fixed length.
#[derive(Debug)]
pub(super) struct File {
    pub(super) len: u64,
    /// Tells it from every other file this and other agents had.
    pub(super) version: u64,
    chunks: Vec<RwLock<Chunk>>,
    /// Bytes that were received whole.
    written: AtomicU64,
    _room: Reserved,
}

/// Memory comes with the first write.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// What was received whole: in order, apart from each other.
    pieces: Vec<Range<usize>>,
}

/// Why bytes were not taken.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// Nothing was received: the range is not inside one chunk of the file.
    Outside,
    /// Nothing was received: the machine has no memory left, or the pieces are too many.
    NoMemory,
    /// The connection failed.
    Lost(io::Error),
}

impl File {
    pub(super) fn new(len: u64, version: u64, room: Reserved) -> File {
        let chunks = (0..len.div_ceil(CHUNK as u64)).map(|_| RwLock::default()).collect();
        File { len, version, chunks, written: AtomicU64::new(0), _room: room }
    }

    /// Bytes that are there.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.written() == self.len
    }

    /// The chunk that holds all of a range: its number and the range inside.
    fn place(&self, offset: u64, len: usize) -> Option<(usize, Range<usize>)> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.len)?;
        let (number, at) = (offset / CHUNK as u64, (offset % CHUNK as u64) as usize);
        (end <= (number + 1) * CHUNK as u64).then_some((number as usize, at..at + len))
    }

    fn chunk_len(&self, number: usize) -> usize {
        (self.len - (number * CHUNK) as u64).min(CHUNK as u64) as usize
    }

    /// Lets `receive` fill a range; what it says is right counts as written. Bytes that were right before are not
    /// touched until the new ones are known to be right too.
    pub(super) fn write<S>(
        &self,
        offset: u64,
        len: usize,
        receive: impl FnOnce(&mut [u8]) -> io::Result<(bool, S)>,
    ) -> Result<S, Unwritten> {
        if len == 0 {
            return receive(&mut []).map(|(_, sums)| sums).map_err(Unwritten::Lost);
        }
        let (number, range) = self.place(offset, len).ok_or(Unwritten::Outside)?;
        let mut chunk = self.chunks[number].write().unwrap_or_else(PoisonError::into_inner);
        chunk.grow(self.chunk_len(number)).ok_or(Unwritten::NoMemory)?;
        let again = chunk.pieces.iter().any(|piece| piece.start < range.end && range.start < piece.end);
        let (right, sums) = if again {
            let mut beside = zeros(len).ok_or(Unwritten::NoMemory)?;
            let (right, sums) = receive(&mut beside).map_err(Unwritten::Lost)?;
            if right {
                chunk.bytes[range.clone()].copy_from_slice(&beside);
            }
            (right, sums)
        } else {
            receive(&mut chunk.bytes[range.clone()]).map_err(Unwritten::Lost)?
        };
        if right {
            self.written.fetch_add(chunk.note(range) as u64, Ordering::AcqRel);
        }
        Ok(sums)
    }

    /// Gives `send` the bytes from `offset`: at most `len`, and none past the end of the chunk.
    pub(super) fn read<T>(&self, offset: u64, len: usize, send: impl FnOnce(&[u8]) -> T) -> T {
        let number = (offset / CHUNK as u64) as usize;
        let Some(chunk) = self.chunks.get(number).filter(|_| offset < self.len) else { return send(&[]) };
        let chunk = chunk.read().unwrap_or_else(PoisonError::into_inner);
        let start = ((offset % CHUNK as u64) as usize).min(chunk.bytes.len());
        send(&chunk.bytes[start..start.saturating_add(len).min(chunk.bytes.len())])
    }
}

impl Chunk {
    /// Memory for `len` bytes, and room for a note of one more piece.
    fn grow(&mut self, len: usize) -> Option<()> {
        if self.bytes.is_empty() {
            self.bytes = zeros(len)?;
        }
        (self.pieces.len() < PIECES).then_some(())
    }

    /// Notes that a range is there; how many of its bytes are new.
    fn note(&mut self, range: Range<usize>) -> usize {
        let first = self.pieces.partition_point(|piece| piece.end < range.start);
        let last = self.pieces.partition_point(|piece| piece.start <= range.end);
        let old: usize = self.pieces[first..last].iter().map(Range::len).sum();
        let touched = self.pieces[first..last].iter();
        let joined = touched.fold(range, |all, one| all.start.min(one.start)..all.end.max(one.end));
        let new = joined.len() - old;
        self.pieces.splice(first..last, [joined]);
        new
    }
}

/// Zeros, or nothing where the machine has no memory left.
fn zeros(len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: u64) -> File {
        let used = Arc::new(AtomicU64::new(0));
        File::new(len, 1, Reserved::take(&used, len, len).unwrap())
    }

    fn write(file: &File, offset: u64, bytes: &[u8], right: bool) -> Result<(), Unwritten> {
        file.write(offset, bytes.len(), |into| {
            into.copy_from_slice(bytes);
            Ok((right, ()))
        })
    }

    #[test]
    fn only_bytes_that_came_right_count_and_each_once() {
        let file = file(10);
        write(&file, 4, b"efg", true).unwrap();
        write(&file, 0, b"ab", false).unwrap();
        assert_eq!(file.written(), 3);
        write(&file, 6, b"??", false).unwrap();
        write(&file, 5, b"fg", true).unwrap();
        assert_eq!(file.written(), 3, "a repetition adds nothing");
        for (offset, bytes) in [(0, &b"abcd"[..]), (6, b"ghij")] {
            write(&file, offset, bytes, true).unwrap();
        }
        assert!(file.is_whole());
        write(&file, 0, b"!!!!", false).unwrap();
        file.read(0, 99, |bytes| assert_eq!(bytes, b"abcdefghij", "damaged repetitions change nothing"));
        file.read(8, 1, |bytes| assert_eq!(bytes, b"i"));
        file.read(u64::MAX, 1, |bytes| assert_eq!(bytes, b""));
        for (offset, bytes) in [(9, &b"xy"[..]), (u64::MAX, b"x")] {
            assert!(matches!(write(&file, offset, bytes, true), Err(Unwritten::Outside)));
        }
    }

    #[test]
    fn no_write_crosses_a_chunk_and_pieces_are_bounded() {
        let file = file(3 * CHUNK as u64);
        assert!(matches!(write(&file, CHUNK as u64 - 1, b"xy", true), Err(Unwritten::Outside)));
        write(&file, CHUNK as u64 - 1, b"x", true).unwrap();
        let apart = |i: usize| write(&file, CHUNK as u64 + 2 * i as u64, b"x", true);
        assert!((0..PIECES).all(|i| apart(i).is_ok()));
        assert!(matches!(apart(PIECES), Err(Unwritten::NoMemory)));
        assert_eq!(file.written(), 1 + PIECES as u64);
    }
}
