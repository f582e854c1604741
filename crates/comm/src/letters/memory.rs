//! The memory of letters: bytes that are sent, and rooms that what comes is received into.
#![allow(unsafe_code)]

use super::carrier::engine_error;
#[cfg(target_os = "linux")]
use super::wire::INLINE;
use crate::error::Result;
#[cfg(target_os = "linux")]
use crate::shared::{Loan, Lot, Shelf};
use planaria_array::{Bytes, Lent};
use std::ops::Range;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are sent or have come: they do not change while they are held.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    memory: Memory,
    /// The copy of what is long that other processes of this host read; all who get it share one.
    #[cfg(target_os = "linux")]
    copy: Option<Arc<OnceLock<Option<Lot>>>>,
}

#[derive(Clone, Debug)]
enum Memory {
    /// Part of an array.
    Array(Arc<Bytes>, Range<usize>),
    /// Memory of our own.
    Own(Arc<Vec<u64>>, usize),
    /// Of another process.
    #[cfg(target_os = "linux")]
    Loan(Arc<Loan>),
}

impl Sent {
    fn new(memory: Memory) -> Sent {
        Sent {
            #[cfg(target_os = "linux")]
            copy: (memory.bytes().len() > INLINE).then(Arc::default),
            memory,
        }
    }

    /// Part of an array's bytes.
    pub(crate) fn part(bytes: Arc<Bytes>, range: Range<usize>) -> Sent {
        Sent::new(Memory::Array(bytes, range))
    }

    pub(crate) fn text(bytes: &[u8]) -> Sent {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Sent::new(Memory::Own(Arc::new(words), bytes.len()))
    }

    /// Bytes in words of their own.
    #[cfg(target_os = "linux")]
    pub(crate) fn words(words: Vec<u64>, length: usize) -> Sent {
        Sent::new(Memory::Own(Arc::new(words), length))
    }

    /// What another process has.
    #[cfg(target_os = "linux")]
    pub(crate) fn loan(loan: Loan) -> Sent {
        Sent::new(Memory::Loan(Arc::new(loan)))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Where a reader of another process finds it on a shelf: its lot, and where that begins. It is put there for the first one that asks.
    #[cfg(target_os = "linux")]
    pub(crate) fn lend(&self, shelf: &Arc<Shelf>) -> Option<(u32, u64)> {
        let lot = self.copy.as_ref()?.get_or_init(|| shelf.put(self.bytes()));
        lot.as_ref().map(Lot::lend)
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Array(bytes, range) => &bytes[range.clone()],
            Memory::Own(words, length) => &bytemuck::cast_slice::<u64, u8>(words)[..*length],
            #[cfg(target_os = "linux")]
            Memory::Loan(loan) => loan.bytes(),
        }
    }
}

/// Memory that messages are received into. Transfers fill parts of it that do not overlap and hold it by reference
/// count; only the last holder gets it back to read.
#[derive(Debug)]
pub(crate) struct Room {
    lent: Lent,
    start: *mut u8,
    length: usize,
    taken: Mutex<Vec<Range<usize>>>,
}

// SAFETY: the memory belongs to `lent`; the pointer into it is used only by transfers, each for a part of its own.
unsafe impl Send for Room {}
// SAFETY: shared access only takes parts, under a lock.
unsafe impl Sync for Room {}

impl Room {
    /// The memory of an array, or one of bytes.
    pub(crate) fn new(mut lent: Lent) -> Arc<Room> {
        let memory = lent.memory();
        let (start, length) = (memory.as_mut_ptr(), memory.len());
        Arc::new(Room { lent, start, length, taken: Mutex::default() })
    }

    /// The beginning of a part that nobody has taken yet.
    pub(crate) fn take(&self, part: &Range<usize>) -> Result<*mut u8> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = part.start <= part.end && part.end <= self.length;
        let overlaps = |other: &Range<usize>| part.start < other.end && other.start < part.end;
        if !inside || taken.iter().any(overlaps) {
            return Err(engine_error(format!(
                "part {part:?} of a room of {} bytes is not free",
                self.length
            )));
        }
        taken.push(part.clone());
        // SAFETY: `part` lies inside the memory.
        Ok(unsafe { self.start.add(part.start) })
    }

    /// Fills a part that nobody has taken yet.
    pub(crate) fn fill(&self, part: &Range<usize>, bytes: &[u8]) -> Result<()> {
        if part.len() != bytes.len() {
            let what = format!("{} bytes came for a place of {}", bytes.len(), part.len());
            return Err(engine_error(what));
        }
        let start = self.take(part)?;
        // SAFETY: the part lies inside the memory, which nobody reads before the room is given back, and it was just
        // taken for this copy alone; the source is another allocation or an immutable one.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        Ok(())
    }

    /// What has been received, once no transfer holds it any more.
    #[cfg(feature = "mpi")]
    pub(crate) fn read(self: Arc<Room>) -> Result<Sent> {
        let lost = || engine_error("a room is read while it is filled");
        let bytes = self.into_lent().ok_or_else(lost)?.give_back()?.bytes()?;
        let length = bytes.len();
        Ok(Sent::part(Arc::new(bytes), 0..length))
    }

    /// The memory, once no transfer holds it any more.
    pub(crate) fn into_lent(self: Arc<Room>) -> Option<Lent> {
        Arc::into_inner(self).map(|room| room.lent)
    }
}

/// Part of a room.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) room: Arc<Room>,
    pub(crate) at: Range<usize>,
}
