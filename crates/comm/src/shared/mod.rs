//! Memory that the processes of one host share: what is long is written there once, and those it is for are told where it lies.
//!
//! Every process has a piece of its own, which has no name and goes with the last process that knows it. It lies in lots, each with a count of
//! those who still read it; at 0 its owner may use the room again. Nobody waits for room: what finds none goes through the socket.
//! Before the lots lie counts, a bell and rings for what is short (`ring.rs`).
#![allow(unsafe_code)]

mod ring;

pub(crate) use ring::Bell;

use memmap2::{MmapOptions, MmapRaw};
use ring::Words;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use std::fs::File;
use std::io::{Error, Result};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Lots that may be in use at once; their counts come first.
const LOTS: usize = 1024;

/// Bytes of the counts.
const COUNTS: usize = LOTS * size_of::<AtomicU32>();

/// Bytes of the lots. Memory is taken only for what has been written to.
const ROOM: usize = 256 << 20;

/// Where lots begin: all elements are aligned there.
const ALIGN: usize = 64;

/// Memory that this process writes to and others read.
#[derive(Debug)]
pub(crate) struct Shelf {
    file: File,
    words: Words,
    rings: MmapRaw,
    room: MmapRaw,
    /// Lots in use, by where they lie.
    used: Mutex<Vec<(Range<usize>, usize)>>,
}

/// Bytes on a shelf; the owner's own hold on them.
#[derive(Debug)]
pub(crate) struct Lot {
    shelf: Arc<Shelf>,
    number: usize,
    at: Range<usize>,
}

impl Shelf {
    /// A shelf of one of `size` processes; it cannot shrink or grow any more, so nobody's reads can fail.
    pub(crate) fn new(size: usize) -> Result<Arc<Shelf>> {
        let fd = memfd_create("planaria-shelf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let [words, rings] = ring::lengths(size);
        ftruncate(&fd, (words + rings + ROOM) as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let file = File::from(fd);
        let part =
            |start: usize, length: usize| MmapOptions::new().offset(start as u64).len(length).map_raw(&file);
        let (room, rings) = (part(words + rings, ROOM)?, part(words, rings)?);
        let words = Words::new(part(0, words)?, size);
        Ok(Arc::new(Shelf { file, words, rings, room, used: Mutex::default() }))
    }

    /// What others need to read it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies bytes to a lot, if there is room.
    pub(crate) fn put(self: &Arc<Shelf>, bytes: &[u8]) -> Option<Lot> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        // Readers are done with what they read when the count says so.
        used.retain(|&(_, number)| self.words.count(number).load(Ordering::Acquire) > 0);
        let length = bytes.len().next_multiple_of(ALIGN);
        let number = (0..LOTS).find(|number| used.iter().all(|(_, other)| other != number))?;
        let ends = std::iter::once(0).chain(used.iter().map(|(at, _)| at.end));
        let starts = used.iter().map(|(at, _)| at.start).chain(std::iter::once(ROOM));
        let (place, start) = ends
            .zip(starts)
            .enumerate()
            .find_map(|(place, (end, start))| (start - end >= length).then_some((place, end)))?;
        self.words.count(number).store(1, Ordering::Relaxed);
        used.insert(place, (start..start + length, number));
        drop(used);
        // SAFETY: the lot lies inside the room, which is mapped for writing; nobody else has been told of it, and no other lot that is in use
        // overlaps it. `bytes` are this process's own memory or another's lot.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.room.as_mut_ptr().add(start), bytes.len())
        };
        Some(Lot { shelf: self.clone(), number, at: start..start + bytes.len() })
    }
}

impl Lot {
    /// Counts a reader, who lets go of it once. What it must be told: the number of the lot, and where it begins.
    pub(crate) fn lend(&self) -> (u32, u64) {
        self.shelf.words.count(self.number).fetch_add(1, Ordering::Relaxed);
        (self.number as u32, self.at.start as u64)
    }
}

impl Drop for Lot {
    fn drop(&mut self) {
        self.shelf.words.count(self.number).fetch_sub(1, Ordering::Release);
    }
}

/// The shelf of another process, to read from.
#[derive(Debug)]
pub(crate) struct Window {
    words: Words,
    rings: MmapRaw,
    room: MmapRaw,
}

/// Bytes on another process's shelf, which stay as they are until this is dropped.
#[derive(Debug)]
pub(crate) struct Loan {
    window: Arc<Window>,
    number: usize,
    at: Range<usize>,
}

impl Window {
    /// The shelf that one of `size` processes handed over, if it is one.
    pub(crate) fn open(fd: OwnedFd, size: usize) -> Result<Arc<Window>> {
        let [words, rings] = ring::lengths(size);
        let fits = usize::try_from(fstat(&fd)?.st_size) == Ok(words + rings + ROOM);
        if !fits || !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(Error::other("shared memory of another program or release"));
        }
        let file = File::from(fd);
        let part = |start: usize, length: usize| {
            MmapOptions::new().offset(start as u64).len(length).map_raw_read_only(&file)
        };
        let (room, rings) = (part(words + rings, ROOM)?, part(words, rings)?);
        let words = Words::new(MmapOptions::new().len(words).map_raw(&file)?, size);
        Ok(Arc::new(Window { words, rings, room }))
    }

    /// Bytes that the other process says it has put there; what lies outside is refused.
    pub(crate) fn borrow(self: &Arc<Window>, number: u32, start: u64, length: usize) -> Option<Loan> {
        let (number, start) = (usize::try_from(number).ok()?, usize::try_from(start).ok()?);
        let end = start.checked_add(length)?;
        let inside = number < LOTS && end <= ROOM && start.is_multiple_of(ALIGN);
        inside.then(|| Loan { window: self.clone(), number, at: start..end })
    }
}

impl Loan {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range was held against the room, which cannot shrink and lives as long as `self`. The owner writes there again only when
        // the lot's count, in which this loan has a part, is 0: it is this same program, started by the same user for the same job.
        unsafe { std::slice::from_raw_parts(self.window.room.as_ptr().add(self.at.start), self.at.len()) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.window.words.count(self.number).fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_again_when_all_have_read() {
        let shelf = Shelf::new(2).unwrap();
        let window = Window::open(shelf.fd().try_clone_to_owned().unwrap(), 2).unwrap();
        let read = |lot: &Lot, length: usize| {
            let (number, start) = lot.lend();
            window.borrow(number, start, length).unwrap()
        };
        let first = shelf.put(&[1; 1000]).unwrap();
        let second = shelf.put(&[2; 70]).unwrap();
        let (a, b, c) = (read(&first, 1000), read(&first, 1000), read(&second, 70));
        drop((first, second, a));
        // One still reads the first, so the next lies behind both.
        let third = shelf.put(&[3; 500]).unwrap();
        assert!(b.bytes().iter().all(|&x| x == 1) && c.bytes() == [2; 70]);
        assert!(third.at.start >= 1000);
        drop(b);
        let fourth = shelf.put(&[4; 1000]).unwrap();
        assert_eq!((fourth.at.start, c.bytes()), (0, &[2; 70][..]));
        assert!(shelf.put(&vec![5; ROOM]).is_none(), "it is not empty");
        let many: Vec<_> = std::iter::from_fn(|| shelf.put(&[6])).collect();
        assert_eq!(many.len() + 3, LOTS);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let shelf = Shelf::new(2).unwrap();
        let window = Window::open(shelf.fd().try_clone_to_owned().unwrap(), 2).unwrap();
        let bad = [
            (LOTS as u32, 0, 1),
            (0, ROOM as u64, 1),
            (0, 1, 1),
            (0, u64::MAX - 63, 100),
            (0, 64, usize::MAX),
        ];
        for (number, start, length) in bad {
            assert!(window.borrow(number, start, length).is_none(), "{number} {start} {length}");
        }
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(Window::open(other, 2).is_err());
        let elsewhere = shelf.fd().try_clone_to_owned().unwrap();
        assert!(Window::open(elsewhere, 300).is_err(), "of a job of another size");
        assert!(ftruncate(shelf.fd(), 0).is_err(), "readers rely on its size");
    }
}
