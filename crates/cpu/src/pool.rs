//! Threads for kernels: a pool that the caller owns and sizes, and the few ways kernels use it.

use crate::error::{Error, Result};
use rayon::prelude::*;
use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// A set of worker threads. Kernels called inside [`Threads::run`] use these and no others;
/// outside, they use rayon's global pool. Results never depend on the number of threads.
#[derive(Debug)]
pub struct Threads(rayon::ThreadPool);

impl Threads {
    /// A pool of `count` threads.
    pub fn new(count: usize) -> Result<Threads> {
        crate::machine::check()?;
        if count == 0 {
            return Err(refused("a pool needs at least 1 thread, got 0".into()));
        }
        rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("planaria-{i}"))
            .build()
            .map(Threads)
            .map_err(|e| refused(format!("cannot start {count} threads: {e}")))
    }

    /// Runs `work` inside the pool.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.0.install(work)
    }

    /// How many threads the pool has.
    pub fn count(&self) -> usize {
        self.0.current_num_threads()
    }
}

fn refused(what: String) -> Error {
    Error { setting: "threads", what }
}

/// Below this many bytes touched, waking another thread costs more than it saves.
const SERIAL_BYTES: usize = 1 << 18;

thread_local! {
    /// Whether this thread does all its work itself.
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on this thread alone: threads that serve storage do not wait behind those that compute.
pub fn alone<R>(work: impl FnOnce() -> R) -> R {
    let before = ALONE.replace(true);
    let done = work();
    ALONE.set(before);
    done
}

/// How many pieces to cut `bytes` of work into.
fn pieces(bytes: usize) -> usize {
    if bytes < SERIAL_BYTES || ALONE.get() {
        return 1;
    }
    match rayon::current_num_threads() {
        1 => 1,
        // More pieces than threads, so that a disturbed thread does not hold up the rest.
        threads => (threads * 4).min(bytes.div_ceil(SERIAL_BYTES / 2)),
    }
}

/// Cuts `0..count` items into ranges whose bounds are multiples of `unit` and runs them on the pool.
/// `item_bytes` is the memory an item touches and decides whether threads are worth it.
///
/// Like the functions below it takes a `dyn`, so that a kernel is compiled once and the scheduling not with it.
pub fn for_ranges(count: usize, unit: usize, item_bytes: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
    let size = piece_len(count, unit, item_bytes);
    spread(count.div_ceil(size), &|i| work(i * size..((i + 1) * size).min(count)));
}

/// Runs `work` for each of `0..pieces` on the pool.
pub fn spread(pieces: usize, work: &(dyn Fn(usize) + Sync)) {
    match pieces {
        0 => {}
        1 => work(0),
        _ => (0..pieces).into_par_iter().with_max_len(1).for_each(work),
    }
}

/// Cuts `out` into pieces of whole `unit`s and runs `work(first index, piece)` on the pool.
/// `item_bytes` is the memory touched per element of `out`.
pub fn for_chunks_mut<T: Send>(
    out: &mut [T],
    unit: usize,
    item_bytes: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let size = piece_len(out.len(), unit, item_bytes);
    spread_chunks(out, size, &work);
}

/// Runs `work` on chunks of `size` on the pool; compiled once per element type.
fn spread_chunks<T: Send>(out: &mut [T], size: usize, work: &(dyn Fn(usize, &mut [T]) + Sync)) {
    match out.len() {
        0 => {}
        len if len <= size => work(0, out),
        _ => {
            // Each piece is taken by the one task with its number.
            let slots: Vec<Mutex<&mut [T]>> = out.chunks_mut(size).map(Mutex::new).collect();
            spread(slots.len(), &|i| {
                let mut piece = slots[i].lock().unwrap_or_else(PoisonError::into_inner);
                work(i * size, &mut piece);
            });
        }
    }
}

/// `dst.copy_from_slice(src)` on the pool; lengths must be equal.
pub fn copy_slice<T: Copy + Send + Sync>(dst: &mut [T], src: &[T]) {
    for_chunks_mut(dst, 4096, 2 * size_of::<T>(), |at, piece| {
        piece.copy_from_slice(&src[at..at + piece.len()]);
    });
}

/// The length of the pieces `count` items are best cut into, a multiple of `unit`; for kernels with several
/// outputs, which cut them all alike and hand the pieces to [`for_parts`].
pub fn piece_len(count: usize, unit: usize, item_bytes: usize) -> usize {
    let pieces = pieces(count.saturating_mul(item_bytes));
    count.div_ceil(pieces).next_multiple_of(unit.max(1)).max(1)
}

/// Runs `work` on every part, each on one thread; `bytes` is the memory all parts touch together.
pub fn for_parts<P: Send>(parts: Vec<P>, bytes: usize, work: impl Fn(P) + Sync) {
    spread_parts(parts, bytes, &work);
}

/// [`for_parts`], compiled once per type of part.
fn spread_parts<P: Send>(parts: Vec<P>, bytes: usize, work: &(dyn Fn(P) + Sync)) {
    if pieces(bytes) == 1 {
        return parts.into_iter().for_each(work);
    }
    let slots: Vec<Mutex<Option<P>>> = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
    spread(slots.len(), &|i| {
        let part = slots[i].lock().unwrap_or_else(PoisonError::into_inner).take();
        part.into_iter().for_each(work);
    });
}
