//! A file whose blocks have checksums: every block is checked before the first byte of it is handed out.

use crate::formats::FileSums;
use planaria_store::{Reader, Result, checksum};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[derive(Debug)]
pub(super) struct Verified {
    file: Box<dyn Reader>,
    sums: Arc<FileSums>,
    checked: Vec<AtomicBool>,
}

impl Verified {
    pub(super) fn new(file: Box<dyn Reader>, sums: Arc<FileSums>) -> Verified {
        let checked = sums.sums.iter().map(|_| AtomicBool::new(false)).collect();
        Verified { file, sums, checked }
    }

    /// Checks the blocks that `into`, read from `offset`, has bytes of. Those it holds whole are not read again.
    fn check(&self, offset: u64, into: &[u8]) -> Result<()> {
        let block = self.sums.block;
        let end = offset + into.len() as u64;
        for number in offset / block..end.div_ceil(block) {
            // A file that has grown has no sums there; its size is checked elsewhere.
            let Some(checked) = self.checked.get(number as usize) else { return Ok(()) };
            if checked.load(Relaxed) {
                continue;
            }
            let range = number * block..((number + 1) * block).min(self.file.size());
            let expected = self.sums.sums[number as usize];
            if offset <= range.start && range.end <= end {
                let bytes = &into[(range.start - offset) as usize..(range.end - offset) as usize];
                checksum::check(self.file.name(), range.start, bytes, expected)?;
            } else {
                let bytes = self.file.read(range.start, (range.end - range.start) as usize)?;
                checksum::check(self.file.name(), range.start, &bytes, expected)?;
            }
            checked.store(true, Relaxed);
        }
        Ok(())
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
        let read = self.file.read_at(offset, into)?;
        self.check(offset, &into[..read])?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_store::{Error, Object, Store, StoreExt};

    #[test]
    fn a_flipped_bit_is_found_by_whoever_touches_its_block() {
        let store = Object::memory();
        let mut bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let sums = Arc::new(FileSums { block: 64, sums: checksum::block_sums(&bytes, 64) });
        bytes[300] ^= 4;
        store.write("f", &bytes).unwrap();
        let open = || Verified::new(store.reader("f").unwrap(), sums.clone());
        let read = |file: &Verified, at: u64, len: usize| file.read_at(at, &mut vec![0; len]);
        let file = open();
        assert_eq!(read(&file, 0, 256).unwrap(), 256);
        assert_eq!(read(&file, 321, 700).unwrap(), 679, "to the end of the file");
        for (at, len) in [(256, 1), (319, 2), (0, 1000), (300, 1)] {
            let error = read(&open(), at, len).unwrap_err();
            assert!(matches!(error, Error::Checksum { start: 256, end: 320, .. }), "{error}");
        }
    }
}
