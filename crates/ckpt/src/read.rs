//! The moving part of a load: reading units, checking their blocks, filling arrays here and on other ranks.

use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::outgoing::rearranged;
use crate::schedule::{Job, Leg, Schedule, Traffic};
use crate::strided::{At, Window, copy_box, packed};
use crate::talk;
use planaria_aoa::Rearrange;
use planaria_array::{Array, DType};
use planaria_comm::{AllToAll, Call, Comm, CommExt, Pending};
use planaria_store::{Reader, Store, Transfer, checksum};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Files of tensors.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    /// Full names in the store.
    pub(crate) files: Vec<String>,
    pub(crate) sizes: Vec<u64>,
    /// Checksums of the blocks of each file, where there are any.
    pub(crate) sums: Option<Vec<Vec<u32>>>,
    pub(crate) block: u64,
}

/// Where a box that this rank asked for goes.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) window: Window,
    /// Element type in the files.
    pub(crate) stored: DType,
    /// Types that elements pass through, the last being that of the window.
    pub(crate) casts: Vec<DType>,
    /// What remains to be done when the box is complete.
    pub(crate) after: Option<After>,
}

/// A block that is rearranged in ways that a copy of boxes cannot express.
#[derive(Clone, Debug)]
pub(crate) struct After {
    pub(crate) block: Array,
    pub(crate) steps: Vec<Rearrange>,
    pub(crate) casts: Vec<DType>,
    /// Where it goes.
    pub(crate) view: Array,
}

impl After {
    fn finish(&self) -> Result<()> {
        let mut array = rearranged(&self.block, &self.steps)?;
        for dtype in &self.casts {
            array = array.cast(*dtype)?;
        }
        Ok(self.view.copy_from(&array)?)
    }
}

impl Slot {
    /// Fills a part of the box.
    fn fill(&self, part: &planaria_layout::Region, source: (&[u8], &At<'_>)) -> Result<()> {
        if self.casts.is_empty() {
            return self.window.fill(part, source);
        }
        let extents = part.extents();
        let mut array = packed(&extents, self.stored, source)?;
        for dtype in &self.casts {
            array = array.cast(*dtype)?;
        }
        let dense = At::dense(&extents, self.window.dtype().size(), 0);
        self.window.fill(part, (&array.contiguous()?.bytes()?, &dense))
    }
}

/// The name of the tensor of a tile.
type Describe<'a> = dyn Fn(usize) -> String + Sync + 'a;

/// Carries out a schedule; the bytes read by all ranks, and the bytes that went to arrays. Collective.
pub(crate) fn run(
    world: &dyn Comm,
    store: &dyn Store,
    data: &Data,
    schedule: &Schedule,
    slots: &[Slot],
    options: &LoadOptions,
    describe: &Describe<'_>,
) -> Result<(u64, u64)> {
    let readers = talk::agree(world, open(world, store, data, schedule))?;
    let transfer = options.transfer(world, schedule);
    let loader =
        Loader { data, schedule, slots, readers, transfer: &transfer, describe, loaded: AtomicU64::new(0) };
    let mut done = loader.read_alone(world.rank());
    loader.read_rounds(world, &mut done)?;
    let finished = done.and_then(|read| {
        slots.iter().filter_map(|slot| slot.after.as_ref()).try_for_each(After::finish).map(|()| read)
    });
    let read = talk::agree(world, finished)?;
    let counts = talk::all_gather(world, [read, loader.loaded.load(Relaxed)])?;
    Ok(counts.iter().fold((0, 0), |(read, loaded), count| (read + count[0], loaded + count[1])))
}

/// Opens the files of which this rank reads something; their sizes must be those announced.
fn open(
    world: &dyn Comm,
    store: &dyn Store,
    data: &Data,
    schedule: &Schedule,
) -> Result<Vec<Option<Box<dyn Reader>>>> {
    let mut mine = vec![false; data.files.len()];
    schedule.units.iter().filter(|unit| unit.owner == world.rank()).for_each(|unit| mine[unit.file] = true);
    let mut readers = Vec::with_capacity(mine.len());
    for (file, mine) in mine.into_iter().enumerate() {
        let reader = mine.then(|| store.reader(&data.files[file])).transpose()?;
        if let Some(reader) = &reader
            && reader.size() != data.sizes[file]
        {
            let what = format!(
                "'{}' has {} bytes, {} were written",
                data.files[file],
                reader.size(),
                data.sizes[file]
            );
            return Err(Error::Torn { what });
        }
        readers.push(reader);
    }
    Ok(readers)
}

struct Loader<'a> {
    data: &'a Data,
    schedule: &'a Schedule,
    slots: &'a [Slot],
    readers: Vec<Option<Box<dyn Reader>>>,
    transfer: &'a Transfer,
    describe: &'a Describe<'a>,
    loaded: AtomicU64,
}

impl Loader<'_> {
    /// The units that no other rank wants, block by block while they are in the cache; bytes read.
    fn read_alone(&self, me: usize) -> Result<u64> {
        let units = self.schedule.alone(me);
        let runs: Vec<(usize, &Range<u64>)> = units
            .iter()
            .flat_map(|&unit| self.schedule.units[unit].runs.iter().map(move |run| (unit, run)))
            .collect();
        let jobs: Vec<(&dyn Reader, Range<u64>)> =
            runs.iter().map(|&(unit, run)| self.job(unit, run)).collect::<Result<_>>()?;
        let read = self.transfer.read_each::<Error>(&jobs, |job, bytes| {
            let (unit, run) = runs[job];
            let unit = &self.schedule.units[unit];
            for block in self.parts(run) {
                let at = (block.start - run.start) as usize;
                let bytes = &bytes[at..at + (block.end - block.start) as usize];
                self.check(unit.file, &block, bytes)?;
                let mut filled = Ok(());
                self.schedule.legs_in(unit, &block, &mut |leg| {
                    if filled.is_ok() {
                        filled = self.fill(&leg, &block, bytes);
                    }
                });
                filled?;
            }
            Ok(())
        })?;
        Ok(read.bytes)
    }

    /// What is handled at once: blocks with a checksum, or all of a run.
    fn parts(&self, run: &Range<u64>) -> Vec<Range<u64>> {
        if self.data.sums.is_none() {
            return vec![run.clone()];
        }
        let block = self.data.block;
        let starts = (run.start / block..run.end.div_ceil(block)).map(|number| number * block);
        starts.map(|start| start.max(run.start)..run.end.min(start + block)).collect()
    }

    /// The units that several ranks want. While one round is on its way, the next is read. A rank that has failed
    /// keeps taking part, so that nobody waits for it.
    fn read_rounds(&self, world: &dyn Comm, done: &mut Result<u64>) -> Result<()> {
        let mut before: Option<(Pending, Traffic, Array)> = None;
        for round in &self.schedule.rounds {
            let traffic = Traffic::of(self.schedule, round, world.rank(), world.size());
            let send = Array::zeros(&[traffic.send_counts.iter().sum()], DType::U8)?;
            let recv = Array::zeros(&[traffic.recv_counts.iter().sum()], DType::U8)?;
            if let Ok(read) = done {
                let before = *read;
                *done = self.read_round(&traffic.own, &send).map(|more| before + more);
            }
            let (send_counts, recv_counts) = (traffic.send_counts.clone(), traffic.recv_counts.clone());
            let call = AllToAll { send, send_counts, recv: recv.clone(), recv_counts };
            let arrived =
                before.take().map(|(pending, traffic, recv)| pending.wait().map(|()| (traffic, recv)));
            let arrived = arrived.transpose()?;
            before = Some((world.start(Call::AllToAll(call))?, traffic, recv));
            self.unpack(arrived, done);
        }
        if let Some((pending, traffic, recv)) = before {
            pending.wait()?;
            self.unpack(Some((traffic, recv)), done);
        }
        Ok(())
    }

    fn read_round(&self, own: &[Job], send: &Array) -> Result<u64> {
        let jobs: Vec<(&dyn Reader, Range<u64>)> =
            own.iter().map(|job| self.job(job.unit, &job.run)).collect::<Result<_>>()?;
        let read = self.transfer.read_each::<Error>(&jobs, |number, bytes| {
            let Job { unit, run, legs } = &own[number];
            let file = self.schedule.units[*unit].file;
            for block in self.parts(run).into_iter().filter(|_| self.data.sums.is_some()) {
                let at = (block.start - run.start) as usize;
                self.check(file, &block, &bytes[at..at + (block.end - block.start) as usize])?;
            }
            for (leg, place) in legs {
                match place {
                    None => self.fill(leg, run, bytes)?,
                    Some(place) => {
                        let size = self.schedule.geometry.tiles[leg.tile].size;
                        let extents = leg.region.extents();
                        send.write_bytes(*place..*place + leg.len, |out| {
                            let dense = At::dense(&extents, size, 0);
                            copy_box(&extents, size, (bytes, &self.at(leg, run)), (out, &dense));
                        })?;
                    }
                }
            }
            Ok(())
        })?;
        Ok(read.bytes)
    }

    /// Fills arrays from what other ranks sent.
    fn unpack(&self, arrived: Option<(Traffic, Array)>, done: &mut Result<u64>) {
        let Some((traffic, recv)) = arrived.filter(|_| done.is_ok()) else { return };
        let unpacked = recv.bytes().map_err(Error::from).and_then(|bytes| {
            traffic.others.iter().try_for_each(|(leg, place)| {
                let slot = &self.slots[leg.slot];
                let dense = At::dense(&leg.region.extents(), slot.stored.size(), *place);
                self.count(leg);
                slot.fill(&leg.region, (&bytes, &dense))
            })
        });
        if let Err(error) = unpacked {
            *done = Err(error);
        }
    }

    fn job(&self, unit: usize, run: &Range<u64>) -> Result<(&dyn Reader, Range<u64>)> {
        let file = self.schedule.units[unit].file;
        let reader = self.readers[file].as_deref().ok_or_else(|| Error::Torn {
            what: format!("'{}' was not opened by its reader", self.data.files[file]),
        })?;
        Ok((reader, run.clone()))
    }

    /// Where a box lies in the bytes `run` of its file.
    fn at(&self, leg: &Leg, run: &Range<u64>) -> At<'static> {
        let tile = &self.schedule.geometry.tiles[leg.tile];
        At { start: (tile.byte_of(&leg.region) - run.start) as usize, steps: Cow::Owned(tile.steps()) }
    }

    fn fill(&self, leg: &Leg, run: &Range<u64>, bytes: &[u8]) -> Result<()> {
        self.count(leg);
        self.slots[leg.slot].fill(&leg.region, (bytes, &self.at(leg, run)))
    }

    fn count(&self, leg: &Leg) {
        self.loaded.fetch_add(leg.len as u64, Relaxed);
    }

    /// Compares a block with its checksum; the tensors that have bytes in it stand in the error.
    fn check(&self, file: usize, block: &Range<u64>, bytes: &[u8]) -> Result<()> {
        let Some(sums) = &self.data.sums else { return Ok(()) };
        let number = block.start / self.data.block;
        let (found, expected) = (checksum::crc32c(bytes), sums[file][number as usize]);
        if found == expected {
            return Ok(());
        }
        let tiles = self.schedule.geometry.tiles_in(file, block);
        let mut names: Vec<String> = tiles.map(|tile| (self.describe)(tile)).collect();
        names.dedup();
        let tensor = names.join("', '");
        let file = self.data.files[file].clone();
        let (start, end) = (block.start, block.end);
        Err(Error::Damaged { tensor, file, block: number, start, end, found, expected })
    }
}
