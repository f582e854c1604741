//! A file whose blocks have checksums: every block is checked before the first byte of it is handed out, and read
//! once even where neighbours share it.

use super::ours::FileSums;
use super::source::Key;
use crate::error;
use planaria_store::{Reader, Result, Staging, checksum};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of blocks that are kept because somebody is likely to want the rest of them.
const KEPT: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct Verified {
    file: Box<dyn Reader>,
    sums: Arc<FileSums>,
    checked: Vec<AtomicBool>,
    /// Blocks of which a part was wanted, the youngest last.
    kept: Mutex<VecDeque<(u64, Arc<Mutex<Kept>>)>>,
    /// Memory of blocks that are no longer kept.
    free: Mutex<Vec<Staging>>,
}

/// A block in memory.
#[derive(Debug, Default)]
struct Kept {
    /// None until it has been read.
    bytes: Option<Staging>,
    /// Bytes that have been handed out.
    used: u64,
}

impl Verified {
    pub(super) fn new(file: Box<dyn Reader>, sums: Arc<FileSums>) -> Verified {
        let checked = sums.sums.iter().map(|_| AtomicBool::new(false)).collect();
        Verified { file, sums, checked, kept: Mutex::default(), free: Mutex::default() }
    }

    fn block(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.sums.block);
        start..start.saturating_add(self.sums.block).min(self.file.size())
    }

    fn is_checked(&self, number: u64) -> bool {
        // A file that has grown has no sums there; its size is checked elsewhere.
        self.checked.get(number as usize).is_none_or(|checked| checked.load(Relaxed))
    }

    /// Compares a whole block with its sum.
    fn check(&self, number: u64, bytes: &[u8]) -> Result<()> {
        if !self.is_checked(number) {
            let expected = self.sums.sums[number as usize];
            checksum::check(self.file.name(), self.block(number).start, bytes, expected)?;
            self.checked[number as usize].store(true, Relaxed);
        }
        Ok(())
    }

    /// Hands out a part of a block that is kept, or is read now for this and for whoever wants the rest.
    fn take_part(&self, number: u64, part: Range<u64>, into: &mut [u8]) -> Result<()> {
        let whole = self.block(number);
        let len = (whole.end - whole.start) as usize;
        let kept = self.keep(number);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes.is_none() {
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut bytes =
                free.unwrap_or_else(|| Staging::new(self.sums.block.min(self.file.size()) as usize));
            self.file.read_into(whole.start, &mut bytes.bytes_mut()[..len])?;
            self.check(number, &bytes.bytes()[..len])?;
            kept.bytes = Some(bytes);
        }
        if let Some(bytes) = &kept.bytes {
            let at = (part.start - whole.start) as usize;
            into.copy_from_slice(&bytes.bytes()[at..at + into.len()]);
        }
        kept.used += into.len() as u64;
        if kept.used >= len as u64 {
            self.release(number, kept.bytes.take());
        }
        Ok(())
    }

    /// The place of a block among those that are kept.
    fn keep(&self, number: u64) -> Arc<Mutex<Kept>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = kept.iter().find(|(other, _)| *other == number) {
            return found.clone();
        }
        if kept.len() as u64 >= (KEPT / self.sums.block).max(1)
            && let Some((_, old)) = kept.pop_front()
            && let Some(old) = Arc::into_inner(old)
        {
            let bytes = old.into_inner().unwrap_or_else(PoisonError::into_inner).bytes;
            self.free.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        }
        let new = Arc::new(Mutex::default());
        kept.push_back((number, Arc::clone(&new)));
        new
    }

    fn release(&self, number: u64, bytes: Option<Staging>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).retain(|(other, _)| *other != number);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
    }

    /// Whether a block is in memory, or is being read.
    fn is_kept(&self, number: u64) -> bool {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().any(|(other, _)| *other == number)
    }
}

impl Reader for Verified {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let block = self.sums.block;
        let (start, end) = (offset, offset.saturating_add(into.len() as u64).min(self.file.size()));
        if start >= end {
            return Ok(0);
        }
        let part = |range: &Range<u64>| (range.start - start) as usize..(range.end - start) as usize;
        let (first, last) = (start / block, (end - 1) / block);
        // Blocks of which only a part is wanted come from memory, the rest straight from the file.
        let mut straight = start..end;
        for number in [first, last].into_iter().take(if first == last { 1 } else { 2 }) {
            let whole = self.block(number);
            let edge = whole.start.max(start)..whole.end.min(end);
            if edge == whole || (self.is_checked(number) && !self.is_kept(number)) {
                continue;
            }
            self.take_part(number, edge.clone(), &mut into[part(&edge)])?;
            match number == first {
                true => straight.start = edge.end,
                false => straight.end = edge.start,
            }
        }
        if straight.start >= straight.end {
            return Ok((end - start) as usize);
        }
        let read = self.file.read_at(straight.start, &mut into[part(&straight)])?;
        for number in straight.start / block..straight.end.div_ceil(block) {
            let whole = self.block(number);
            if whole.start >= straight.start && whole.end <= straight.start + read as u64 {
                self.check(number, &into[part(&whole)])?;
            }
        }
        // Short only where the file has been cut meanwhile; what lies behind the cut does not count.
        if straight.start + (read as u64) < straight.end {
            return Ok((straight.start - start) as usize + read);
        }
        Ok((end - start) as usize)
    }
}

/// Damage with the name of the tensor that was being read.
pub(crate) fn named(found: error::Error, key: &Key, sums: &BTreeMap<String, Arc<FileSums>>) -> error::Error {
    match found {
        error::Error::Store(planaria_store::Error::Checksum { name, start, end, found, expected }) => {
            let block = start / sums.get(&name).map_or(1, |sums| sums.block);
            error::Error::Damaged { tensor: key.to_string(), file: name, block, start, end, found, expected }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_store::{Error, Object, Store, StoreExt};

    fn stored(damage: Option<usize>) -> (Object, Vec<u8>, Arc<FileSums>) {
        let store = Object::memory();
        let mut bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let sums = Arc::new(FileSums { block: 64, sums: checksum::block_sums(&bytes, 64) });
        damage.into_iter().for_each(|at| bytes[at] ^= 4);
        store.write("f", &bytes).unwrap();
        (store, bytes, sums)
    }

    #[test]
    fn a_flipped_bit_is_found_by_whoever_touches_its_block() {
        let (store, _, sums) = stored(Some(300));
        let open = || Verified::new(store.reader("f").unwrap(), sums.clone());
        let read = |file: &Verified, at: u64, len: usize| file.read_at(at, &mut vec![0; len]);
        let file = open();
        assert_eq!(read(&file, 0, 256).unwrap(), 256);
        assert_eq!(read(&file, 321, 700).unwrap(), 679, "to the end of the file");
        for (at, len) in [(256, 1), (319, 2), (0, 1000), (300, 1), (250, 10), (310, 100)] {
            let error = read(&open(), at, len).unwrap_err();
            assert!(matches!(error, Error::Checksum { start: 256, end: 320, .. }), "{error}");
        }
    }

    /// Counts the bytes that are read.
    #[derive(Debug)]
    struct Counted(Box<dyn Reader>, Arc<std::sync::atomic::AtomicUsize>);

    impl Reader for Counted {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
            let read = self.0.read_at(offset, into)?;
            self.1.fetch_add(read, Relaxed);
            Ok(read)
        }
    }

    #[test]
    fn neighbours_that_share_a_block_read_it_once() {
        let (store, bytes, sums) = stored(None);
        for step in [1, 7, 64, 100, 333, 1000] {
            let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let counted = Counted(store.reader("f").unwrap(), count.clone());
            let file = Verified::new(Box::new(counted), sums.clone());
            for at in (0..1000).step_by(step) {
                let mut into = vec![0; step.min(1000 - at)];
                assert_eq!(file.read_at(at as u64, &mut into).unwrap(), into.len());
                assert_eq!(into, bytes[at..at + into.len()], "{at} in steps of {step}");
            }
            assert_eq!(count.load(Relaxed), 1000, "in steps of {step}");
            assert!(file.kept.lock().unwrap().is_empty(), "nothing is kept when all was handed out");
        }
    }
}
