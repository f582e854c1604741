//! Checksums of files whose parts are written in any order.

use flate2::Crc;
use planaria_store::checksum;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// What is summed while a file is written.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// Block size of the CRC-32C sums; none: they are not needed.
    block: Option<u64>,
    /// First byte, length and sum of parts inside one block.
    parts: Mutex<BTreeMap<u64, (u64, u32)>>,
    /// By slot and first byte: the CRC-32 of parts of slots.
    slots: Mutex<BTreeMap<(usize, u64), Crc>>,
}

impl Sums {
    pub(super) fn new(block: Option<u64>) -> Sums {
        Sums { block, ..Sums::default() }
    }

    /// Bytes of the file from `offset` on.
    pub(super) fn add(&self, offset: u64, mut bytes: &[u8]) {
        let Some(block) = self.block else { return };
        let mut at = offset;
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let len = ((at / block + 1) * block - at).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(len as usize);
            found.push((at, (len, checksum::crc32c(now))));
            at += len;
            bytes = later;
        }
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
    }

    /// Bytes of a slot, where the format wants their CRC-32.
    pub(super) fn add_slot(&self, slot: usize, offset: u64, bytes: &[u8]) {
        let mut crc = Crc::new();
        crc.update(bytes);
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).insert((slot, offset), crc);
    }

    /// The CRC-32 of a slot whose parts have all been added.
    pub(super) fn slot(&self, slot: usize) -> u32 {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Crc::new();
        slots.range((slot, 0)..=(slot, u64::MAX)).for_each(|(_, part)| all.combine(part));
        all.sum()
    }

    /// The sums of all blocks.
    pub(super) fn blocks(self) -> Vec<u32> {
        let Some(block) = self.block else { return Vec::new() };
        let mut sums: Vec<u32> = Vec::new();
        for (at, (len, sum)) in self.parts.into_inner().unwrap_or_else(PoisonError::into_inner) {
            match sums.last_mut() {
                Some(last) if !at.is_multiple_of(block) => {
                    *last = checksum::combine(*last, sum, len as usize)
                }
                _ => sums.push(sum),
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_any_order_give_the_sums_of_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let sums = Sums::new(Some(64));
        let mut whole = Crc::new();
        whole.update(&bytes[100..900]);
        for part in [500..900, 0..3, 100..500, 900..1000, 3..100] {
            sums.add(part.start as u64, &bytes[part.clone()]);
            if part.start >= 100 && part.end <= 900 {
                sums.add_slot(0, part.start as u64, &bytes[part]);
            }
        }
        sums.add_slot(1, 0, b"other");
        assert_eq!(sums.slot(0), whole.sum());
        assert_eq!(sums.blocks(), checksum::block_sums(&bytes, 64));
    }
}
