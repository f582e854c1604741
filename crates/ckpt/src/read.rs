//! The moving part of a load: reading units, checking their blocks, filling arrays here and on other ranks.

use crate::error::{Error, Result};
use crate::options::{LoadOptions, Meter};
use crate::outgoing::rearranged;
use crate::schedule::{Leg, Schedule, Split, blocks};
use crate::strided::{Along, At, Window, cast, copy_box};
use crate::talk;
use crate::traffic::{Flight, Job, Post, Traffic};
use planaria_aoa::Rearrange;
use planaria_array::{Array, DType};
use planaria_comm::{AllReduce, Call, Comm, CommExt, Recv, Send};
use planaria_layout::Reduce;
use planaria_store::{Medium, Reader, Store, Transfer, checksum};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
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
    fn fill(&self, part: &planaria_layout::Region, source: (&[u8], &At<'_>), along: Along) -> Result<()> {
        if self.casts.is_empty() {
            return self.window.fill(part, source, along);
        }
        let extents = part.extents();
        let array = cast(&extents, self.stored, source, &self.casts)?;
        let dense = At::dense(&extents, self.window.dtype().size(), 0);
        self.window.fill(part, (&array.bytes()?, &dense), along)
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
    slots: &[(usize, Slot)],
    options: &LoadOptions,
    describe: &Describe<'_>,
) -> Result<(u64, u64)> {
    let readers = talk::agree(world, open(store, data, schedule))?;
    let medium = readers.iter().flatten().map(|file| file.medium()).next().unwrap_or_default();
    let transfer = options.transfer(world, schedule, medium);
    let mut by_tensor: HashMap<usize, Vec<&Slot>> = HashMap::new();
    slots.iter().for_each(|(tensor, slot)| by_tensor.entry(*tensor).or_default().push(slot));
    let (loaded, parts, post) = (AtomicU64::new(0), Mutex::default(), Post::default());
    let meter = options.meter.as_deref();
    let mine = (0..schedule.units.len()).filter(|&unit| schedule.is_mine(unit));
    let bytes = mine.flat_map(|unit| &schedule.units[unit].runs).map(|run| run.end - run.start).sum();
    if let Some(meter) = meter {
        meter.begin(bytes);
    }
    let along = if bytes < FAR { Along::Caches } else { Along::Memory };
    let transfer = &transfer;
    let loader = Loader {
        data,
        schedule,
        by_tensor,
        readers,
        medium,
        transfer,
        along,
        describe,
        loaded,
        meter,
        parts,
        post,
    };
    let read = loader.read_all(world)?;
    let split = loader.check_split(world)?;
    let mut after = slots.iter().filter_map(|(_, slot)| slot.after.as_ref());
    let done = read.and_then(|read| split.and_then(|()| after.try_for_each(After::finish)).map(|()| read));
    let read = talk::agree(world, done)?;
    if world.size() == 1 {
        return Ok((read, loader.loaded.into_inner()));
    }
    let counts = Array::from_slice(&[read as i64, loader.loaded.into_inner() as i64], &[2])?;
    let sums = counts.zeros_like()?;
    world.all_reduce(AllReduce { send: counts, recv: sums.clone(), op: Reduce::Sum })?;
    let sums = sums.to_vec::<i64>()?;
    Ok((sums[0] as u64, sums[1] as u64))
}

/// Opens the files of which this rank reads something; their sizes must be those announced.
fn open(store: &dyn Store, data: &Data, schedule: &Schedule) -> Result<Vec<Option<Box<dyn Reader>>>> {
    let mut mine = vec![false; data.files.len()];
    let own = (0..schedule.units.len()).filter(|&unit| schedule.is_mine(unit));
    own.for_each(|unit| mine[schedule.units[unit].file] = true);
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
    /// Where this rank's boxes of each tensor go.
    by_tensor: HashMap<usize, Vec<&'a Slot>>,
    readers: Vec<Option<Box<dyn Reader>>>,
    medium: Medium,
    transfer: &'a Transfer,
    along: Along,
    describe: &'a Describe<'a>,
    loaded: AtomicU64,
    meter: Option<&'a Meter>,
    /// Sums of parts of blocks whose other parts are in other units, by file and place.
    parts: Mutex<BTreeMap<(usize, u64), u32>>,
    post: Post,
}

/// Tag of the sums of parts of blocks.
const SUMS: u32 = 0x0b0c_5003 & planaria_comm::MAX_TAG;

/// Bytes that are summed and then copied: they stay in the second-level cache of a core.
const HOT: u64 = 256 << 10;

/// Bytes of a load from which no cache has any of it left when it is used.
const FAR: u64 = 512 << 20;

/// Rounds that are read at the same time.
const READERS: usize = 2;

/// A round and what this rank sends in it.
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
        match &self.schedule.rounds[..] {
            [] => return Ok(self.read_alone()),
            [round] => return self.read_once(world, round),
            _ => {}
        }
        std::thread::scope(|scope| {
            let mut readers = Vec::new();
            let mut rounds = Vec::new();
            for first in 0..READERS {
                let (ahead, read) = sync_channel(0);
                readers.push(scope.spawn(move || {
                    let read = self.read_ahead(first, &ahead);
                    drop(ahead);
                    // By one of them, while the last rounds are on their way.
                    if first == 0 { read.and_then(|read| Ok(read + self.read_alone()?)) } else { read }
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
        let traffic = Traffic::of(self.schedule, round);
        let send = self.post.sends.take(traffic.sent)?;
        let alone = self.schedule.alone();
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
    fn read_ahead(&self, first: usize, ahead: &SyncSender<Parcel>) -> Result<u64> {
        let mut done = Ok(0);
        for round in self.schedule.rounds.iter().skip(first).step_by(READERS) {
            let traffic = Traffic::of(self.schedule, round);
            let send = self.post.sends.take(traffic.sent)?;
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
        let mut before: Option<Flight> = None;
        for round in 0..self.schedule.rounds.len() {
            // A reader that ended early says why when it is joined.
            let Ok((traffic, send)) = rounds[round % READERS].recv() else { break };
            let next = self.post.start(world, traffic, send)?;
            if let Some(flight) = before.replace(next) {
                let arrived = self.post.finish(world, flight)?;
                self.unpack(arrived, &mut done);
            }
        }
        if let Some(flight) = before {
            let arrived = self.post.finish(world, flight)?;
            self.unpack(arrived, &mut done);
        }
        Ok(done)
    }

    /// The units that no other rank wants; bytes read.
    fn read_alone(&self) -> Result<u64> {
        let units = self.schedule.alone();
        self.read_tasks(&self.tasks_of(&units), None)
    }

    fn tasks_of(&self, units: &[usize]) -> Vec<Task<'_>> {
        let runs =
            |&unit: &usize| self.schedule.units[unit].runs.iter().map(move |run| Task::Alone { unit, run });
        units.iter().flat_map(runs).collect()
    }

    /// Reads runs and passes them on, to arrays and to what is sent; bytes read.
    fn read_tasks(&self, tasks: &[Task<'_>], send: Option<&Array>) -> Result<u64> {
        let order = self.order(tasks.len());
        let job = |&number: &usize| self.job(tasks[number].unit(), tasks[number].run());
        let jobs: Vec<(&dyn Reader, Range<u64>)> = order.iter().map(job).collect::<Result<_>>()?;
        let read = self.transfer.read_each::<Error>(&jobs, |number, bytes| {
            if let Some(meter) = self.meter {
                meter.add(bytes.len() as u64);
            }
            match &tasks[order[number]] {
                Task::Alone { unit, run } => self.take_alone(*unit, run, bytes),
                Task::Shared(job) => self.take_shared(job, send, bytes),
            }
        })?;
        Ok(read.bytes)
    }

    /// The order in which tasks are begun. Storage likes that of the files. Memory does not mind: there the threads begin far from each other,
    /// since two that fill one array take turns.
    fn order(&self, tasks: usize) -> Vec<usize> {
        if self.medium != Medium::Memory {
            return (0..tasks).collect();
        }
        let threads = self.transfer.options().threads;
        let apart = tasks.div_ceil(threads);
        let of_turn = |turn| (0..threads).map(move |thread| thread * apart + turn);
        (0..apart).flat_map(of_turn).filter(|&task| task < tasks).collect()
    }

    /// Fills arrays piece by piece while the bytes that were summed are in the cache of the core. A block that turns out to be damaged
    /// fails the load.
    fn take_alone(&self, number: usize, run: &Range<u64>, bytes: &[u8]) -> Result<()> {
        let unit = &self.schedule.units[number];
        for block in self.parts(run) {
            let at = (block.start - run.start) as usize;
            let bytes = &bytes[at..at + (block.end - block.start) as usize];
            let (mut filled, mut sum) = (Ok(()), 0);
            for piece in blocks(&block, HOT) {
                if self.data.sums.is_some() {
                    let within = (piece.start - block.start) as usize..(piece.end - block.start) as usize;
                    sum = checksum::append(sum, &bytes[within]);
                }
                self.schedule.legs_in(unit, &piece, &mut |leg| {
                    if filled.is_ok() {
                        filled = self.fill(&leg, &block, bytes);
                    }
                });
            }
            filled?;
            self.check(number, &block, sum)?;
        }
        Ok(())
    }

    /// Fills arrays and what is sent to other ranks.
    fn take_shared(&self, Job { unit, run, legs }: &Job, send: Option<&Array>, bytes: &[u8]) -> Result<()> {
        for block in self.parts(run) {
            let at = (block.start - run.start) as usize;
            let bytes = &bytes[at..at + (block.end - block.start) as usize];
            self.check(*unit, &block, self.data.sums.as_ref().map_or(0, |_| checksum::crc32c(bytes)))?;
        }
        for (leg, place) in legs {
            let (Some(place), Some(send)) = (place, send) else {
                self.fill(leg, run, bytes)?;
                continue;
            };
            let size = self.schedule.files.tiles[leg.tile].size;
            let extents = leg.region.extents();
            send.write_bytes(*place..*place + leg.len, |out| {
                let dense = At::dense(&extents, size, 0);
                copy_box(&extents, size, (bytes, &self.at(leg, run)), (out, &dense))
            })??;
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
    fn unpack(&self, (traffic, recv): (Traffic, Array), done: &mut Result<()>) {
        if done.is_ok() {
            *done = recv.bytes().map_err(Error::from).and_then(|bytes| {
                traffic.others.iter().try_for_each(|(leg, place)| {
                    let size = self.schedule.files.tiles[leg.tile].size;
                    let dense = At::dense(&leg.region.extents(), size, *place);
                    self.fill_from(leg, (&bytes, &dense))
                })
            });
        }
        self.post.receives.give_back(recv);
    }

    fn job(&self, unit: usize, run: &Range<u64>) -> Result<(&dyn Reader, Range<u64>)> {
        let file = self.schedule.units[unit].file;
        let reader = self.readers[file].as_deref().ok_or_else(|| Error::Torn {
            what: format!("'{}' was not opened by its reader", self.data.files[file]),
        })?;
        Ok((reader, run.clone()))
    }

    /// Where a box lies in the bytes `run` of its file.
    fn at(&self, leg: &Leg, run: &Range<u64>) -> At<'_> {
        let tile = &self.schedule.files.tiles[leg.tile];
        At { start: (tile.byte_of(&leg.region) - run.start) as usize, steps: Cow::Borrowed(&tile.steps) }
    }

    fn fill(&self, leg: &Leg, run: &Range<u64>, bytes: &[u8]) -> Result<()> {
        self.fill_from(leg, (bytes, &self.at(leg, run)))
    }

    /// Fills every box of this rank that has a part of a leg.
    fn fill_from(&self, leg: &Leg, (bytes, at): (&[u8], &At<'_>)) -> Result<()> {
        let tensor = self.schedule.files.tiles[leg.tile].tensor;
        for slot in self.by_tensor.get(&tensor).into_iter().flatten() {
            let Some(part) = slot.window.region.intersect(&leg.region) else { continue };
            self.loaded.fetch_add((part.numel() * slot.stored.size()) as u64, Relaxed);
            slot.fill(&part, (bytes, &at.of_part(&leg.region, &part)), self.along)?;
        }
        Ok(())
    }

    /// All of the block that begins at or before a byte of a file.
    fn block_at(&self, file: usize, at: u64) -> Range<u64> {
        let start = at / self.data.block * self.data.block;
        start..self.data.sizes[file].min(start + self.data.block)
    }

    /// Compares the sum of a block with the one that was written, or keeps that of a part of it for later.
    fn check(&self, unit: usize, part: &Range<u64>, found: u32) -> Result<()> {
        if self.data.sums.is_none() {
            return Ok(());
        }
        let file = self.schedule.units[unit].file;
        if *part == self.block_at(file, part.start) {
            return self.compare(file, part, found);
        }
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).insert((file, part.start), found);
        Ok(())
    }

    /// Joins the sums of blocks that several ranks have parts of: the one with the first part gets those of the others.
    fn check_split(&self, world: &dyn Comm) -> Result<Result<()>> {
        let mine = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let me = world.rank();
        // A part that was not read has no sum; then something else has failed.
        let own = |split: &Split, part: &Range<u64>| mine.get(&(split.file, part.start)).copied();
        let mut sent = Vec::new();
        for split in &self.schedule.splits {
            let first = split.parts[0].1;
            for (part, _) in split.parts.iter().filter(|(_, owner)| *owner == me && first != me) {
                let data = Array::from_slice(&[own(split, part).map_or(-1, i64::from)], &[1])?;
                sent.push(world.start(Call::Send(Send { data, to: first, tag: SUMS }))?);
            }
        }
        let mut done = Ok(());
        for split in self.schedule.splits.iter().filter(|split| split.parts[0].1 == me) {
            let mut joined = Some(0);
            for (part, owner) in &split.parts {
                let sum = match *owner == me {
                    true => own(split, part),
                    false => {
                        let data = Array::zeros(&[1], DType::I64)?;
                        world.recv(Recv { data: data.clone(), from: *owner, tag: SUMS })?;
                        data.to_vec::<i64>()?.pop().and_then(|sum| u32::try_from(sum).ok())
                    }
                };
                let len = (part.end - part.start) as usize;
                joined = joined.zip(sum).map(|(joined, sum)| match part.start == split.block.start {
                    true => sum,
                    false => checksum::combine(joined, sum, len),
                });
            }
            if let (Some(joined), true) = (joined, done.is_ok()) {
                done = self.compare(split.file, &split.block, joined);
            }
        }
        sent.into_iter().try_for_each(|pending| pending.wait())?;
        Ok(done)
    }

    /// Compares the sum of a block with the one that was written; the tensors that have bytes in it stand in the
    /// error.
    fn compare(&self, file: usize, block: &Range<u64>, found: u32) -> Result<()> {
        let number = block.start / self.data.block;
        let expected = self.data.sums.as_ref().and_then(|sums| sums[file].get(number as usize)).copied();
        let Some(expected) = expected.filter(|expected| *expected != found) else { return Ok(()) };
        let tiles = self.schedule.files.tiles_in(file, block);
        let mut names: Vec<String> = tiles.map(|tile| (self.describe)(tile)).collect();
        names.dedup();
        let tensor = names.join("', '");
        let file = self.data.files[file].clone();
        let (start, end) = (block.start, block.end);
        Err(Error::Damaged { tensor, file, block: number, start, end, found, expected })
    }
}
