//! Ranges of a local file as memory of this process: read when they are touched, and private when they are written.
#![allow(unsafe_code)]

use memmap2::{MmapOptions, MmapRaw};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

/// At least a page of every system that this runs on; pages of the mapping are whole ones of it.
#[cfg(target_os = "linux")]
const PAGE: usize = 64 << 10;

/// Bytes of a file, mapped. Writes change what this has alone, neither the file nor what others have of it.
#[derive(Debug)]
pub struct Mapped {
    memory: Arc<MmapRaw>,
    /// Bytes of the memory that nobody else has.
    range: Range<usize>,
    /// Whether the memory is a mapping of the whole file.
    is_part: bool,
}

impl Mapped {
    /// Maps a range that lies inside the file, for itself.
    pub(super) fn new(file: &File, range: Range<u64>) -> io::Result<Mapped> {
        let memory = Arc::new(mapped(file, &range)?);
        let range = 0..memory.len();
        Ok(Mapped { memory, range, is_part: false })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, which stays for as long as this does, and no other value has bytes of it.
        unsafe { slice::from_raw_parts(self.memory.as_ptr().add(self.range.start), self.range.len()) }
    }

    /// The bytes, for writing: they change here alone.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the mapping is writable.
        unsafe { slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(self.range.start), self.range.len()) }
    }

    /// Asks for all its pages at once, for who reads all of it soon: one by one they cost more. Where the system cannot, they come when they
    /// are touched.
    pub fn populate(&self) {
        #[cfg(target_os = "linux")]
        let _ = self.memory.advise_range(memmap2::Advice::PopulateRead, self.range.start, self.range.len());
    }

    /// Gives the pages back that it has alone, for who will not look again: the end of a whole mapping would have to do that for all of
    /// it on one thread.
    pub(crate) fn forget(self) {
        #[cfg(target_os = "linux")]
        {
            let start = self.range.start.next_multiple_of(PAGE);
            let end = self.range.end / PAGE * PAGE;
            if self.is_part && start < end {
                // SAFETY: pages of this range alone, which nobody looks at any more: it ends here, and is given to nobody else.
                let _ = unsafe {
                    self.memory.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
            }
        }
    }

    /// Whether it is a part of one mapping of the file, which it costs nothing to keep; of mappings of its own a process can have
    /// tens of thousands.
    pub fn is_part(&self) -> bool {
        self.is_part
    }
}

/// Maps a range that lies inside the file.
fn mapped(file: &File, range: &Range<u64>) -> io::Result<MmapRaw> {
    let len = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut options = MmapOptions::new();
    // Few of its pages will be written, if any: no memory is set aside for that.
    options.offset(range.start).len(len).no_reserve_swap();
    // SAFETY: files of checkpoints get their names when they are whole and are not changed afterwards; the range was
    // compared with the size. Who changes or cuts a file all the same changes numbers, or ends the process when they are
    // touched, as with every program that maps files.
    Ok(unsafe { options.map_copy(file) }?.into())
}

/// One mapping of a whole file, given away in parts: each byte once, so that nobody sees what another writes.
#[derive(Debug)]
pub(super) struct Parts {
    memory: Arc<MmapRaw>,
    /// First byte and one past the last of what was given.
    given: Mutex<BTreeMap<usize, usize>>,
}

impl Parts {
    /// Maps the first `size` bytes of a file.
    pub(super) fn new(file: &File, size: u64) -> io::Result<Parts> {
        Ok(Parts { memory: Arc::new(mapped(file, &(0..size))?), given: Mutex::default() })
    }

    /// A range; none where somebody has some of it, or had: it may have been written to.
    pub(super) fn take(&self, range: &Range<u64>) -> Option<Mapped> {
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        if start >= end || end > self.memory.len() {
            return None;
        }
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if given.range(..end).next_back().is_some_and(|(_, &last)| last > start) {
            return None;
        }
        given.insert(start, end);
        Some(Mapped { memory: self.memory.clone(), range: start..end, is_part: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_mapping_is_given_twice_and_none_outside() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i * 5) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let parts = Parts::new(&File::open(&path).unwrap(), 9000).unwrap();
        let mut middle = parts.take(&(4000..4100)).unwrap();
        for overlapping in [4000..4100, 3999..4001, 4099..5000, 4050..4051, 0..9000] {
            assert!(parts.take(&overlapping).is_none(), "{overlapping:?}");
        }
        for outside in [8999..9001, 9000..9000, 4200..4200, 0..u64::MAX] {
            assert!(parts.take(&outside).is_none(), "{outside:?}");
        }
        let (before, after) = (parts.take(&(0..4000)).unwrap(), parts.take(&(4100..9000)).unwrap());
        assert!(middle.is_part() && middle.bytes() == &bytes[4000..4100]);
        middle.bytes_mut().fill(9);
        assert!(before.bytes() == &bytes[..4000] && after.bytes() == &bytes[4100..]);
        drop(middle);
        assert!(parts.take(&(4000..4100)).is_none(), "it was written to");
        drop(parts);
        assert!(after.bytes() == &bytes[4100..] && std::fs::read(&path).unwrap() == bytes);
    }

    #[test]
    fn what_is_forgotten_takes_nothing_from_its_neighbours() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("f");
        let bytes: Vec<u8> = (0..400_000u32).map(|i| (i * 3) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let parts = Parts::new(&File::open(&path).unwrap(), 400_000).unwrap();
        let [mut first, middle, mut last] =
            [0..100_000, 100_000..300_000, 300_000..400_000].map(|range| parts.take(&range).unwrap());
        first.bytes_mut().fill(7);
        last.bytes_mut().fill(9);
        middle.populate();
        assert!(middle.bytes() == &bytes[100_000..300_000]);
        middle.forget();
        assert!(first.bytes().iter().all(|&byte| byte == 7) && last.bytes().iter().all(|&byte| byte == 9));
    }
}
