//! Launchers of sorting: keys with their positions, and rows of elements by them.

use super::program::{RADIX, SORT, Word, kernel, ordered, sorted};
use super::{blocks, fresh, lane_of, launch_over, read, scratch};
use crate::array::Array;
use crate::error::Result;
use planaria_cuda::{Arg, Block, Lane, Launch};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// Keys in order, and where each came from.
pub(super) struct Sorted {
    pub(super) keys: Block,
    pub(super) positions: Block,
}

/// Keys a block takes in a pass.
const TILE: usize = 4096;
const DIGITS: usize = 256;

/// A stable sort of keys that are at most `most`; the words are those of keys and of positions.
pub(super) fn sort_pairs(
    op: &'static str,
    lane: &Arc<Lane>,
    keys: u64,
    count: usize,
    most: u64,
    (key, payload): (Word, Word),
) -> Result<Sorted> {
    let passes = (64 - most.leading_zeros()).div_ceil(8).max(1) as usize;
    let tiles = count.div_ceil(TILE);
    let defines = sorted(key, payload);
    let histogram = scratch(op, lane, passes * DIGITS * 8)?;
    let status = lane.block(op, (tiles * DIGITS + 1) * 8)?;
    let pair = || -> Result<Sorted> {
        Ok(Sorted {
            keys: lane.block(op, count * key.bytes())?,
            positions: lane.block(op, count * payload.bytes())?,
        })
    };
    let mut rooms = [pair()?, pair()?];
    let launch = |name: &str, grid: u32, args: &[Arg<'_>]| -> Result<()> {
        let kernel = kernel(lane, &RADIX, &defines, name)?;
        let launch = Launch { op, kernel: &kernel, grid: [grid, 1, 1], block: [256, 1, 1], shared: 0 };
        Ok(lane.launch(&launch, args)?)
    };
    let front =
        [Arg::U64(keys), Arg::U64(count as u64), Arg::U32(passes as u32), Arg::U64(histogram.address())];
    launch("radix_histogram", blocks(lane, count, 16), &front)?;
    launch("radix_scan", passes as u32, &[Arg::U64(histogram.address())])?;
    let (mut from, mut payload_from) = (keys, 0);
    for pass in 0..passes {
        lane.fill_bytes(op, status.address(), 0, (tiles * DIGITS + 1) * 8)?;
        let to = &rooms[pass % 2];
        let ticket = status.address() + (tiles * DIGITS * 8) as u64;
        let args = [
            Arg::U64(from),
            Arg::U64(payload_from),
            Arg::U64(count as u64),
            Arg::U32(8 * pass as u32),
            Arg::U64(histogram.address() + (pass * DIGITS * 8) as u64),
            Arg::U64(status.address()),
            Arg::U64(ticket),
            Arg::U64(to.keys.address()),
            Arg::U64(to.positions.address()),
        ];
        launch("radix_pass", tiles as u32, &args)?;
        (from, payload_from) = (to.keys.address(), to.positions.address());
    }
    rooms.swap(0, (passes - 1) % 2);
    let [last, _] = rooms;
    Ok(last)
}

/// The first `kept` positions of each row of a contiguous `[rows, cols]` array in order; NaN counts as the largest.
pub(crate) fn sort_rows(
    op: &'static str,
    x: &Array,
    cols: usize,
    kept: usize,
    descending: bool,
    shape: &Shape,
) -> Result<Array> {
    let lane = lane_of(op, x)?;
    let (out, address) = fresh(op, &lane, shape, DType::I64)?;
    if out.numel() == 0 {
        return Ok(out);
    }
    let (count, rows) = (x.numel(), x.numel() / cols);
    let (held, payload) = (read(op, &lane, x)?, Word::reaching(count));
    let defines = ordered(x.dtype(), payload);
    let bits = 8 * x.dtype().size() as u32;
    let row_bits = usize::BITS - (rows - 1).leading_zeros();
    let keys = lane.block(op, count * 8)?;
    let make = kernel(&lane, &SORT, &defines, "sort_keys")?;
    let take = kernel(&lane, &SORT, &defines, "sort_take")?;
    // Keys hold the row's number above the element's order; where they do not fit, rows go by themselves.
    let together = if bits + row_bits <= 64 { rows } else { 1 };
    for first in (0..rows).step_by(together) {
        let skip = (first * cols) as u64;
        let (here, size) = ((together * cols) as u64, x.dtype().size() as u64);
        let from = held.address + skip * size;
        let args = [
            Arg::U64(from),
            Arg::U64(together as u64),
            Arg::U64(cols as u64),
            Arg::U32(descending as u32),
            Arg::U64(keys.address()),
        ];
        launch_over(op, &lane, &make, here as usize, &args)?;
        let most = match bits + if together > 1 { row_bits } else { 0 } {
            64 => u64::MAX,
            bits => (1 << bits) - 1,
        };
        let sorted = sort_pairs(op, &lane, keys.address(), here as usize, most, (Word::Long, payload))?;
        let args = [
            from,
            sorted.positions.address(),
            together as u64,
            cols as u64,
            kept as u64,
            0,
            address + (first * kept * 8) as u64,
        ]
        .map(Arg::U64);
        launch_over(op, &lane, &take, together * kept, &args)?;
    }
    Ok(out)
}

/// How many elements of each row of `n` come before each of `wanted` (`m` a row), or with `right` not after it.
pub(crate) fn search(
    op: &'static str,
    sorted: &Array,
    wanted: &Array,
    (n, m): (usize, usize),
    right: bool,
) -> Result<Array> {
    let lane = lane_of(op, sorted)?;
    let (out, address) = fresh(op, &lane, wanted.shape(), DType::I64)?;
    let (from, values) = (read(op, &lane, sorted)?, read(op, &lane, wanted)?);
    let kernel = kernel(&lane, &SORT, &ordered(sorted.dtype(), Word::Short), "sort_search")?;
    let counts = [wanted.numel(), n, m.max(1)].map(|n| Arg::U64(n as u64));
    let flags = [Arg::U32((sorted.ndim() > 1) as u32), Arg::U32(right as u32), Arg::U64(address)];
    let args = [&[Arg::U64(from.address), Arg::U64(values.address)], &counts[..], &flags[..]].concat();
    launch_over(op, &lane, &kernel, wanted.numel(), &args)?;
    Ok(out)
}
