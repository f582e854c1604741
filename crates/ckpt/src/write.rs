//! The moving part of a save: filling units from arrays and from other ranks, summing, writing.

use crate::buffers::{self, Buffers};
use crate::error::{Error, Result};
use crate::manifest::SUM_BLOCK;
use crate::naming::Files;
use crate::options::SaveOptions;
use crate::outgoing::Given;
use crate::schedule::{Leg, Schedule, Traffic, Unit, blocks};
use crate::strided::{At, copy_box, packed};
use crate::talk;
use planaria_array::{Array, Bytes};
use planaria_comm::{AllToAll, Call, Comm, CommExt, Pending};
use planaria_store::{Sharing, Store, Transfer, WriteJob, Writer, checksum, join};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    let me = world.rank();
    let held: Result<Vec<Bytes>> = given.iter().map(|given| given.window.bytes()).collect();
    let writers = held.and_then(|held| Ok((held, open(place, schedule, files, me)?)));
    let (held, writers) = talk::agree(world, writers)?;
    let parts = |unit: &Unit| if unit.owner == me { blocks(&unit.range, SUM_BLOCK).count() } else { 0 };
    let sums = schedule.units.iter().map(|unit| (0..parts(unit)).map(|_| AtomicU32::new(0)).collect());
    let (sends, receives) = (Buffers::default(), Buffers::default());
    let writing = &writers;
    let saver =
        Saver { schedule, files, given, held, writers: writing, sums: sums.collect(), sends, receives };
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
fn open(
    place: &Place<'_>,
    schedule: &Schedule,
    files: &Files,
    me: usize,
) -> Result<Vec<Option<Box<dyn Writer>>>> {
    let mut mine = vec![false; files.files.len()];
    schedule.units.iter().filter(|unit| unit.owner == me).for_each(|unit| mine[unit.file] = true);
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
    held: Vec<Bytes>,
    writers: &'a [Option<Box<dyn Writer>>],
    /// By unit of this rank: the sums of its parts of blocks.
    sums: Vec<Vec<AtomicU32>>,
    sends: Buffers,
    receives: Buffers,
}

/// A round on its way.
struct Coming {
    pending: Pending,
    traffic: Traffic,
    send: Array,
    recv: Array,
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
            done = self.write_alone(transfer, world.rank());
        }
        while let Some(Coming { pending, traffic, send, recv }) = coming {
            pending.wait()?;
            self.sends.give_back(send);
            coming = next(&mut done)?;
            if done.is_ok() {
                done = self.write_round(transfer, &traffic, &recv);
            }
            self.receives.give_back(recv);
        }
        Ok(done)
    }

    /// The units that need no other rank, filled and summed block by block while they are in the cache.
    fn write_alone(&self, transfer: &Transfer, me: usize) -> Result<()> {
        let units = self.schedule.alone(me);
        let jobs: Vec<WriteJob<'_>> = units.iter().map(|&unit| self.job(unit)).collect::<Result<_>>()?;
        transfer.write_each::<Error>(&jobs, |job, bytes| {
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
                self.sum(units[job], number, bytes);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Begins to send what other ranks write of this rank's boxes, and to receive what it writes of theirs.
    fn exchange(&self, world: &dyn Comm, round: &[usize], done: &mut Result<()>) -> Result<Coming> {
        let traffic = Traffic::of(self.schedule, round, world.rank(), world.size());
        let (send_counts, recv_counts) = (traffic.send_counts.clone(), traffic.recv_counts.clone());
        let (sent, received) = (send_counts.iter().sum(), recv_counts.iter().sum());
        let (send, recv) = (self.sends.take(sent)?, self.receives.take(received)?);
        let out = buffers::first(&send, sent)?;
        if done.is_ok() {
            *done = self.pack(&traffic, &out);
        }
        let call = AllToAll { send: out, send_counts, recv: buffers::first(&recv, received)?, recv_counts };
        let pending = world.start(Call::AllToAll(call))?;
        Ok(Coming { pending, traffic, send, recv })
    }

    /// What other ranks write of this rank's boxes.
    fn pack(&self, traffic: &Traffic, send: &Array) -> Result<()> {
        let len = send.numel();
        send.write_bytes(0..len, |out| {
            traffic.others.iter().try_for_each(|(leg, place)| {
                let extents = leg.region.extents();
                self.give(leg, (out, &At::dense(&extents, self.size(leg), *place)))
            })
        })?
    }

    /// Copies a box of this rank's own, in the element type of the file.
    fn give(&self, leg: &Leg, target: (&mut [u8], &At<'_>)) -> Result<()> {
        let Given { window, casts } = &self.given[leg.slot];
        let extents = leg.region.extents();
        let source = (&self.held[leg.slot][..], &window.at(&leg.region));
        if casts.is_empty() {
            copy_box(&extents, self.size(leg), source, target);
            return Ok(());
        }
        let mut array = packed(&extents, window.dtype(), source)?;
        for dtype in casts {
            array = array.cast(*dtype)?;
        }
        let dense = At::dense(&extents, self.size(leg), 0);
        copy_box(&extents, self.size(leg), (&array.contiguous()?.bytes()?, &dense), target);
        Ok(())
    }

    fn write_round(&self, transfer: &Transfer, traffic: &Traffic, recv: &Array) -> Result<()> {
        let received = recv.bytes()?;
        let jobs: Vec<WriteJob<'_>> =
            traffic.own.iter().map(|job| self.job(job.unit)).collect::<Result<_>>()?;
        transfer.write_each::<Error>(&jobs, |number, bytes| {
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
                        copy_box(&extents, self.size(leg), (&received, &dense), target);
                    }
                }
            }
            for (number, block) in blocks(&unit.range, SUM_BLOCK).enumerate() {
                self.sum(job.unit, number, &bytes[within(&unit.range, &block)]);
            }
            Ok(())
        })?;
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
        self.schedule.geometry.tiles[leg.tile].size
    }

    fn put_own(&self, leg: &Leg, range: &Range<u64>, out: &mut [u8]) -> Result<()> {
        self.give(leg, (out, &self.at(leg, range)))
    }

    /// Where a box lies in the bytes `range` of its file.
    fn at(&self, leg: &Leg, range: &Range<u64>) -> At<'static> {
        let tile = &self.schedule.geometry.tiles[leg.tile];
        At { start: (tile.byte_of(&leg.region) - range.start) as usize, steps: Cow::Owned(tile.steps()) }
    }

    fn put_header(&self, file: usize, range: &Range<u64>, out: &mut [u8]) {
        let header = self.files.files[file].layout.header();
        let end = (header.len() as u64).min(range.end);
        if range.start < end {
            let part = &header[range.start as usize..end as usize];
            out[..part.len()].copy_from_slice(part);
        }
    }

    fn sum(&self, unit: usize, part: usize, bytes: &[u8]) {
        self.sums[unit][part].store(checksum::crc32c(bytes), Relaxed);
    }

    /// The sums of this rank's units, in the order of the schedule.
    fn my_sums(&self) -> Vec<u8> {
        self.sums.iter().flatten().flat_map(|sum| sum.load(Relaxed).to_le_bytes()).collect()
    }
}

/// Where a part of a range lies in memory that holds the range.
fn within(range: &Range<u64>, part: &Range<u64>) -> Range<usize> {
    (part.start - range.start) as usize..(part.end - range.start) as usize
}

/// The checksums of every file, from what each rank sent.
pub(crate) fn join_sums(ranks: Vec<Vec<u8>>, schedule: &Schedule) -> Result<Vec<Vec<u32>>> {
    let sizes = schedule.geometry.files.iter();
    let mut sums: Vec<Vec<u32>> = sizes.map(|size| vec![0; size.div_ceil(SUM_BLOCK) as usize]).collect();
    let mut taken = vec![0usize; ranks.len()];
    for unit in &schedule.units {
        for part in blocks(&unit.range, SUM_BLOCK) {
            let at = taken[unit.owner];
            taken[unit.owner] += 4;
            let sum = ranks[unit.owner].get(at..at + 4).and_then(|four| <[u8; 4]>::try_from(four).ok());
            let Some(sum) = sum.map(u32::from_le_bytes) else {
                let what = format!("rank {} sent too few checksums", unit.owner);
                return Err(Error::Malformed { file: "a message between ranks".into(), what });
            };
            // Units follow each other in a file, so the parts of a block come in order.
            let joined = &mut sums[unit.file][(part.start / SUM_BLOCK) as usize];
            *joined = match part.start.is_multiple_of(SUM_BLOCK) {
                true => sum,
                false => checksum::combine(*joined, sum, (part.end - part.start) as usize),
            };
        }
    }
    Ok(sums)
}
