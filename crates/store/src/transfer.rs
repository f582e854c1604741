//! Moving many bytes: a few threads, large aligned chunks, staging memory that is used again.

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::ranges::coalesce;
use crate::staging::Staging;
use crate::store::{Medium, Reader, Writer};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Room beside a chunk: a ragged block at each end, and one block that [`Transfer::read_each`] allows on top.
const SLACK: usize = 3 * BLOCK;

/// How a [`Transfer`] works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOptions {
    /// Threads that copy and wait for the storage.
    pub threads: usize,
    /// Bytes moved at once by each, rounded up to whole blocks.
    pub chunk: usize,
    /// Wanted ranges at most this far apart are read together.
    pub gap: u64,
}

impl Default for TransferOptions {
    fn default() -> TransferOptions {
        TransferOptions { threads: 4, chunk: 8 << 20, gap: 16 << 10 }
    }
}

/// Threads and staging memory for large reads and writes. Made once and kept: its memory is used again, and is no
/// more than `threads * (chunk + 12 KiB)` bytes for each transfer that runs at the same time.
#[derive(Debug)]
pub struct Transfer {
    options: TransferOptions,
    buffers: Mutex<Vec<Staging>>,
}

/// A range of a file to be written.
#[derive(Clone, Debug)]
pub struct WriteJob<'a> {
    /// The file.
    pub file: &'a dyn Writer,
    /// The bytes to write.
    pub range: Range<u64>,
}

/// Ranges of a file to be read; they may overlap and stand in any order.
#[derive(Clone, Debug)]
pub struct ReadJob<'a> {
    /// The file.
    pub file: &'a dyn Reader,
    /// The bytes wanted.
    pub ranges: &'a [Range<u64>],
}

/// Ranges of a file to be read, each with the memory it goes to.
#[derive(Debug)]
pub struct IntoJob<'a> {
    /// The file.
    pub file: &'a dyn Reader,
    /// First byte in the file, and where the bytes go.
    pub ranges: Vec<(u64, &'a mut [u8])>,
}

/// What a transfer moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferStats {
    /// Calls to the storage.
    pub operations: u64,
    /// Bytes moved by them, gaps and alignment included.
    pub bytes: u64,
}

/// Part of a wanted range that lies in one chunk.
struct Piece {
    wanted: usize,
    range: Range<u64>,
}

impl Transfer {
    /// Staging memory is made by the first transfer.
    pub fn new(options: TransferOptions) -> Transfer {
        let chunk = options.chunk.max(BLOCK).next_multiple_of(BLOCK);
        let options = TransferOptions { threads: options.threads.max(1), chunk, ..options };
        Transfer { options, buffers: Mutex::default() }
    }

    /// Writes the ranges. `fill(job, offset, bytes)` is called once for every part of them, from several
    /// threads, and puts there what the file shall hold from `offset` on.
    pub fn write<E: From<Error> + Send>(
        &self,
        jobs: &[WriteJob<'_>],
        fill: impl Fn(usize, u64, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<TransferStats, E> {
        let mut tasks = Vec::new();
        for (job, WriteJob { range, .. }) in jobs.iter().enumerate() {
            tasks.extend(self.chunks(range.clone()).map(|part| (job, part)));
        }
        let operations = tasks.len() as u64;
        let bytes = jobs.iter().map(|job| job.range.end.saturating_sub(job.range.start)).sum();
        self.each::<_, E>(&tasks, |(job, part), buffer| {
            // Placed so that whole blocks of the file are whole blocks in memory.
            let start = (part.start % BLOCK as u64) as usize;
            let staged = &mut buffer.bytes_mut()[start..start + (part.end - part.start) as usize];
            fill(*job, part.start, staged)?;
            Ok(jobs[*job].file.write_at(part.start, staged)?)
        })?;
        Ok(TransferStats { operations, bytes })
    }

    /// Reads the ranges. `sink(job, range, offset, bytes)` is called from several threads with every part
    /// of every wanted range, in no particular order.
    pub fn read<E: From<Error> + Send>(
        &self,
        jobs: &[ReadJob<'_>],
        sink: impl Fn(usize, usize, u64, &[u8]) -> Result<(), E> + Sync,
    ) -> Result<TransferStats, E> {
        for job in jobs {
            for range in job.ranges.iter().filter(|r| r.start < r.end) {
                crate::store::check_range(job.file, range.start, range.end - range.start)?;
            }
        }
        let tasks: Vec<((usize, u64), Vec<Piece>)> = self.pieces(jobs).into_iter().collect();
        let (operations, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        self.each::<_, E>(&tasks, |((job, _), pieces), buffer| {
            let file = jobs[*job].file;
            for run in coalesce(pieces.iter().map(|piece| piece.range.clone()), self.options.gap) {
                let got = read_aligned(file, &run, buffer.bytes_mut())?;
                operations.fetch_add(1, Relaxed);
                bytes.fetch_add(got.len() as u64, Relaxed);
                let base = run.start - run.start % BLOCK as u64;
                for piece in pieces.iter().filter(|piece| run.contains(&piece.range.start)) {
                    let at = |offset: u64| (offset - base) as usize;
                    let part = &got[at(piece.range.start)..at(piece.range.end)];
                    sink(*job, piece.wanted, piece.range.start, part)?;
                }
            }
            Ok(())
        })?;
        Ok(TransferStats { operations: operations.into_inner(), bytes: bytes.into_inner() })
    }

    /// Reads ranges into memory. Where a range lies in its file as its memory lies on pages, whole blocks go
    /// there without a copy. `check(job, range, offset, bytes)` sees every part once it has arrived.
    pub fn read_into<E: From<Error> + Send>(
        &self,
        jobs: Vec<IntoJob<'_>>,
        check: impl Fn(usize, usize, u64, &[u8]) -> Result<(), E> + Sync,
    ) -> Result<TransferStats, E> {
        let mut tasks = Vec::new();
        for (job, IntoJob { file, ranges }) in jobs.into_iter().enumerate() {
            for (wanted, (start, mut rest)) in ranges.into_iter().enumerate() {
                crate::store::check_range(file, start, rest.len() as u64)?;
                for part in self.chunks(start..start + rest.len() as u64) {
                    let (now, later) = rest.split_at_mut((part.end - part.start) as usize);
                    tasks.push(Mutex::new((file, job, wanted, part.start, now)));
                    rest = later;
                }
            }
        }
        let (operations, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        self.each::<_, E>(&tasks, |task, buffer| {
            // Each task is taken by one thread; the lock only says so to the compiler.
            let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
            let (file, job, wanted, start, into) = &mut *task;
            let read = read_part(*file, *start, into, buffer)?;
            operations.fetch_add(read.operations, Relaxed);
            bytes.fetch_add(read.bytes, Relaxed);
            check(*job, *wanted, *start, into)
        })?;
        Ok(TransferStats { operations: operations.into_inner(), bytes: bytes.into_inner() })
    }

    /// How this transfer works.
    pub fn options(&self) -> &TransferOptions {
        &self.options
    }

    /// Writes each range. `lying(job)` says where the bytes lie already, one part after the other; where it does not, `fill(job, bytes)` puts
    /// there what the file shall hold, for one call. A range is at most one chunk and one block long.
    pub fn write_each<'a, E: From<Error> + Send>(
        &self,
        jobs: &[WriteJob<'_>],
        lying: impl Fn(usize) -> Option<Vec<&'a [u8]>> + Sync,
        fill: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    ) -> Result<TransferStats, E> {
        let mut bytes = 0;
        for WriteJob { file, range } in jobs {
            bytes += self.fits(file.name(), range)?;
        }
        let numbers: Vec<usize> = (0..jobs.len()).collect();
        self.each::<_, E>(&numbers, |&job, buffer| {
            let WriteJob { file, range } = &jobs[job];
            if let Some(parts) = lying(job) {
                let mut at = range.start;
                for part in parts {
                    file.write_at(at, part)?;
                    at += part.len() as u64;
                }
                return Ok(());
            }
            let start = (range.start % BLOCK as u64) as usize;
            let staged = &mut buffer.bytes_mut()[start..start + (range.end - range.start) as usize];
            fill(job, staged)?;
            Ok(file.write_at(range.start, staged)?)
        })?;
        Ok(TransferStats { operations: jobs.len() as u64, bytes })
    }

    /// Reads each range in one call and gives it whole to `sink(job, bytes)`, from several threads. A range is at
    /// most one chunk and one block long. Over a network neighbours come in one answer, as far as a chunk holds them.
    pub fn read_each<E: From<Error> + Send>(
        &self,
        jobs: &[(&dyn Reader, Range<u64>)],
        sink: impl Fn(usize, &[u8]) -> Result<(), E> + Sync,
    ) -> Result<TransferStats, E> {
        for (file, range) in jobs {
            let len = self.fits(file.name(), range)?;
            crate::store::check_range(*file, range.start, len)?;
        }
        let answers = self.answers(jobs);
        let bytes = AtomicU64::new(0);
        self.each::<_, E>(&answers, |answer, buffer| {
            let (file, first) = &jobs[answer.start];
            // Memory is not copied to be looked at.
            if file.medium() == Medium::Memory
                && let Some(mapped) = file.map(first.clone())?
            {
                mapped.populate();
                bytes.fetch_add(mapped.bytes().len() as u64, Relaxed);
                let taken = sink(answer.start, mapped.bytes());
                mapped.forget();
                return taken;
            }
            let got = read_aligned(*file, &(first.start..jobs[answer.end - 1].1.end), buffer.bytes_mut())?;
            bytes.fetch_add(got.len() as u64, Relaxed);
            let base = first.start - first.start % BLOCK as u64;
            answer.clone().try_for_each(|job| {
                let range = &jobs[job].1;
                sink(job, &got[(range.start - base) as usize..(range.end - base) as usize])
            })
        })?;
        Ok(TransferStats { operations: answers.len() as u64, bytes: bytes.into_inner() })
    }

    /// The jobs that are read together.
    fn answers(&self, jobs: &[(&dyn Reader, Range<u64>)]) -> Vec<Range<usize>> {
        let mut answers: Vec<Range<usize>> = Vec::new();
        for (job, (file, range)) in jobs.iter().enumerate() {
            if let Some(answer) = answers.last_mut() {
                let (before, first) = &jobs[answer.start];
                let follows = file.medium() == Medium::Network
                    && std::ptr::addr_eq(*before, *file)
                    && jobs[job - 1].1.end == range.start
                    && range.end - first.start <= self.options.chunk as u64;
                if follows {
                    answer.end = job + 1;
                    continue;
                }
            }
            answers.push(job..job + 1);
        }
        answers
    }

    /// The length of a range that one buffer holds.
    fn fits(&self, name: &str, range: &Range<u64>) -> Result<u64> {
        let (len, limit) = (range.end.saturating_sub(range.start), (self.options.chunk + BLOCK) as u64);
        if len <= limit { Ok(len) } else { Err(Error::TooLarge { name: name.to_string(), size: len, limit }) }
    }

    /// `range` cut at the multiples of the chunk size.
    fn chunks(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let chunk = self.options.chunk as u64;
        let mut at = range.start;
        std::iter::from_fn(move || {
            let end = (at / chunk).saturating_add(1).saturating_mul(chunk).min(range.end);
            (at < range.end).then(|| std::mem::replace(&mut at, end)..end)
        })
    }

    fn pieces(&self, jobs: &[ReadJob<'_>]) -> BTreeMap<(usize, u64), Vec<Piece>> {
        let mut tasks: BTreeMap<(usize, u64), Vec<Piece>> = BTreeMap::new();
        for (job, ReadJob { ranges, .. }) in jobs.iter().enumerate() {
            for (wanted, range) in ranges.iter().enumerate() {
                for part in self.chunks(range.clone()) {
                    let number = part.start / self.options.chunk as u64;
                    tasks.entry((job, number)).or_default().push(Piece { wanted, range: part });
                }
            }
        }
        tasks
    }

    /// Runs the tasks on the threads, in order of their start; the first error stops the rest.
    fn each<T: Sync, E: Send>(
        &self,
        tasks: &[T],
        work: impl Fn(&T, &mut Buffer<'_>) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let failed: Mutex<Option<E>> = Mutex::new(None);
        let run = || {
            let mut buffer = Buffer { transfer: self, staging: None };
            while !stop.load(Relaxed) {
                let Some(task) = tasks.get(next.fetch_add(1, Relaxed)) else { break };
                if let Err(error) = work(task, &mut buffer) {
                    stop.store(true, Relaxed);
                    failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        let threads = self.options.threads.min(tasks.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(run);
            }
            run();
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// The staging memory of one thread, taken when it is needed: what is mapped or read into place needs none.
struct Buffer<'a> {
    transfer: &'a Transfer,
    staging: Option<Staging>,
}

impl Buffer<'_> {
    /// A buffer that was used before, or a new one: the first transfer makes them, each thread its own, while
    /// others wait for the storage already.
    fn bytes_mut(&mut self) -> &mut [u8] {
        let Transfer { options, buffers } = self.transfer;
        let taken = || buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        self.staging
            .get_or_insert_with(|| taken().unwrap_or_else(|| Staging::new(options.chunk + SLACK)))
            .bytes_mut()
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut kept = self.transfer.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(self.staging.take());
    }
}

/// Reads one part: whole blocks straight into place when file and memory agree about them, else through the
/// buffer.
fn read_part(
    file: &dyn Reader,
    start: u64,
    into: &mut [u8],
    buffer: &mut Buffer<'_>,
) -> Result<TransferStats> {
    let past = (start % BLOCK as u64) as usize;
    if into.as_ptr() as usize % BLOCK != past || into.len() < 2 * BLOCK {
        let got = read_aligned(file, &(start..start + into.len() as u64), buffer.bytes_mut())?;
        into.copy_from_slice(&got[past..past + into.len()]);
        return Ok(TransferStats { operations: 1, bytes: got.len() as u64 });
    }
    let head = (BLOCK - past) % BLOCK;
    let tail = (into.len() - head) % BLOCK;
    let middle = into.len() - head - tail;
    let (first, rest) = into.split_at_mut(head);
    let (blocks, last) = rest.split_at_mut(middle);
    let mut operations = 0;
    let mut at = start;
    for part in [first, blocks, last] {
        if !part.is_empty() {
            crate::store::fill(file, at, part)?;
            at += part.len() as u64;
            operations += 1;
        }
    }
    Ok(TransferStats { operations, bytes: at - start })
}

/// The blocks that hold `range`; fewer bytes only where the file ends.
fn read_aligned<'b>(file: &dyn Reader, range: &Range<u64>, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
    let block = BLOCK as u64;
    let start = range.start - range.start % block;
    let len = (range.end.next_multiple_of(block) - start) as usize;
    let read = file.read_at(start, &mut buffer[..len])?;
    if start + (read as u64) < range.end {
        let len = range.end - range.start;
        let name = file.name().to_string();
        return Err(Error::OutOfFile { name, offset: range.start, len, size: start + read as u64 });
    }
    Ok(&buffer[..read])
}
