//! Which bytes of a tensor were read, and their checksums: put together to that of the whole, in whatever order they came.

use crate::error::Result;
use planaria_store::checksum;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are read together where something was not read yet.
const STEP: usize = 1 << 20;

/// A stretch of bytes: the first, how many, and their CRC-32C.
pub(crate) type Stretch = (usize, usize, u32);

/// The stretches of one tensor, none of which overlap.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<BTreeMap<usize, (usize, u32)>>);

impl Seen {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, (usize, u32)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes were read; what overlaps with bytes that were read before is left to [`Seen::sum`].
    pub(crate) fn saw(&self, first: usize, bytes: &[u8]) {
        if !bytes.is_empty() && is_free(&self.lock(), first, bytes.len()) {
            self.add((first, bytes.len(), checksum::crc32c(bytes)));
        }
    }

    /// Takes in a stretch, unless it overlaps; neighbours become one.
    pub(crate) fn add(&self, (mut first, mut len, mut sum): Stretch) {
        let mut seen = self.lock();
        if len == 0 || !is_free(&seen, first, len) {
            return;
        }
        if let Some((&before, &(size, other))) = seen.range(..first).next_back()
            && before + size == first
        {
            sum = checksum::combine(other, sum, len);
            (first, len) = (before, size + len);
        }
        if let Some((size, other)) = seen.remove(&(first + len)) {
            sum = checksum::combine(sum, other, size);
            len += size;
        }
        seen.insert(first, (len, sum));
    }

    /// All stretches.
    pub(crate) fn stretches(&self) -> Vec<Stretch> {
        self.lock().iter().map(|(first, (len, sum))| (*first, *len, *sum)).collect()
    }

    /// The checksum of all `total` bytes; `read` is asked for those that nobody has read.
    pub(crate) fn sum(
        &self,
        total: usize,
        read: impl Fn(Range<usize>, &mut [u8]) -> Result<()>,
    ) -> Result<u32> {
        let mut at = 0;
        let mut bytes = Vec::new();
        while at < total {
            let next = {
                let seen = self.lock();
                let within = seen.range(..=at).next_back().map(|(first, (len, _))| first + len);
                if let Some(end) = within.filter(|end| *end > at) {
                    at = end;
                    continue;
                }
                seen.range(at..).next().map_or(total, |(first, _)| *first)
            };
            let end = next.min(at + STEP);
            bytes.resize(end - at, 0);
            read(at..end, &mut bytes)?;
            self.add((at, end - at, checksum::crc32c(&bytes)));
            at = end;
        }
        Ok(self.lock().values().next().map_or_else(|| checksum::crc32c(&[]), |(_, sum)| *sum))
    }
}

fn is_free(seen: &BTreeMap<usize, (usize, u32)>, first: usize, len: usize) -> bool {
    seen.range(..first + len).next_back().is_none_or(|(before, (size, _))| before + size <= first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_all_bytes_whatever_was_read_and_in_which_order() {
        let all: Vec<u8> = (0..5000u32).map(|i| (i * 31 % 251) as u8).collect();
        let reads: [&[Range<usize>]; 5] = [
            &[],
            &[0..2500, 2500..5000],
            &[4000..5000, 0..1000, 2000..4000, 1000..2000],
            // What overlaps is not counted twice, and holes are read.
            &[100..200, 150..300, 0..150, 300..301, 4999..5000],
            &[0..10, 0..10, 5..6, 4000..4100, 3900..4000, 3000..4500],
        ];
        for ranges in reads {
            let seen = Seen::default();
            ranges.iter().for_each(|range| seen.saw(range.start, &all[range.clone()]));
            let sum = seen.sum(all.len(), |range, out| {
                out.copy_from_slice(&all[range]);
                Ok(())
            });
            assert_eq!(sum.unwrap(), checksum::crc32c(&all), "{ranges:?}");
            assert_eq!(seen.stretches(), [(0, 5000, checksum::crc32c(&all))], "{ranges:?}");
        }
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let all = [7u8; 300];
        let seen = Seen::default();
        seen.saw(0, &all[..100]);
        seen.saw(200, &all[200..]);
        let sum = seen.sum(300, |range, out| {
            assert_eq!(range, 100..200);
            out.fill(7);
            Ok(())
        });
        assert_eq!(sum.unwrap(), checksum::crc32c(&all));
    }
}
