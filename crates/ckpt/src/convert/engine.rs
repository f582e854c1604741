//! Filling files: parts are made in staging memory by a few threads, summed and written, in bounded memory.

use super::Observer;
use super::division::{Division, Todo};
use super::late::Late;
use super::made::{Made, Scratch};
use super::range::Beyond;
use super::sums::Sums;
use crate::error::{Error, Result};
use crate::formats::write::{NewFile, Slot};
use crate::stream::Feed;
use planaria_layout::{Region, flat_boxes};
use planaria_store::{Store, Transfer, TransferOptions, WriteJob, join};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

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
        let threads = (budget / (4 * SCRATCH)).clamp(1, 16);
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
    /// By number of the tensor.
    pub(super) beyond: &'a Beyond,
    pub(super) observer: &'a dyn Observer,
}

impl Work<'_> {
    /// Writes what is to be done of files durably, and adds to the sums of their blocks. Files are filled one after the other
    /// without a pause between them: while one is made durable, the next is on its way already.
    pub(super) fn write(
        &self,
        crew: &Crew,
        (store, folder): (&dyn Store, &str),
        files: &[NewFile],
        (todo, division): (&Todo, &Division<'_>),
        sums: &[Sums],
    ) -> Result<()> {
        let open = |(number, file): (usize, &NewFile)| {
            let left = todo[number].iter().map(|range| range.end - range.start).sum();
            let file = Late::new(store, join(folder, &file.name), file.len).partly(left);
            file.noted(division.journal, number)
        };
        let targets: Vec<Late<'_>> = files.iter().enumerate().map(open).collect();
        let whole = |numbers: Range<usize>| -> Vec<(usize, Range<u64>)> {
            numbers.flat_map(|number| of(number, todo[number].clone())).collect()
        };
        let mut first = 0;
        for (number, file) in files.iter().enumerate() {
            let (small, large) = self.ranges(file);
            let (small, large) = (common(&small, &todo[number]), common(&large, &todo[number]));
            if large.is_empty() {
                continue;
            }
            // Large parts come first: small ones may hold what depends on their sums.
            self.fill_all(&crew.small, (files, &targets, sums), whole(first..number))?;
            self.fill_all(
                crew.large.as_ref().unwrap_or(&crew.small),
                (files, &targets, sums),
                of(number, large),
            )?;
            self.fill_all(&crew.small, (files, &targets, sums), of(number, small))?;
            first = number + 1;
        }
        self.fill_all(&crew.small, (files, &targets, sums), whole(first..files.len()))
    }

    /// Fills ranges of files, in order.
    fn fill_all(
        &self,
        transfer: &Transfer,
        (files, targets, sums): (&[NewFile], &[Late<'_>], &[Sums]),
        ranges: Vec<(usize, Range<u64>)>,
    ) -> Result<()> {
        let jobs: Vec<WriteJob<'_>> = ranges
            .iter()
            .map(|(number, range)| WriteJob { file: &targets[*number], range: range.clone() })
            .collect();
        let failed = Mutex::new(None);
        let done = transfer.write::<Error>(&jobs, |job, offset, bytes| {
            let number = ranges[job].0;
            // Whoever waits for a sum of this part is told when there will be none.
            let mut unfinished = Unfinished { sums: &sums[number], done: false };
            let filled = self.fill(&files[number], offset, bytes, &sums[number]).and_then(|()| {
                sums[number].add(offset, bytes);
                self.observer.moved(bytes.len() as u64).then_some(()).ok_or(Error::Stopped)
            });
            unfinished.done = filled.is_ok();
            filled.map_err(|error| {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                Error::Stopped
            })
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(first) => Err(first),
            None => done.map(|_| ()),
        }
    }

    /// The ranges of a file that are filled in small parts, and those in large ones.
    fn ranges(&self, file: &NewFile) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let rearranged = file.slots.iter().filter(|slot| self.made[slot.tensor].is_rearranged());
        let large: Vec<Range<u64>> = rearranged.map(|slot| slot.offset..slot.offset + slot.len).collect();
        let mut small = Vec::new();
        let mut at = 0;
        for range in &large {
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
            put(&range, out, frame.offset, &frame.bytes);
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
        // The sum of a slot that begins in an earlier part comes from another thread, which never waits for this one.
        let first = file.tails.partition_point(|tail| tail.offset + tail.len <= range.start);
        for tail in file.tails[first..].iter().take_while(|tail| tail.offset < range.end) {
            let crc = tail.slot.map_or(Ok(0), |slot| sums.slot(slot, file.slots[slot].len))?;
            put(&range, out, tail.offset, &tail.bytes(crc));
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
        self.beyond.add(slot.tensor, std::mem::take(&mut scratch.beyond));
        Ok(())
    }
}

/// What is in ranges of both lists, in order.
fn common(one: &[Range<u64>], other: &[Range<u64>]) -> Vec<Range<u64>> {
    let pairs = one.iter().flat_map(|a| other.iter().map(move |b| a.start.max(b.start)..a.end.min(b.end)));
    pairs.filter(|range| range.start < range.end).collect()
}

/// Ranges of one file.
fn of(number: usize, ranges: Vec<Range<u64>>) -> Vec<(usize, Range<u64>)> {
    ranges.into_iter().map(|range| (number, range)).collect()
}

/// Puts what a range has of the bytes at `offset` into its place.
fn put(range: &Range<u64>, out: &mut [u8], offset: u64, bytes: &[u8]) {
    let (from, to) = (range.start.max(offset), range.end.min(offset + bytes.len() as u64));
    let part = &bytes[(from - offset) as usize..(to - offset) as usize];
    out[(from - range.start) as usize..][..part.len()].copy_from_slice(part);
}

/// Wakes those who wait for a sum when its part is given up.
struct Unfinished<'a> {
    sums: &'a Sums,
    done: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.sums.give_up();
        }
    }
}

fn shifted(region: &Region, by: &[usize]) -> Result<Region> {
    let move_up = |at: &[usize]| -> Vec<usize> { at.iter().zip(by).map(|(a, b)| a + b).collect() };
    let moved = Region::new(&move_up(region.lo()), &move_up(region.hi()));
    moved.map_err(|problem| Error::Tiles { tensor: "a box".to_string(), problem })
}
