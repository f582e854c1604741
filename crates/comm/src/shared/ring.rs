//! What is short between the processes of one host: a ring of bytes from each to each, and a bell for each that wakes it.
//!
//! One process writes to a ring and one reads from it. Each only moves its own cursor, so neither waits for the other: what finds no room
//! goes another way.
#![allow(unsafe_code)]

use super::{COUNTS, LOTS, Shelf, Window};
use memmap2::MmapRaw;
use rustix::thread::futex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// What different processes write to lies this far apart.
const APART: usize = 64;

/// Bytes of the cursors of a ring: written to, read up to, and taken another way.
const CURSORS: usize = 3 * APART;

/// Bytes before each message: its length and its tag.
const HEAD: usize = 8;

/// Bytes of pages, at which parts of the memory begin.
const PAGE: usize = 4096;

/// Bytes of a ring between two of `size` processes. With very many of them, rings are short and sockets carry more.
fn ring_length(size: usize) -> usize {
    ((1 << 20) / size.max(1).next_power_of_two()).clamp(PAGE, 64 << 10)
}

/// Bytes of the words that all processes write to, and of the rings.
pub(super) fn lengths(size: usize) -> [usize; 2] {
    [(COUNTS + APART + size * CURSORS).next_multiple_of(PAGE), size * ring_length(size)]
}

/// Counts, bell and cursors.
#[derive(Debug)]
pub(super) struct Words {
    memory: MmapRaw,
    size: usize,
}

impl Words {
    /// `memory` has the first of [`lengths`].
    pub(super) fn new(memory: MmapRaw, size: usize) -> Words {
        Words { memory, size }
    }

    /// The count of a lot.
    pub(super) fn count(&self, lot: usize) -> &AtomicU32 {
        // SAFETY: mappings begin at a page, so counts are aligned; there are as many as `LOTS`. The memory is mapped for writing and lives as
        // long as the answer. All processes use it as atomics only.
        unsafe { &*self.memory.as_ptr().cast::<AtomicU32>().add(lot % LOTS) }
    }

    /// The bell, or how many sleep until it rings.
    fn bell(&self, word: usize) -> &AtomicU32 {
        // SAFETY: as above; both words follow the counts.
        unsafe { &*self.memory.as_ptr().add(COUNTS).cast::<AtomicU32>().add(word % 2) }
    }

    /// A cursor of the ring to a process.
    fn cursor(&self, to: usize, which: Cursor) -> &AtomicU64 {
        let at = COUNTS + APART + to % self.size * CURSORS + which as usize * APART;
        // SAFETY: as above; `at` lies inside and is a multiple of 64.
        unsafe { &*self.memory.as_ptr().add(at).cast::<AtomicU64>() }
    }
}

#[derive(Clone, Copy)]
enum Cursor {
    /// Bytes written so far; the owner's.
    Written,
    /// Bytes read so far; the reader's.
    Read,
    /// Messages that the reader got another way; the reader's.
    Taken,
}

/// What a process sleeps by and others wake it with.
pub(crate) trait Bell {
    #[doc(hidden)]
    fn words(&self) -> (&AtomicU32, &AtomicU32);

    /// A number that changes when the bell rings.
    fn heard(&self) -> u32 {
        self.words().0.load(Ordering::SeqCst)
    }

    /// Wakes those who sleep.
    fn ring(&self) {
        let (bell, asleep) = self.words();
        bell.fetch_add(1, Ordering::SeqCst);
        if asleep.load(Ordering::SeqCst) > 0 {
            // Who is not woken looks again when its time is up.
            let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX as u32);
        }
    }

    /// Sleeps until it has rung since `heard`, at most `limit`.
    fn sleep(&self, heard: u32, limit: Duration) {
        let (bell, asleep) = self.words();
        let limit =
            futex::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        asleep.fetch_add(1, Ordering::SeqCst);
        // It has rung, or the time is up, or a signal came: the caller looks in any case.
        let _ = futex::wait(bell, futex::Flags::empty(), heard, Some(&limit));
        asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Bell for Shelf {
    fn words(&self) -> (&AtomicU32, &AtomicU32) {
        (self.words.bell(0), self.words.bell(1))
    }
}

impl Bell for Window {
    fn words(&self) -> (&AtomicU32, &AtomicU32) {
        (self.words.bell(0), self.words.bell(1))
    }
}

/// Bytes that a message takes.
fn taken_by(length: usize) -> usize {
    HEAD + length.next_multiple_of(8)
}

impl Shelf {
    /// True when a message of so many bytes finds room in the ring to a process.
    pub(crate) fn has_room(&self, to: usize, length: usize) -> bool {
        let written = self.words.cursor(to, Cursor::Written).load(Ordering::Relaxed);
        let read = self.words.cursor(to, Cursor::Read).load(Ordering::Acquire);
        let used = written.checked_sub(read).and_then(|used| usize::try_from(used).ok());
        let free = used.and_then(|used| ring_length(self.words.size).checked_sub(used));
        u32::try_from(length).is_ok() && free.is_some_and(|free| taken_by(length) <= free)
    }

    /// Writes a message to the ring to a process, if there is room. Only one thread does so at a time.
    pub(crate) fn push(&self, to: usize, tag: u32, bytes: &[u8]) -> bool {
        if !self.has_room(to, bytes.len()) {
            return false;
        }
        let cursor = self.words.cursor(to, Cursor::Written);
        let written = cursor.load(Ordering::Relaxed);
        let head = u64::from(tag) << 32 | bytes.len() as u64;
        self.write(to, written, &head.to_ne_bytes());
        self.write(to, written + HEAD as u64, bytes);
        cursor.store(written + taken_by(bytes.len()) as u64, Ordering::Release);
        true
    }

    fn write(&self, to: usize, at: u64, bytes: &[u8]) {
        let length = ring_length(self.words.size);
        let (ring, at) = (to % self.words.size * length, (at % length as u64) as usize);
        let (first, rest) = bytes.split_at(bytes.len().min(length - at));
        let rest = &rest[..rest.len().min(length)];
        // SAFETY: both parts lie inside this ring, which is mapped for writing. Its reader does not look at them: the caller has found that
        // they are free, and tells of them later.
        unsafe {
            let ring = self.rings.as_mut_ptr().add(ring);
            std::ptr::copy_nonoverlapping(first.as_ptr(), ring.add(at), first.len());
            std::ptr::copy_nonoverlapping(rest.as_ptr(), ring, rest.len());
        }
    }

    /// How many messages a process has got from this one another way.
    pub(crate) fn taken(&self, to: usize) -> u64 {
        self.words.cursor(to, Cursor::Taken).load(Ordering::Acquire)
    }
}

impl Window {
    /// The next message in the ring to process `me`: its tag, and its bytes in words with their number. Only one thread asks at a time.
    pub(crate) fn pull(&self, me: usize) -> std::io::Result<Option<(u32, Vec<u64>, usize)>> {
        let cursor = self.words.cursor(me, Cursor::Read);
        let read = cursor.load(Ordering::Relaxed);
        let written = self.words.cursor(me, Cursor::Written).load(Ordering::Acquire);
        if written == read {
            return Ok(None);
        }
        let damaged = || std::io::Error::other("its ring is damaged");
        let here = written.checked_sub(read).filter(|&here| here <= ring_length(self.words.size) as u64);
        let here = here.ok_or_else(damaged)? as usize;
        let mut head = [0u64; 1];
        self.read(me, read, bytemuck::cast_slice_mut(&mut head));
        let (tag, length) = ((head[0] >> 32) as u32, head[0] as u32 as usize);
        if taken_by(length) > here {
            return Err(damaged());
        }
        let mut words = vec![0u64; length.div_ceil(8)];
        self.read(me, read + HEAD as u64, bytemuck::cast_slice_mut(&mut words));
        cursor.store(read + taken_by(length) as u64, Ordering::Release);
        Ok(Some((tag, words, length)))
    }

    fn read(&self, me: usize, at: u64, bytes: &mut [u8]) {
        let length = ring_length(self.words.size);
        let (ring, at) = (me % self.words.size * length, (at % length as u64) as usize);
        let middle = bytes.len().min(length - at);
        let (first, rest) = bytes.split_at_mut(middle);
        let count = rest.len().min(length);
        // SAFETY: both parts lie inside this ring, which cannot shrink. Its owner has written them before it moved its cursor, and leaves them
        // alone until the reader's has passed them.
        unsafe {
            let ring = self.rings.as_ptr().add(ring);
            std::ptr::copy_nonoverlapping(ring.add(at), first.as_mut_ptr(), first.len());
            std::ptr::copy_nonoverlapping(ring, rest.as_mut_ptr(), count);
        }
    }

    /// Counts a message of its owner that process `me` got another way.
    pub(crate) fn took(&self, me: usize) {
        self.words.cursor(me, Cursor::Taken).fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn pair(size: usize) -> (std::sync::Arc<Shelf>, std::sync::Arc<Window>) {
        let shelf = Shelf::new(size).unwrap();
        let window = Window::open(shelf.fd().as_fd().try_clone_to_owned().unwrap(), size).unwrap();
        (shelf, window)
    }

    #[test]
    fn messages_come_whole_and_in_order_around_the_ring() {
        let (shelf, window) = pair(3);
        let message = |n: usize| vec![n as u8; n * 37 % 9000];
        let (mut sent, mut come) = (0, 0);
        while come < 500 {
            // Until there is no room, then some are read, so that the cursors stand everywhere in the ring.
            while shelf.push(2, sent as u32, &message(sent)) {
                sent += 1;
            }
            for _ in 0..1 + come % 3 {
                let Some((tag, words, length)) = window.pull(2).unwrap() else { break };
                assert_eq!((tag as usize, length), (come, message(come).len()));
                assert_eq!(bytemuck::cast_slice::<u64, u8>(&words)[..length], message(come));
                come += 1;
            }
        }
        assert!(sent > come && window.pull(1).unwrap().is_none(), "another's ring is empty");
        assert!(!shelf.push(1, 0, &vec![0; ring_length(3)]), "longer than the ring");
    }

    #[test]
    fn a_damaged_ring_is_told() {
        let (shelf, window) = pair(2);
        assert!(shelf.push(1, 7, &[1; 16]));
        shelf.words.cursor(1, Cursor::Written).store(u64::MAX, Ordering::Release);
        assert!(window.pull(1).is_err() && !shelf.has_room(1, 1));
        shelf.words.cursor(1, Cursor::Written).store(16, Ordering::Release);
        assert!(window.pull(1).is_err(), "the message does not end where the cursor stands");
        shelf.words.cursor(1, Cursor::Read).store(1 << 40, Ordering::Release);
        assert!(window.pull(1).is_err() && !shelf.has_room(1, 1));
    }

    #[test]
    fn a_bell_wakes_who_sleeps_and_is_heard_by_who_does_not_yet() {
        let (shelf, window) = pair(2);
        let heard = shelf.heard();
        window.ring();
        // A sleep of an hour would be noticed.
        shelf.sleep(heard, Duration::from_secs(3600));
        let heard = shelf.heard();
        std::thread::scope(|scope| {
            scope.spawn(|| shelf.sleep(heard, Duration::from_secs(3600)));
            while shelf.words().1.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            window.ring();
        });
        assert_eq!(shelf.words().1.load(Ordering::SeqCst), 0);
    }
}
