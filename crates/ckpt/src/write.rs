//! The moving part of a save: filling units from arrays and from other ranks, summing, writing.

use crate::error::{Error, Result};
use crate::manifest::SUM_BLOCK;
use crate::naming::Files;
use crate::options::{Meter, SaveOptions};
use crate::outgoing::Given;
use crate::schedule::{Leg, Schedule, Unit, blocks};
use crate::strided::{At, cast, copy_box, dense_steps};
use crate::talk;
use crate::traffic::{Flight, Post, Traffic};
use planaria_array::{Array, Bytes};
use planaria_comm::Comm;
use planaria_store::{BLOCK, Sharing, Store, Transfer, WriteJob, Writer, checksum, join};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Parts shorter than this are brought together: a call for each would cost more than a copy.
const LEAST: usize = 128 << 10;

/// Where files go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) folder: &'a str,
    pub(crate) sharing: Sharing,
}

/// Writes this rank's units of all files and makes them durable; the checksums of its blocks, to be joined by
/// [`join_sums`]. Collective.
pub(crate) fn run(
    world: &dyn Comm,
    place: &Place<'_>,
    schedule: &Schedule,
    (files, given): (&Files, &[Given]),
    options: &SaveOptions,
) -> Result<Vec<u8>> {
    let held: Result<Vec<Bytes>> = given.iter().map(|given| given.window.bytes()).collect();
    let writers = held.and_then(|held| Ok((held, open(place, schedule, files)?)));
    let (held, writers) = talk::agree(world, writers)?;
    let parts = |unit: usize| {
        if schedule.is_mine(unit) { blocks(&schedule.units[unit].range, SUM_BLOCK).count() } else { 0 }
    };
    let sums = (0..schedule.units.len()).map(|unit| (0..parts(unit)).map(|_| AtomicU32::new(0)).collect());
    let mut by_tensor: HashMap<usize, Vec<usize>> = HashMap::new();
    given.iter().enumerate().for_each(|(slot, given)| by_tensor.entry(given.tensor).or_default().push(slot));
    let saver = Saver {
        schedule,
        files,
        given,
        by_tensor,
        held,
        writers: &writers,
        sums: sums.collect(),
        post: Post::default(),
        meter: options.meter.as_deref(),
    };
    if let Some(meter) = saver.meter {
        let mine = (0..schedule.units.len()).filter(|&unit| schedule.is_mine(unit));
        meter.begin(mine.map(|unit| schedule.units[unit].range.clone()).map(|r| r.end - r.start).sum());
    }
    let transfer = options.transfer(world, schedule);
    let done = saver.write_all(world, &transfer)?;
    let sums = saver.my_sums();
    let finished = done.and_then(|()| {
        writers.into_iter().flatten().try_for_each(|writer| writer.finish()).map_err(Error::from)
    });
    talk::agree(world, finished)?;
    Ok(sums)
}

/// Opens the files of which this rank writes something.
fn open(place: &Place<'_>, schedule: &Schedule, files: &Files) -> Result<Vec<Option<Box<dyn Writer>>>> {
    let mut mine = vec![false; files.files.len()];
    let own = (0..schedule.units.len()).filter(|&unit| schedule.is_mine(unit));
    own.for_each(|unit| mine[schedule.units[unit].file] = true);
    let open = |(file, mine): (&crate::naming::NewFile, bool)| {
        let name = join(place.folder, &file.name);
        mine.then(|| place.store.writer(&name, file.layout.file_len(), place.sharing)).transpose()
    };
    Ok(files.files.iter().zip(mine).map(open).collect::<planaria_store::Result<_>>()?)
}

struct Saver<'a> {
    schedule: &'a Schedule,
    files: &'a Files,
    given: &'a [Given],
    /// This rank's boxes of each tensor.
    by_tensor: HashMap<usize, Vec<usize>>,
    held: Vec<Bytes>,
    writers: &'a [Option<Box<dyn Writer>>],
    /// By unit of this rank: the sums of its parts of blocks.
    sums: Vec<Vec<AtomicU32>>,
    post: Post,
    meter: Option<&'a Meter>,
}

impl Saver<'_> {
    /// Writes all units of this rank. A rank that has failed keeps sending, so that nobody waits for it.
    fn write_all(&self, world: &dyn Comm, transfer: &Transfer) -> Result<Result<()>> {
        let mut done = Ok(());
        let mut rounds = self.schedule.rounds.iter();
        let mut next =
            |done: &mut _| rounds.next().map(|round| self.exchange(world, round, done)).transpose();
        // The first exchange is on its way while the units are written that need none, then each next one.
        let mut coming = next(&mut done)?;
        if done.is_ok() {
            done = self.write_alone(transfer);
        }
        while let Some(flight) = coming {
            let (traffic, recv) = self.post.finish(world, flight)?;
            coming = next(&mut done)?;
            if done.is_ok() {
                done = self.write_round(transfer, &traffic, &recv);
            }
            self.post.receives.give_back(recv);
        }
        Ok(done)
    }

    /// The units that need no other rank: written from where they lie or, where that is not as it lies in the file, filled and summed block
    /// by block while they are in the cache.
    fn write_alone(&self, transfer: &Transfer) -> Result<()> {
        let units = self.schedule.alone();
        let jobs: Vec<WriteJob<'_>> = units.iter().map(|&unit| self.job(unit)).collect::<Result<_>>()?;
        let lying = |job: usize| {
            let unit = &self.schedule.units[units[job]];
            let parts = self.lying(unit).filter(|_| jobs[job].file.takes_parts())?;
            self.sum_parts(units[job], &parts);
            Some(parts)
        };
        transfer.write_each::<Error>(&jobs, lying, |job, bytes| {
            let unit = &self.schedule.units[units[job]];
            for (number, block) in blocks(&unit.range, SUM_BLOCK).enumerate() {
                let bytes = &mut bytes[within(&unit.range, &block)];
                self.put_header(unit.file, &block, bytes);
                let mut put = Ok(());
                self.schedule.legs_in(unit, &block, &mut |leg| {
                    if put.is_ok() {
                        put = self.put_own(&leg, &block, bytes);
                    }
                });
                put?;
                self.sum(units[job], number, checksum::crc32c(bytes), bytes.len());
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Begins to send what other ranks write of this rank's boxes, and to receive what it writes of theirs.
    fn exchange(&self, world: &dyn Comm, round: &[usize], done: &mut Result<()>) -> Result<Flight> {
        let traffic = Traffic::of(self.schedule, round);
        let send = self.post.sends.take(traffic.sent)?;
        if done.is_ok() {
            *done = self.pack(&traffic, &send);
        }
        self.post.start(world, traffic, send)
    }

    /// What other ranks write of this rank's boxes.
    fn pack(&self, traffic: &Traffic, send: &Array) -> Result<()> {
        send.write_bytes(0..traffic.sent, |out| {
            traffic.others.iter().try_for_each(|(leg, place)| {
                let extents = leg.region.extents();
                self.give(leg, (out, &At::dense(&extents, self.size(leg), *place)))
            })
        })?
    }

    /// Copies a box of this rank's own, in the element type of the file.
    fn give(&self, leg: &Leg, (out, at): (&mut [u8], &At<'_>)) -> Result<()> {
        let tensor = self.schedule.files.tiles[leg.tile].tensor;
        let mut left = leg.region.numel();
        for &slot in self.by_tensor.get(&tensor).into_iter().flatten() {
            let Given { window, casts, .. } = &self.given[slot];
            let Some(part) = window.region.intersect(&leg.region).filter(|_| left > 0) else { continue };
            left = left.saturating_sub(part.numel());
            let extents = part.extents();
            let (source, to) = ((&self.held[slot][..], &window.at(&part)), at.of_part(&leg.region, &part));
            if casts.is_empty() {
                copy_box(&extents, self.size(leg), source, (out, &to))?;
                continue;
            }
            let array = cast(&extents, window.dtype(), source, casts)?;
            let dense = At::dense(&extents, self.size(leg), 0);
            copy_box(&extents, self.size(leg), (&array.bytes()?, &dense), (out, &to))?;
        }
        Ok(())
    }

    fn write_round(&self, transfer: &Transfer, traffic: &Traffic, recv: &Array) -> Result<()> {
        let received = recv.bytes()?;
        let jobs: Vec<WriteJob<'_>> =
            traffic.own.iter().map(|job| self.job(job.unit)).collect::<Result<_>>()?;
        transfer.write_each::<Error>(
            &jobs,
            |_| None,
            |number, bytes| {
                let job = &traffic.own[number];
                let unit = &self.schedule.units[job.unit];
                self.put_header(unit.file, &unit.range, bytes);
                for (leg, place) in &job.legs {
                    match place {
                        None => self.put_own(leg, &unit.range, bytes)?,
                        Some(place) => {
                            let extents = leg.region.extents();
                            let dense = At::dense(&extents, self.size(leg), *place);
                            let target = (&mut *bytes, &self.at(leg, &unit.range));
                            copy_box(&extents, self.size(leg), (&received, &dense), target)?;
                        }
                    }
                }
                for (number, block) in blocks(&unit.range, SUM_BLOCK).enumerate() {
                    let bytes = &bytes[within(&unit.range, &block)];
                    self.sum(job.unit, number, checksum::crc32c(bytes), bytes.len());
                }
                Ok(())
            },
        )?;
        Ok(())
    }

    fn job(&self, unit: usize) -> Result<WriteJob<'_>> {
        let unit = &self.schedule.units[unit];
        let writer = self.writers[unit.file].as_deref().ok_or_else(|| Error::Malformed {
            file: self.files.files[unit.file].name.clone(),
            what: "it was not opened by its writer".into(),
        })?;
        Ok(WriteJob { file: writer, range: unit.range.clone() })
    }

    fn size(&self, leg: &Leg) -> usize {
        self.schedule.files.tiles[leg.tile].size
    }

    fn put_own(&self, leg: &Leg, range: &Range<u64>, out: &mut [u8]) -> Result<()> {
        self.give(leg, (out, &self.at(leg, range)))
    }

    /// Where a box lies in the bytes `range` of its file.
    fn at(&self, leg: &Leg, range: &Range<u64>) -> At<'_> {
        let tile = &self.schedule.files.tiles[leg.tile];
        At { start: (tile.byte_of(&leg.region) - range.start) as usize, steps: Cow::Borrowed(&tile.steps) }
    }

    fn put_header(&self, file: usize, range: &Range<u64>, out: &mut [u8]) {
        let header = self.files.files[file].layout.header();
        let end = (header.len() as u64).min(range.end);
        if range.start < end {
            let part = &header[range.start as usize..end as usize];
            out[..part.len()].copy_from_slice(part);
        }
    }

    /// The parts of a unit that lie in this rank's memory as they will in the file, one after the other; nothing where any byte does not,
    /// or where whole blocks of the file are not whole blocks in memory, which the storage could not be given as they are.
    fn lying(&self, unit: &Unit) -> Option<Vec<&[u8]>> {
        let (mut parts, mut at) = (Vec::new(), Some(unit.range.start));
        self.schedule.legs_in(unit, &unit.range, &mut |leg| {
            let part = at.and_then(|at| self.part(&leg, at));
            at = at.zip(part).map(|(at, part)| at + part.len() as u64);
            parts.extend(part);
        });
        (at == Some(unit.range.end)).then_some(parts)
    }

    /// A box of this rank's own whose first byte in the file is `at`.
    fn part(&self, leg: &Leg, at: u64) -> Option<&[u8]> {
        let tile = &self.schedule.files.tiles[leg.tile];
        let whole = |slot: &&usize| {
            let Given { window, casts, .. } = &self.given[**slot];
            casts.is_empty() && window.region.contains(&leg.region)
        };
        let &slot = self.by_tensor.get(&tile.tensor)?.iter().find(whole)?;
        let (extents, from) = (leg.region.extents(), self.given[slot].window.at(&leg.region));
        let dense = dense_steps(&extents, tile.size);
        let lies = |steps: &[isize]| {
            extents.iter().zip(steps).zip(&dense).all(|((&extent, step), dense)| extent <= 1 || step == dense)
        };
        let bytes = self.held[slot].get(from.start..from.start + leg.len)?;
        let blocks = (bytes.as_ptr() as u64).wrapping_sub(at).is_multiple_of(BLOCK as u64);
        let fits = leg.len >= LEAST && tile.byte_of(&leg.region) == at && blocks;
        (fits && lies(&from.steps) && lies(&tile.steps)).then_some(bytes)
    }

    /// Sums the blocks of a unit that lies in parts.
    fn sum_parts(&self, unit: usize, parts: &[&[u8]]) {
        let mut rest = parts.iter().copied();
        let mut now = rest.next().unwrap_or_default();
        for (number, block) in blocks(&self.schedule.units[unit].range, SUM_BLOCK).enumerate() {
            let len = (block.end - block.start) as usize;
            let (mut sum, mut left) = (0, len);
            while left > 0 {
                let (first, behind) = now.split_at(left.min(now.len()));
                sum = checksum::append(sum, first);
                left -= first.len();
                now = behind;
                if now.is_empty() {
                    match rest.next() {
                        Some(next) => now = next,
                        None => break,
                    }
                }
            }
            self.sum(unit, number, sum, len);
        }
    }

    fn sum(&self, unit: usize, part: usize, sum: u32, len: usize) {
        self.sums[unit][part].store(sum, Relaxed);
        if let Some(meter) = self.meter {
            meter.add(len as u64);
        }
    }

    /// The sums of this rank's units: file, first byte, one past the last, then a sum for each part of a block.
    fn my_sums(&self) -> Vec<u8> {
        let mut told = Vec::new();
        for (unit, sums) in self.schedule.units.iter().zip(&self.sums).filter(|(_, sums)| !sums.is_empty()) {
            for number in [unit.file as u64, unit.range.start, unit.range.end] {
                told.extend(number.to_le_bytes());
            }
            told.extend(sums.iter().flat_map(|sum| sum.load(Relaxed).to_le_bytes()));
        }
        told
    }
}

/// Where a part of a range lies in memory that holds the range.
fn within(range: &Range<u64>, part: &Range<u64>) -> Range<usize> {
    (part.start - range.start) as usize..(part.end - range.start) as usize
}

/// The checksums of every file, from what each rank sent. Every byte must have been summed once.
pub(crate) fn join_sums(ranks: &[Vec<u8>], files: &Files) -> Result<Vec<Vec<u32>>> {
    let wrong = |what: String| Error::Malformed { file: "a message between ranks".into(), what };
    let mut parts: Vec<(u64, u64, u64, u32)> = Vec::new();
    for (rank, told) in ranks.iter().enumerate() {
        let mut left = &told[..];
        while !left.is_empty() {
            let cut = || wrong(format!("rank {rank} sent checksums that end too early"));
            let [file, start, end] = [(); 3].map(|()| take(&mut left).map(u64::from_le_bytes));
            let (file, range) = (file.ok_or_else(cut)?, start.ok_or_else(cut)?..end.ok_or_else(cut)?);
            for part in blocks(&range, SUM_BLOCK) {
                let sum = take(&mut left).map(u32::from_le_bytes).ok_or_else(cut)?;
                parts.push((file, part.start, part.end, sum));
            }
        }
    }
    parts.sort_unstable();
    let mut parts = parts.into_iter().peekable();
    let mut all = Vec::with_capacity(files.files.len());
    for (number, file) in files.files.iter().enumerate() {
        let (size, mut at) = (file.layout.file_len(), 0);
        let mut sums = vec![0; size.div_ceil(SUM_BLOCK) as usize];
        while let Some((_, start, end, sum)) = parts.next_if(|part| part.0 == number as u64 && part.1 == at) {
            // The parts of a block come in order.
            let joined = &mut sums[(start / SUM_BLOCK) as usize];
            *joined = match start.is_multiple_of(SUM_BLOCK) {
                true => sum,
                false => checksum::combine(*joined, sum, (end - start) as usize),
            };
            at = end;
        }
        if at != size {
            return Err(wrong(format!("'{}' has no checksum at byte {at} of {size}", file.name)));
        }
        all.push(sums);
    }
    Ok(all)
}

/// The first bytes of a slice, which then begins behind them.
fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>()?;
    *from = rest;
    Some(*first)
}
