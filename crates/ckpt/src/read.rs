//! The moving part of a load: reading units, checking their blocks, filling arrays here and on other ranks.

use crate::buffers::{self, Buffers};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::outgoing::rearranged;
use crate::schedule::{Job, Leg, Schedule, Traffic, blocks};
use crate::strided::{At, Window, copy_box, packed};
use crate::talk;
use planaria_aoa::Rearrange;
use planaria_array::{Array, DType};
use planaria_comm::{AllToAll, Call, Comm, CommExt, Pending};
use planaria_store::{Reader, Store, Transfer, checksum};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

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
    let (loaded, parts) = (AtomicU64::new(0), Mutex::default());
    let (sends, receives) = (Buffers::default(), Buffers::default());
    let loader = Loader {
        data,
        schedule,
        slots,
        readers,
        transfer: &transfer,
        describe,
        loaded,
        parts,
        sends,
        receives,
    };
    let done = loader.read_all(world)?;
    let read = talk::agree(world, done)?;
    loader.check_split(world)?;
    let mut after = slots.iter().filter_map(|slot| slot.after.as_ref());
    talk::agree(world, after.try_for_each(After::finish))?;
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
    /// Sums of parts of blocks whose other parts are in other units, by unit and place.
    parts: Mutex<BTreeMap<(usize, u64), u32>>,
    sends: Buffers,
    receives: Buffers,
}

/// Rounds that are read at the same time.
const READERS: usize = 2;

/// What a round is about, and the memory for what one rank sends or receives in it.
type Parcel = (Traffic, Array);

/// A run to be read.
enum Task<'t> {
    /// For this rank only.
    Alone { unit: usize, run: &'t Range<u64> },
    /// For others as well.
    Shared(&'t Job),
}

impl Task<'_> {
    fn unit(&self) -> usize {
        match self {
            Task::Alone { unit, .. } => *unit,
            Task::Shared(job) => job.unit,
        }
    }

    fn run(&self) -> &Range<u64> {
        match self {
            Task::Alone { run, .. } => run,
            Task::Shared(job) => &job.run,
        }
    }
}

impl Loader<'_> {
    /// Reads all units of this rank and fills its arrays; bytes read. Rounds are read ahead by other threads, two
    /// of them in turn so that the storage never waits for the end of a round, while this one exchanges what they
    /// have read.
    fn read_all(&self, world: &dyn Comm) -> Result<Result<u64>> {
        let (me, ranks) = (world.rank(), world.size());
        match &self.schedule.rounds[..] {
            [] => return Ok(self.read_alone(me)),
            [round] => return self.read_once(world, round),
            _ => {}
        }
        std::thread::scope(|scope| {
            let mut readers = Vec::new();
            let mut rounds = Vec::new();
            for first in 0..READERS {
                let (ahead, read) = sync_channel(0);
                readers.push(scope.spawn(move || {
                    let read = self.read_ahead((first, me, ranks), &ahead);
                    drop(ahead);
                    // By one of them, while the last rounds are on their way.
                    if first == 0 { read.and_then(|read| Ok(read + self.read_alone(me)?)) } else { read }
                }));
                rounds.push(read);
            }
            let unpacked = self.exchange(world, rounds)?;
            let mut done = unpacked.map(|()| 0);
            for reader in readers {
                let read = reader.join().unwrap_or_else(|panic| resume_unwind(panic));
                done = done.and_then(|before| Ok(before + read?));
            }
            Ok(done)
        })
    }

    /// All units of this rank in the order of the files, then the one exchange there is. Storage serves what lies
    /// ahead first: of ranks that go through the files in step none is left behind.
    fn read_once(&self, world: &dyn Comm, round: &[usize]) -> Result<Result<u64>> {
        let me = world.rank();
        let traffic = Traffic::of(self.schedule, round, me, world.size());
        let send = self.sends.take(traffic.send_counts.iter().sum())?;
        let alone = self.schedule.alone(me);
        let mut tasks = self.tasks_of(&alone);
        tasks.extend(traffic.own.iter().map(Task::Shared));
        tasks.sort_by_key(|task| (task.unit(), task.run().start));
        let read = self.read_tasks(&tasks, Some(&send));
        let (ahead, read_one) = sync_channel(1);
        // There is room for one, and its receiver is here.
        let _ = ahead.send((traffic, send));
        let unpacked = self.exchange(world, vec![read_one])?;
        Ok(read.and_then(|bytes| unpacked.map(|()| bytes)))
    }

    /// The units that several ranks want: every [`READERS`]th round. A rank that has failed keeps taking part, so
    /// that nobody waits for it.
    fn read_ahead(
        &self,
        (first, me, ranks): (usize, usize, usize),
        ahead: &SyncSender<Parcel>,
    ) -> Result<u64> {
        let mut done = Ok(0);
        for round in self.schedule.rounds.iter().skip(first).step_by(READERS) {
            let traffic = Traffic::of(self.schedule, round, me, ranks);
            let send = self.sends.take(traffic.send_counts.iter().sum())?;
            if let Ok(before) = done {
                done = self.read_round(&traffic.own, &send).map(|read| before + read);
            }
            // Nobody listens when the exchange has failed, which is reported there.
            if ahead.send((traffic, send)).is_err() {
                break;
            }
        }
        done
    }

    /// Sends what was read to whoever wants it, and fills arrays with what others have read.
    fn exchange(&self, world: &dyn Comm, rounds: Vec<Receiver<Parcel>>) -> Result<Result<()>> {
        let mut done = Ok(());
        let mut before: Option<(Pending, Array, Parcel)> = None;
        for round in 0..self.schedule.rounds.len() {
            // A reader that ended early says why when it is joined.
            let Ok((traffic, send)) = rounds[round % READERS].recv() else { break };
            let (send_counts, recv_counts) = (traffic.send_counts.clone(), traffic.recv_counts.clone());
            let (sent, received) = (send_counts.iter().sum(), recv_counts.iter().sum());
            let recv = self.receives.take(received)?;
            let call = AllToAll {
                send: buffers::first(&send, sent)?,
                send_counts,
                recv: buffers::first(&recv, received)?,
                recv_counts,
            };
            let arrived = before.take().map(|before| self.arrived(before)).transpose()?;
            before = Some((world.start(Call::AllToAll(call))?, send, (traffic, recv)));
            self.unpack(arrived, &mut done);
        }
        if let Some(before) = before {
            let arrived = self.arrived(before)?;
            self.unpack(Some(arrived), &mut done);
        }
        Ok(done)
    }

    /// Waits for an exchange; what was sent is not needed any more.
    fn arrived(&self, (pending, send, arrived): (Pending, Array, Parcel)) -> Result<Parcel> {
        pending.wait()?;
        self.sends.give_back(send);
        Ok(arrived)
    }

    /// The units that no other rank wants; bytes read.
    fn read_alone(&self, me: usize) -> Result<u64> {
        let units = self.schedule.alone(me);
        self.read_tasks(&self.tasks_of(&units), None)
    }

    fn tasks_of(&self, units: &[usize]) -> Vec<Task<'_>> {
        let runs =
            |&unit: &usize| self.schedule.units[unit].runs.iter().map(move |run| Task::Alone { unit, run });
        units.iter().flat_map(runs).collect()
    }

    /// Reads runs and passes them on, to arrays and to what is sent; bytes read.
    fn read_tasks(&self, tasks: &[Task<'_>], send: Option<&Array>) -> Result<u64> {
        let jobs: Vec<(&dyn Reader, Range<u64>)> =
            tasks.iter().map(|task| self.job(task.unit(), task.run())).collect::<Result<_>>()?;
        let read = self.transfer.read_each::<Error>(&jobs, |number, bytes| match &tasks[number] {
            Task::Alone { unit, run } => self.take_alone(*unit, run, bytes),
            Task::Shared(job) => self.take_shared(job, send, bytes),
        })?;
        Ok(read.bytes)
    }

    /// Fills arrays block by block while the bytes are in the cache.
    fn take_alone(&self, number: usize, run: &Range<u64>, bytes: &[u8]) -> Result<()> {
        let unit = &self.schedule.units[number];
        for block in self.parts(run) {
            let at = (block.start - run.start) as usize;
            let bytes = &bytes[at..at + (block.end - block.start) as usize];
            self.check(number, &block, bytes)?;
            let mut filled = Ok(());
            self.schedule.legs_in(unit, &block, &mut |leg| {
                if filled.is_ok() {
                    filled = self.fill(&leg, &block, bytes);
                }
            });
            filled?;
        }
        Ok(())
    }

    /// Fills arrays and what is sent to other ranks.
    fn take_shared(&self, Job { unit, run, legs }: &Job, send: Option<&Array>, bytes: &[u8]) -> Result<()> {
        for block in self.parts(run) {
            let at = (block.start - run.start) as usize;
            self.check(*unit, &block, &bytes[at..at + (block.end - block.start) as usize])?;
        }
        for (leg, place) in legs {
            let (Some(place), Some(send)) = (place, send) else {
                self.fill(leg, run, bytes)?;
                continue;
            };
            let size = self.schedule.geometry.tiles[leg.tile].size;
            let extents = leg.region.extents();
            send.write_bytes(*place..*place + leg.len, |out| {
                let dense = At::dense(&extents, size, 0);
                copy_box(&extents, size, (bytes, &self.at(leg, run)), (out, &dense));
            })?;
        }
        Ok(())
    }

    /// What is handled at once: blocks with a checksum, or all of a run.
    fn parts(&self, run: &Range<u64>) -> Vec<Range<u64>> {
        if self.data.sums.is_none() { vec![run.clone()] } else { blocks(run, self.data.block).collect() }
    }

    fn read_round(&self, own: &[Job], send: &Array) -> Result<u64> {
        self.read_tasks(&own.iter().map(Task::Shared).collect::<Vec<_>>(), Some(send))
    }

    /// Fills arrays from what other ranks sent.
    fn unpack(&self, arrived: Option<Parcel>, done: &mut Result<()>) {
        let Some((traffic, recv)) = arrived.filter(|_| done.is_ok()) else { return };
        let unpacked = recv.bytes().map_err(Error::from).and_then(|bytes| {
            traffic.others.iter().try_for_each(|(leg, place)| {
                let slot = &self.slots[leg.slot];
                let dense = At::dense(&leg.region.extents(), slot.stored.size(), *place);
                self.count(leg);
                slot.fill(&leg.region, (&bytes, &dense))
            })
        });
        self.receives.give_back(recv);
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

    /// All of the block that begins at or before a byte of a file.
    fn block_at(&self, file: usize, at: u64) -> Range<u64> {
        let start = at / self.data.block * self.data.block;
        start..self.data.sizes[file].min(start + self.data.block)
    }

    /// Compares a block with its checksum, or keeps the sum of a part of it for later.
    fn check(&self, unit: usize, part: &Range<u64>, bytes: &[u8]) -> Result<()> {
        if self.data.sums.is_none() {
            return Ok(());
        }
        let file = self.schedule.units[unit].file;
        let found = checksum::crc32c(bytes);
        if *part == self.block_at(file, part.start) {
            return self.compare(file, part, found);
        }
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).insert((unit, part.start), found);
        Ok(())
    }

    /// Joins the sums of blocks that several units, perhaps of several ranks, have parts of. Collective.
    fn check_split(&self, world: &dyn Comm) -> Result<()> {
        let units = || self.schedule.units.iter().filter(|_| self.data.sums.is_some());
        let parts = units().flat_map(|unit| {
            let parts = unit.runs.iter().flat_map(|run| blocks(run, self.data.block));
            parts.map(move |part| (unit, self.block_at(unit.file, part.start), part))
        });
        let mut split = parts.filter(|(_, block, part)| part != block).peekable();
        if split.peek().is_none() {
            return Ok(());
        }
        let mine = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let all = talk::all_gather(world, mine.values().copied().collect::<Vec<u32>>())?;
        let mut all: Vec<_> = all.into_iter().map(Vec::into_iter).collect();
        let mut joined = 0;
        // Units follow each other in a file, so the parts of a block come in order.
        for (unit, block, part) in split {
            let sum = all[unit.owner].next().ok_or_else(|| Error::Malformed {
                file: "a message between ranks".into(),
                what: format!("rank {} sent too few checksums", unit.owner),
            })?;
            joined = match part.start == block.start {
                true => sum,
                false => checksum::combine(joined, sum, (part.end - part.start) as usize),
            };
            if part.end == block.end {
                self.compare(unit.file, &block, joined)?;
            }
        }
        Ok(())
    }

    /// Compares the sum of a block with the one that was written; the tensors that have bytes in it stand in the
    /// error.
    fn compare(&self, file: usize, block: &Range<u64>, found: u32) -> Result<()> {
        let number = block.start / self.data.block;
        let expected = self.data.sums.as_ref().and_then(|sums| sums[file].get(number as usize)).copied();
        let Some(expected) = expected.filter(|expected| *expected != found) else { return Ok(()) };
        let tiles = self.schedule.geometry.tiles_in(file, block);
        let mut names: Vec<String> = tiles.map(|tile| (self.describe)(tile)).collect();
        names.dedup();
        let tensor = names.join("', '");
        let file = self.data.files[file].clone();
        let (start, end) = (block.start, block.end);
        Err(Error::Damaged { tensor, file, block: number, start, end, found, expected })
    }
}
