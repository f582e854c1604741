//! Checksums of files whose parts are written in any order.

use crate::error::{Error, Result};
use flate2::Crc;
use planaria_store::checksum;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What is summed while a file is written.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// Block size of the CRC-32C sums; none: they are not needed.
    block: Option<u64>,
    /// First byte, length and sum of parts inside one block.
    parts: Mutex<BTreeMap<u64, (u64, u32)>>,
    slots: Mutex<Slots>,
    /// Rings when a slot has got a further part.
    grown: Condvar,
}

#[derive(Debug, Default)]
struct Slots {
    /// By slot and first byte: the length and the CRC-32 of parts of slots.
    parts: BTreeMap<(usize, u64), (u64, Crc)>,
    /// Some part will not come.
    given_up: bool,
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
        self.lock().parts.insert((slot, offset), (bytes.len() as u64, crc));
        self.grown.notify_all();
    }

    /// The CRC-32 of a slot of `len` bytes, once all its parts have been added.
    pub(super) fn slot(&self, slot: usize, len: u64) -> Result<u32> {
        let mut slots = self.lock();
        loop {
            let parts = || slots.parts.range((slot, 0)..=(slot, u64::MAX)).map(|(_, part)| part);
            if parts().map(|(bytes, _)| bytes).sum::<u64>() == len {
                let mut all = Crc::new();
                parts().for_each(|(_, part)| all.combine(part));
                return Ok(all.sum());
            }
            if slots.given_up {
                return Err(Error::Stopped);
            }
            slots = self.grown.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Some part will not be added; nobody shall wait for it.
    pub(super) fn give_up(&self) {
        self.lock().given_up = true;
        self.grown.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sums of parts, as ranks tell them: first byte, length and sum.
    pub(super) fn told(&self) -> Vec<(u64, u64, u32)> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().map(|(at, (len, sum))| (*at, *len, *sum)).collect()
    }

    /// Parts that another rank has written.
    pub(super) fn hear(&self, told: Vec<(u64, u64, u32)>) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.extend(told.into_iter().map(|(at, len, sum)| (at, (len, sum))));
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
        assert_eq!(sums.slot(0, 800).unwrap(), whole.sum());
        assert_eq!(sums.blocks(), checksum::block_sums(&bytes, 64));
    }
    #[test]
    fn whoever_needs_a_sum_waits_for_its_last_part_and_no_longer() {
        let sums = Sums::new(None);
        sums.add_slot(0, 10, b"ab");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sums.slot(0, 4));
            sums.add_slot(0, 12, b"cd");
            let mut whole = Crc::new();
            whole.update(b"abcd");
            assert_eq!(waiting.join().unwrap().unwrap(), whole.sum());
            let waiting = scope.spawn(|| sums.slot(0, 5));
            sums.give_up();
            assert!(matches!(waiting.join().unwrap(), Err(Error::Stopped)));
        });
    }
}
