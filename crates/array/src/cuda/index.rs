//! Launchers of reading and writing through positions: rows by index arrays, elements along a dim.

use super::order::{Sorted, sort_pairs};
use super::program::{CHECK, INDEX, MASK, SEGMENT, Word, computed, elements, kernel, rows, segments};
use super::walk::{Walk, walks};
use super::{blocks, fresh, lane_of, late, launch_over, read, scratch};
use crate::array::{Array, contiguous_strides};
use crate::error::{Error, Result};
use crate::storage::Coverage;
use planaria_cuda::{Arg, Block, Lane, LateNote, Launch};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// Index arrays a kernel takes.
const MOST_COLUMNS: usize = 8;

/// An index array over rows: `stride` rows for each step, `extent` steps.
pub(crate) struct Column {
    /// I64, contiguous.
    pub(crate) values: Array,
    pub(crate) extent: usize,
    pub(crate) stride: usize,
    /// Its entry in the expression and its dim, for messages.
    pub(crate) entry: usize,
    pub(crate) dim: usize,
}

/// What is written by [`put_rows`] and [`put_along`].
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// Of several values for one place the last counts.
    Replace,
    /// The values are folded, with the old one or without it.
    Fold { op: FoldOp, include: bool, mean: bool },
}

/// How values that meet are folded.
#[derive(Clone, Copy)]
pub(crate) enum FoldOp {
    Sum,
    Product,
    Largest,
    Smallest,
}

impl Rule {
    /// Added to what is there.
    pub(crate) const ADD: Rule = Rule::Fold { op: FoldOp::Sum, include: true, mean: false };
}

/// The struct `Index` of `index.cu`, and the slots it reports to.
struct Packed {
    words: Vec<u64>,
    slots: u64,
    _held: Vec<super::Held>,
}

fn pack(op: &'static str, lane: &Arc<Lane>, columns: &[Column], count: usize) -> Result<Packed> {
    if columns.len() > MOST_COLUMNS {
        let what = format!("{} index arrays; at most {MOST_COLUMNS} are possible", columns.len());
        return Err(Error::argument(op, what));
    }
    let mut words = vec![0u64; 3 * MOST_COLUMNS + 2];
    let (mut held, mut notes) = (Vec::new(), Vec::new());
    for (c, column) in columns.iter().enumerate() {
        let values = read(op, lane, &column.values)?;
        words[c] = values.address;
        words[MOST_COLUMNS + c] = column.extent as u64;
        words[2 * MOST_COLUMNS + c] = column.stride as u64;
        held.push(values);
        let (size, dim, entry) = (column.extent, column.dim, column.entry);
        notes.push(LateNote { op, kind: late::INDEX, size, dim, entry });
    }
    (words[3 * MOST_COLUMNS], words[3 * MOST_COLUMNS + 1]) = (count as u64, columns.len() as u64);
    Ok(Packed { words, slots: lane.slots(&notes)?.0, _held: held })
}

/// True when rows of `inner` elements are whole packets of 16 bytes at these addresses.
fn in_packets(inner: usize, size: usize, addresses: &[u64]) -> bool {
    (inner * size).is_multiple_of(16) && addresses.iter().all(|address| address.is_multiple_of(16))
}

/// Rows of a contiguous array, `[rows.., inner..]`, by index arrays of `count` entries each.
pub(crate) fn take_rows(
    op: &'static str,
    x: &Array,
    inner: usize,
    columns: &[Column],
    count: usize,
    shape: &Shape,
) -> Result<Array> {
    let lane = lane_of(op, x)?;
    let (out, address) = fresh(op, &lane, shape, x.dtype())?;
    if out.numel() == 0 {
        return Ok(out);
    }
    let from = read(op, &lane, x)?;
    let index = pack(op, &lane, columns, count)?;
    let word = Word::reaching(x.numel().max(count * inner));
    let packets = in_packets(inner, x.dtype().size(), &[from.address, address]);
    let kernel = kernel(&lane, &INDEX, &rows(x.dtype(), word, packets), "index_read")?;
    let args = [
        Arg::Words(&index.words),
        Arg::U64(from.address),
        Arg::U64(inner as u64),
        Arg::U64(address),
        Arg::U64(index.slots),
    ];
    launch_over(op, &lane, &kernel, count * inner, &args)?;
    Ok(out)
}

/// Where values land among `limit` rows, one word each; out of range is `limit`.
pub(crate) struct Keys {
    block: Block,
    count: usize,
    limit: usize,
    word: Word,
}

/// The rows that index arrays name.
fn row_keys(
    op: &'static str,
    lane: &Arc<Lane>,
    columns: &[Column],
    count: usize,
    limit: usize,
    inner: usize,
) -> Result<Keys> {
    let word = Word::reaching(limit.max(count).saturating_mul(inner));
    let index = pack(op, lane, columns, count)?;
    let block = lane.block(op, count * word.bytes())?;
    let kernel = kernel(lane, &INDEX, &rows(DType::U8, word, false), "index_keys")?;
    let args =
        [Arg::Words(&index.words), Arg::U64(limit as u64), Arg::U64(block.address()), Arg::U64(index.slots)];
    launch_over(op, lane, &kernel, count, &args)?;
    Ok(Keys { block, count, limit, word })
}

/// Writes values to rows of a contiguous view. `values` has a row for each entry, or is one row for all of them.
pub(crate) fn put_rows(
    op: &'static str,
    out: &Array,
    inner: usize,
    (columns, count): (&[Column], usize),
    values: &Array,
    rule: Rule,
) -> Result<()> {
    let lane = lane_of(op, out)?;
    let limit = out.numel() / inner.max(1);
    let keys = row_keys(op, &lane, columns, count, limit, inner)?;
    write_keys(op, &lane, &keys, out, inner, values, rule)
}

/// Elements along a dim: `out[..] = x[.., index[..], ..]`. The strides are those of `x` and of the index over the shape
/// of the result; along the dim that of `x` is 0 and `step` leads to the next element.
pub(crate) struct Along<'a> {
    pub(crate) op: &'static str,
    pub(crate) extent: usize,
    pub(crate) step: isize,
    pub(crate) index: &'a Array,
    pub(crate) index_strides: &'a [isize],
    pub(crate) note: LateNote,
    /// Entries below zero count from the end.
    pub(crate) wrap: bool,
}

pub(crate) fn take_along(x: &Array, strides: &[isize], shape: &Shape, along: &Along<'_>) -> Result<Array> {
    let Along { op, extent, step, .. } = *along;
    let lane = lane_of(op, x)?;
    let (out, address) = fresh(op, &lane, shape, x.dtype())?;
    let (from, index) = (read(op, &lane, x)?, read(op, &lane, along.index)?);
    let kernel = kernel(&lane, &INDEX, &rows(x.dtype(), Word::Short, false), "along_read")?;
    let size = x.dtype().size() as isize;
    for Walk { words, skip, numel } in walks(shape, &[out.strides(), strides, along.index_strides]) {
        let moved = |address: u64, bytes: isize| Arg::U64(address.wrapping_add_signed(bytes as i64));
        let args = [
            Arg::Words(&words),
            moved(address, skip[0] * size),
            moved(from.address, skip[1] * size),
            moved(index.address, skip[2] * 8),
            Arg::U64(extent as u64),
            Arg::U64(step as i64 as u64),
            Arg::U32(along.wrap as u32),
            Arg::U64(lane.slot(along.note)?.0),
        ];
        launch_over(op, &lane, &kernel, numel, &args)?;
    }
    Ok(out)
}

/// Writes values, one for each entry of `index`, to places along a dim of a contiguous array.
pub(crate) fn put_along(
    op: &'static str,
    out: &Array,
    dim: usize,
    index: &Array,
    values: &Array,
    rule: Rule,
) -> Result<()> {
    let lane = lane_of(op, out)?;
    let (count, limit) = (index.numel(), out.numel());
    let word = Word::reaching(limit.max(count));
    let block = lane.block(op, count * word.bytes())?;
    let held = read(op, &lane, index)?;
    let kernel = kernel(&lane, &INDEX, &rows(DType::U8, word, false), "along_keys")?;
    let mut places = contiguous_strides(out.shape());
    let (step, extent) = (places[dim], out.shape()[dim]);
    places[dim] = 0;
    let note = LateNote { op, kind: late::POSITION, size: extent, dim, entry: 0 };
    let pieces = walks(index.shape(), &[&places, index.strides()]);
    let [Walk { words, numel, .. }] = pieces.as_slice() else {
        let what = format!("an index of shape {} with these strides; copy it first", index.shape());
        return Err(Error::argument(op, what));
    };
    let args = [
        Arg::Words(words),
        Arg::U64(held.address),
        Arg::U64(extent as u64),
        Arg::U64(step as u64),
        Arg::U64(limit as u64),
        Arg::U64(block.address()),
        Arg::U64(lane.slot(note)?.0),
    ];
    launch_over(op, &lane, &kernel, *numel, &args)?;
    write_keys(op, &lane, &Keys { block, count, limit, word }, out, 1, values, rule)
}

/// Writes values to the rows of a contiguous view that keys name.
fn write_keys(
    op: &'static str,
    lane: &Arc<Lane>,
    keys: &Keys,
    out: &Array,
    inner: usize,
    values: &Array,
    rule: Rule,
) -> Result<()> {
    let each = values.numel() == keys.count * inner;
    let values = &if each { values.contiguous()? } else { repeated(values, inner)? };
    let held = read(op, lane, values)?;
    let update = out.begin_cuda_update(op, lane, Coverage::Part)?;
    let to = update.address() + (out.offset() * out.dtype().size()) as u64;
    let write = Write {
        op,
        lane,
        keys,
        dtype: out.dtype(),
        inner,
        values: held.address,
        stride: inner * each as usize,
        to,
    };
    match rule {
        Rule::Replace => write.replace()?,
        Rule::Fold { op, include, mean } => write.fold(op, include, mean)?,
    }
    update.commit();
    Ok(())
}

/// One row for all entries: as long as a row, and at least a packet.
fn repeated(value: &Array, inner: usize) -> Result<Array> {
    if value.numel() == 1 {
        let len = inner.max(16 / value.dtype().size());
        return value.reshape(&[])?.broadcast_to(&[len])?.contiguous();
    }
    value.contiguous()
}

/// Addresses of one write.
struct Write<'a> {
    op: &'static str,
    lane: &'a Arc<Lane>,
    keys: &'a Keys,
    dtype: DType,
    inner: usize,
    values: u64,
    /// Elements between rows of values: 0 where one is for all.
    stride: usize,
    to: u64,
}

impl Write<'_> {
    fn replace(&self) -> Result<()> {
        let Write { op, lane, keys, .. } = *self;
        let winner = scratch(op, lane, keys.limit * keys.word.bytes())?;
        let defines = rows(self.dtype, keys.word, false);
        let claim = kernel(lane, &INDEX, &defines, "key_claim")?;
        let front =
            [Arg::U64(keys.block.address()), Arg::U64(keys.count as u64), Arg::U64(keys.limit as u64)];
        let args = [&front[..], &[Arg::U64(winner.address())]].concat();
        launch_over(op, lane, &claim, keys.count, &args)?;
        let packets = in_packets(self.inner, self.dtype.size(), &[self.values, self.to]);
        let write = kernel(lane, &INDEX, &rows(self.dtype, keys.word, packets), "key_write")?;
        let rest =
            [self.values, self.stride as u64, self.inner as u64, winner.address(), self.to].map(Arg::U64);
        launch_over(op, lane, &write, keys.count * self.inner, &[&front[..], &rest[..]].concat())
    }

    fn fold(&self, fold: FoldOp, include: bool, mean: bool) -> Result<()> {
        let Write { op, lane, keys, .. } = *self;
        let sorted = sort_pairs(
            op,
            lane,
            keys.block.address(),
            keys.count,
            keys.limit as u64,
            (keys.word, keys.word),
        )?;
        let longer = scratch(op, lane, 4 * (keys.count / 128 + 2))?;
        let packets = in_packets(self.inner, self.dtype.size(), &[self.values, self.to]);
        let flags = u64::from(include) | u64::from(mean) << 32;
        // Keys, positions, starts, number, values, out, longer, parts, value_stride, inner, flags, op.
        let mut words = [0u64; 12];
        (words[0], words[1]) = (sorted.keys.address(), sorted.positions.address());
        (words[4], words[5], words[6]) = (self.values, self.to, longer.address());
        (words[8], words[9], words[10], words[11]) =
            (self.stride as u64, self.inner as u64, flags, fold as u64);
        let defines = segments(self.dtype, keys.word, packets);
        if self.inner == 1 && keys.count < 1 << 30 {
            return self.fold_elements(&segments(self.dtype, keys.word, false), words);
        }
        self.fold_rows(&defines, words, &sorted)
    }

    fn fold_elements(&self, defines: &str, mut words: [u64; 12]) -> Result<()> {
        let Write { op, lane, keys, .. } = *self;
        let parts = lane.block(op, 8 * (keys.count / 64 + 2))?;
        words[7] = parts.address();
        let count = Arg::U64(keys.count as u64);
        let first = kernel(lane, &SEGMENT, defines, "segment_elements")?;
        launch_over(op, lane, &first, keys.count, &[Arg::Words(&words), count, Arg::U64(keys.limit as u64)])?;
        if keys.count <= 128 {
            return Ok(());
        }
        let wide = blocks(lane, keys.count / 128 * 256, 1);
        let grids = [("segment_runs", keys.count.div_ceil(32768) as u32), ("segment_fold", 1)];
        for (name, high) in grids {
            let kernel = kernel(lane, &SEGMENT, defines, name)?;
            let launch = Launch { op, kernel: &kernel, grid: [wide, high, 1], block: [256, 1, 1], shared: 0 };
            lane.launch(&launch, &[Arg::Words(&words), count])?;
        }
        Ok(())
    }

    fn fold_rows(&self, defines: &str, mut words: [u64; 12], sorted: &Sorted) -> Result<()> {
        let Write { op, lane, keys, .. } = *self;
        let tiles = keys.count.div_ceil(4096);
        let (sums, places) = (lane.block(op, 4 * tiles)?, lane.block(op, 8 * (tiles + 1))?);
        let starts = lane.block(op, (keys.count + 1) * keys.word.bytes())?;
        let args = [sorted.keys.address(), keys.count as u64, keys.limit as u64].map(Arg::U64);
        let launch = |name: &str, grid: u32, args: &[Arg<'_>]| -> Result<()> {
            let kernel = kernel(lane, &SEGMENT, defines, name)?;
            let launch = Launch { op, kernel: &kernel, grid: [grid, 1, 1], block: [256, 1, 1], shared: 0 };
            Ok(lane.launch(&launch, args)?)
        };
        launch("segment_count", tiles as u32, &[&args[..], &[Arg::U64(sums.address())]].concat())?;
        tile_scan(op, lane, &sums, tiles, &places)?;
        let ends = [Arg::U64(places.address()), Arg::U64(starts.address())];
        launch("segment_starts", tiles as u32, &[&args[..], &ends[..]].concat())?;
        (words[2], words[3]) = (starts.address(), places.address() + 8 * tiles as u64);
        let grid = blocks(lane, keys.count * 32 * self.inner.div_ceil(32), 1);
        launch("segment_rows", grid, &[Arg::Words(&words)])?;
        launch("segment_rows_longer", grid, &[Arg::Words(&words)])
    }
}

/// What lies before each tile, and behind the last one the total.
pub(super) fn tile_scan(
    op: &'static str,
    lane: &Arc<Lane>,
    sums: &Block,
    tiles: usize,
    starts: &Block,
) -> Result<()> {
    let kernel = kernel(lane, &MASK, &elements(DType::U8), "tile_scan")?;
    let launch = Launch { op, kernel: &kernel, grid: [1, 1, 1], block: [1024, 1, 1], shared: 0 };
    Ok(lane.launch(&launch, &[sums.address(), tiles as u64, starts.address()].map(Arg::U64))?)
}

/// Has integers outside `0..size` reported when the host next waits; `skip` is right as well.
pub(crate) fn check_within(x: &Array, skip: Option<i64>, note: LateNote) -> Result<()> {
    let lane = lane_of(note.op, x)?;
    let kernel = kernel(&lane, &CHECK, &computed(x.dtype()), "within")?;
    let held = read(note.op, &lane, x)?;
    for Walk { words, skip: at, numel } in walks(x.shape(), &[x.strides()]) {
        let start = held.address.wrapping_add_signed((at[0] * x.dtype().size() as isize) as i64);
        let args = [
            Arg::Words(&words),
            Arg::U64(start),
            Arg::U64(note.size as u64),
            Arg::U64(skip.unwrap_or(0) as u64),
            Arg::U32(skip.is_some() as u32),
            Arg::U64(lane.slot(note)?.0),
        ];
        launch_over(note.op, &lane, &kernel, numel, &args)?;
    }
    Ok(())
}
