//! Filling files: parts are made in staging memory by a few threads, summed and written, in bounded memory.

use super::Observer;
use super::made::{Made, Scratch};
use super::sums::Sums;
use crate::error::{Error, Result};
use crate::formats::write::{NewFile, Slot};
use crate::stream::Feed;
use planaria_layout::{Region, flat_boxes};
use planaria_store::{Sharing, Store, Transfer, TransferOptions, WriteJob, join};
use std::cell::RefCell;
use std::ops::Range;

/// Bytes that reads through scratch memory take, per thread.
const SCRATCH: usize = 4 << 20;

thread_local! {
    /// Kept between the parts that a thread makes.
    static MEMORY: RefCell<Scratch> = RefCell::default();
}

/// Whether there are tensors whose rows are spread over the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    None,
    Some,
}

/// Memory for the work, divided: many threads with small parts, and two with large parts for tensors whose rows are
/// spread over the source.
#[derive(Debug)]
pub(super) struct Crew {
    small: Transfer,
    /// None where no tensor is spread.
    large: Option<Transfer>,
}

impl Crew {
    /// Divides `budget` bytes; `widening` is how many bytes of values stand behind one byte that is written.
    pub(super) fn new(budget: u64, widening: usize, spread: Spread) -> Crew {
        let budget = usize::try_from(budget).unwrap_or(usize::MAX / 2);
        // More than cores: most of them wait for the storage, to read or to write.
        let threads = (budget / (4 * SCRATCH)).clamp(1, 8);
        let (for_small, for_large) =
            if spread == Spread::Some { (budget / 4, budget / 2) } else { (budget / 2, 0) };
        // A part in staging, and its values before a cast.
        let share = 1 + widening;
        let per_thread = (for_small / threads).saturating_sub(SCRATCH);
        let options = |threads, chunk| TransferOptions { threads, chunk, ..TransferOptions::default() };
        let small = options(threads, (per_thread / share).clamp(64 << 10, 4 << 20));
        let pair = threads.min(2);
        let large = (spread == Spread::Some).then(|| options(pair, (for_large / pair / share).max(64 << 10)));
        Crew { small: Transfer::new(small), large: large.map(Transfer::new) }
    }
}

/// What is to be written, and from what.
pub(super) struct Work<'a> {
    pub(super) feed: &'a Feed<'a>,
    pub(super) made: &'a [Made],
    pub(super) observer: &'a dyn Observer,
    /// Block size of the sums, where they are needed.
    pub(super) block: Option<u64>,
}

impl Work<'_> {
    /// Writes one file durably; the checksums of its blocks.
    pub(super) fn write(
        &self,
        crew: &Crew,
        store: &dyn Store,
        folder: &str,
        file: &NewFile,
    ) -> Result<Vec<u32>> {
        let writer = store.writer(&join(folder, &file.name), file.len, Sharing::Threads)?;
        let sums = Sums::new(self.block);
        let (small, large) = self.ranges(file);
        for (transfer, ranges) in [(Some(&crew.small), small), (crew.large.as_ref(), large)] {
            let Some(transfer) = transfer else { continue };
            let jobs: Vec<WriteJob<'_>> =
                ranges.into_iter().map(|range| WriteJob { file: &*writer, range }).collect();
            transfer.write::<Error>(&jobs, |_, offset, bytes| {
                self.fill(file, offset, bytes, &sums)?;
                sums.add(offset, bytes);
                self.observer.moved(bytes.len() as u64).then_some(()).ok_or(Error::Stopped)
            })?;
        }
        for tail in &file.tails {
            let bytes = tail.bytes(tail.slot.map_or(0, |slot| sums.slot(slot)));
            writer.write_at(tail.offset, &bytes)?;
            sums.add(tail.offset, &bytes);
        }
        writer.finish()?;
        Ok(sums.blocks())
    }

    /// The ranges to be filled before the tails: in small parts, and in large ones.
    fn ranges(&self, file: &NewFile) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let large: Vec<Range<u64>> = file
            .slots
            .iter()
            .filter(|slot| self.made[slot.tensor].is_rearranged())
            .map(|slot| slot.offset..slot.offset + slot.len)
            .collect();
        let tails = file.tails.iter().map(|tail| tail.offset..tail.offset + tail.len);
        let mut apart: Vec<Range<u64>> = large.iter().cloned().chain(tails).collect();
        apart.sort_by_key(|range| range.start);
        let mut small = Vec::new();
        let mut at = 0;
        for range in apart {
            if at < range.start {
                small.push(at..range.start);
            }
            at = range.end;
        }
        if at < file.len {
            small.push(at..file.len);
        }
        (small, large)
    }

    /// Makes the bytes of the file from `offset` on.
    fn fill(&self, file: &NewFile, offset: u64, out: &mut [u8], sums: &Sums) -> Result<()> {
        let range = offset..offset + out.len() as u64;
        let first =
            file.frames.partition_point(|frame| frame.offset + frame.bytes.len() as u64 <= range.start);
        for frame in file.frames[first..].iter().take_while(|frame| frame.offset < range.end) {
            let end = frame.offset + frame.bytes.len() as u64;
            let (from, to) = (range.start.max(frame.offset), range.end.min(end));
            let part = &frame.bytes[(from - frame.offset) as usize..(to - frame.offset) as usize];
            out[(from - range.start) as usize..][..part.len()].copy_from_slice(part);
        }
        let first = file.slots.partition_point(|slot| slot.offset + slot.len <= range.start);
        for (number, slot) in file.slots.iter().enumerate().skip(first) {
            if slot.offset >= range.end {
                break;
            }
            let (from, to) = (range.start.max(slot.offset), range.end.min(slot.offset + slot.len));
            let part = &mut out[(from - range.start) as usize..(to - range.start) as usize];
            MEMORY.with_borrow_mut(|scratch| self.fill_slot(slot, from - slot.offset, part, scratch))?;
            if !file.tails.is_empty() {
                sums.add_slot(number, from, part);
            }
        }
        Ok(())
    }

    /// Makes the bytes of a slot from its byte `start` on. Parts begin and end between elements: slots are aligned
    /// to their elements, and parts are cut at multiples of more than that.
    fn fill_slot(&self, slot: &Slot, start: u64, mut out: &mut [u8], scratch: &mut Scratch) -> Result<()> {
        let made = &self.made[slot.tensor];
        let size = made.dtype.size();
        let first = start as usize / size;
        for inner in flat_boxes(&slot.region.extents(), first..first + out.len() / size) {
            let want = shifted(&inner, slot.region.lo())?;
            let (now, later) = out.split_at_mut(want.numel() * size);
            made.fill(self.feed, &want, now, scratch)?;
            out = later;
        }
        Ok(())
    }
}

fn shifted(region: &Region, by: &[usize]) -> Result<Region> {
    let move_up = |at: &[usize]| -> Vec<usize> { at.iter().zip(by).map(|(a, b)| a + b).collect() };
    let moved = Region::new(&move_up(region.lo()), &move_up(region.hi()));
    moved.map_err(|problem| Error::Tiles { tensor: "a box".to_string(), problem })
}
