//! Launchers of kernels over contiguous rows: running sums, softmax.

use super::program::{LINES, SCAN, SOFTMAX, computed, kernel, running, softmaxed};
use super::{blocks, fresh, lane_of, read};
use crate::array::Array;
use crate::error::Result;
use planaria_cuda::{Arg, Lane, Launch, Program};
use planaria_layout::DType;
use std::sync::Arc;

/// What runs along a row.
#[derive(Clone, Copy)]
pub(crate) enum Scan {
    Sum,
    Product,
}

/// Elements of a row that a block runs over.
const SCAN_TILE: usize = 2048;

/// A kernel with 256 threads a block, queued.
pub(super) fn run(
    op: &'static str,
    lane: &Arc<Lane>,
    (program, defines, name): (&Program, &str, &str),
    grid: u32,
    args: &[Arg<'_>],
) -> Result<()> {
    let kernel = kernel(lane, program, defines, name)?;
    Ok(lane
        .launch(&Launch { op, kernel: &kernel, grid: [grid, 1, 1], block: [256, 1, 1], shared: 0 }, args)?)
}

/// Running sums or products of the rows of a contiguous array in f32, f64 or i64.
pub(crate) fn scan(op: &'static str, x: &Array, scan: Scan) -> Result<Array> {
    let lane = lane_of(op, x)?;
    let (out, to) = fresh(op, &lane, x.shape(), x.dtype())?;
    let cols = x.shape().last().copied().unwrap_or(1);
    if x.numel() == 0 {
        return Ok(out);
    }
    let (rows, tiles) = (x.numel() / cols, cols.div_ceil(SCAN_TILE));
    let from = read(op, &lane, x)?;
    let defines = running(x.dtype(), scan as u8);
    let grid = blocks(&lane, rows * tiles * 256, 1);
    let front = [from.address, rows as u64, cols as u64, tiles as u64].map(Arg::U64);
    let sums = (tiles > 1).then(|| lane.block(op, rows * tiles * 8)).transpose()?;
    let before = sums.as_ref().map_or(0, |sums| sums.address());
    if tiles > 1 {
        run(op, &lane, (&SCAN, &defines, "scan_tiles"), grid, &[&front[..], &[Arg::U64(before)]].concat())?;
        let args = [before, rows as u64, tiles as u64].map(Arg::U64);
        run(op, &lane, (&SCAN, &defines, "scan_sums"), blocks(&lane, rows * 256, 1), &args)?;
    }
    let args = [&front[..], &[Arg::U64(before), Arg::U64(to), Arg::U32(0)]].concat();
    run(op, &lane, (&SCAN, &defines, "scan_rows"), grid, &args)?;
    Ok(out)
}

/// Where the extreme so far stands along a dim of `n` elements, `inner` apart, of a contiguous array.
pub(crate) fn running_extreme(
    op: &'static str,
    x: &Array,
    (n, inner): (usize, usize),
    largest: bool,
) -> Result<Array> {
    let lane = lane_of(op, x)?;
    let (out, to) = fresh(op, &lane, x.shape(), DType::I64)?;
    along_lines(op, "running_extreme", x, (n, inner), &[Arg::U32(largest as u32), Arg::U64(to)])?;
    Ok(out)
}

/// The log of the sum of exponentials so far, of f64.
pub(crate) fn running_logs(op: &'static str, x: &Array, (n, inner): (usize, usize)) -> Result<Array> {
    let lane = lane_of(op, x)?;
    let (out, to) = fresh(op, &lane, x.shape(), x.dtype())?;
    along_lines(op, "running_logs", x, (n, inner), &[Arg::U64(to)])?;
    Ok(out)
}

fn along_lines(
    op: &'static str,
    name: &str,
    x: &Array,
    (n, inner): (usize, usize),
    rest: &[Arg<'_>],
) -> Result<()> {
    if x.numel() == 0 {
        return Ok(());
    }
    let lane = lane_of(op, x)?;
    let (held, lines) = (read(op, &lane, x)?, x.numel() / n);
    let front = [held.address, lines as u64, n as u64, inner as u64].map(Arg::U64);
    let args = [&front[..], rest].concat();
    run(op, &lane, (&LINES, &computed(x.dtype()), name), blocks(&lane, lines, 1), &args)
}

/// Up to this length a warp takes a row, above it a block.
const WARP_ROW: usize = 2048;

/// Softmax of rows of `cols` elements of a contiguous array, or its logarithm.
pub(crate) fn softmax(op: &'static str, x: &Array, cols: usize, log: bool) -> Result<Array> {
    softmax_rows(op, "softmax", &[x], cols, log)
}

/// The gradient of [`softmax`] from its result.
pub(crate) fn softmax_grad(op: &'static str, dy: &Array, y: &Array, cols: usize, log: bool) -> Result<Array> {
    softmax_rows(op, "softmax_grad", &[dy, y], cols, log)
}

fn softmax_rows(op: &'static str, name: &str, inputs: &[&Array], cols: usize, log: bool) -> Result<Array> {
    let x = inputs[0];
    let lane = lane_of(op, x)?;
    let (out, to) = fresh(op, &lane, x.shape(), x.dtype())?;
    if x.numel() == 0 {
        return Ok(out);
    }
    let held = inputs.iter().map(|x| read(op, &lane, x)).collect::<Result<Vec<_>>>()?;
    let (rows, size) = (x.numel() / cols, x.dtype().size());
    let aligned = held.iter().all(|held| held.address.is_multiple_of(16)) && (cols * size).is_multiple_of(16);
    let lanes = if cols <= WARP_ROW { 32 } else { 256 };
    let defines = softmaxed(x.dtype(), log, lanes, aligned);
    let mut args: Vec<Arg<'_>> = held.iter().map(|held| Arg::U64(held.address)).collect();
    args.extend([to, rows as u64, cols as u64].map(Arg::U64));
    run(op, &lane, (&SOFTMAX, &defines, name), blocks(&lane, rows * lanes as usize, 1), &args)?;
    Ok(out)
}
