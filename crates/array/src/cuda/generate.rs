//! Launchers of generation: products of few rows, the cache of keys and values, and the choice of tokens, none of which waits.

use super::program::{DECODE, GEMV, GENERATE, LINEARS, decoded, few_rows, generated, kernel, some_rows};
use super::rows::run;
use super::{blocks, fresh, lane_of, read};
use crate::array::Array;
use crate::error::Result;
use crate::ops::{KeyValues, Layer, Norm, RotaryTable, Rows};
use crate::storage::Coverage;
use planaria_cuda::{Arg, Lane, Launch};
use planaria_layout::{DType, Shape};
use std::sync::Arc;

/// The most rows that products by [`linears`] are for; more are the library's.
pub(crate) const FEW: usize = 8;
/// Matrices of one launch.
const MOST_MATRICES: usize = 3;
/// Shared memory for the rows, so that two blocks fit a multiprocessor.
const MOST_SHARED: usize = 100 << 10;

fn aligned(x: &Array) -> bool {
    x.is_contiguous() && (x.offset() * x.dtype().size()).is_multiple_of(16)
}

/// True when [`linears`] takes these operands.
pub(crate) fn takes(x: &Array, norm: Option<Norm<'_>>, layers: &[Layer<'_>]) -> bool {
    let (rows, k) = (x.shape()[0], x.shape()[1]);
    let width = k * x.dtype().size();
    let narrow = matches!(x.dtype(), DType::BF16 | DType::F16 | DType::F32);
    let few = (1..=FEW).contains(&rows) && rows.next_power_of_two() * width <= MOST_SHARED;
    let whole = width.is_multiple_of(16) && k > 0;
    let alike = norm.is_none_or(|norm| norm.weight.dtype() == x.dtype() && aligned(norm.weight));
    let layers_fit = layers.iter().all(|layer| {
        aligned(layer.weight) && layer.weight.numel() > 0 && layer.bias.is_none_or(Array::is_contiguous)
    });
    narrow && few && whole && aligned(x) && alike && layers_fit && layers.len() <= MOST_MATRICES
}

/// Products of few rows, after their norm, with up to three matrices in one launch; or, `gated`, `silu` of the first times the
/// second; `added` is added to the only one.
pub(crate) fn linears(
    op: &'static str,
    x: &Array,
    norm: Option<Norm<'_>>,
    layers: &[Layer<'_>],
    (gated, added): (bool, Option<&Array>),
) -> Result<Vec<Array>> {
    let lane = lane_of(op, x)?;
    let (rows, k) = (x.shape()[0], x.shape()[1]);
    let address =
        |x: Option<&Array>| x.map_or(Ok(0), |x| Ok::<u64, crate::Error>(read(op, &lane, x)?.address));
    let results = if gated { 1 } else { layers.len() };
    let mut made = Vec::new();
    let [mut weights, mut biases, mut to, mut n] = [[0u64; MOST_MATRICES]; 4];
    for (i, layer) in layers.iter().enumerate() {
        let outputs = layer.weight.shape()[0];
        (weights[i], biases[i]) = (address(Some(layer.weight))?, address(layer.bias)?);
        if i < results {
            let (y, at) = fresh(op, &lane, &Shape::new(&[rows, outputs])?, x.dtype())?;
            (to[i], n[i]) = (at, outputs as u64);
            made.push(y);
        }
    }
    let mut words = vec![address(Some(x))?, address(norm.map(|norm| norm.weight))?, address(added)?];
    [weights, biases, to, n].iter().for_each(|part| words.extend(part));
    words.extend([rows as u64 | (k as u64) << 32, norm.map_or(0.0, |norm| norm.eps).to_bits()]);
    let total: usize = made.iter().map(|y| y.shape()[1]).sum();
    // Long rows of few outputs: several warps share one, so that all of the device reads.
    let split = if k * x.dtype().size() >= 4096 && total <= 8192 { 4 } else { 1 };
    let held = rows.next_power_of_two();
    let kernel = kernel(&lane, &LINEARS, &few_rows(x.dtype(), held, split, gated), "linears")?;
    // As many blocks as stay on the device at once, so that each makes its rows ready once.
    let most = lane.context().info().multiprocessors.max(1) as usize * if gated { 2 } else { 4 };
    let grid = [total.div_ceil(8 / split).min(most) as u32, 1, 1];
    let shared = (held * k * x.dtype().size()) as u32;
    lane.launch(&Launch { op, kernel: &kernel, grid, block: [256, 1, 1], shared }, &[Arg::Words(&words)])?;
    Ok(made)
}

/// The most rows and outputs of [`linear_some`]: beyond, the library is faster.
const SOME: usize = 64;
const NARROW: usize = 2048;

/// A layer of rows that are too many for [`linears`] and too few for the library, by tensor cores, with `added`; none where it
/// is not for that. Long sums of few outputs are where the library is slow, since it does not cut them.
pub(crate) fn linear_some(
    op: &'static str,
    x: &Array,
    layer: Layer<'_>,
    added: Option<&Array>,
) -> Result<Option<Array>> {
    let lane = lane_of(op, x)?;
    let (rows, k, n) = (x.shape()[0], x.shape()[1], layer.weight.shape()[0]);
    let narrow = matches!(x.dtype(), DType::BF16 | DType::F16) && lane.context().info().capability.0 >= 8;
    let sizes = (FEW + 1..=SOME).contains(&rows) && (1..=NARROW).contains(&n) && k > 0 && k.is_multiple_of(8);
    let flat = aligned(x) && aligned(layer.weight);
    let others = [layer.bias, added].into_iter().flatten().all(Array::is_contiguous);
    if !(narrow && sizes && flat && others) {
        return Ok(None);
    }
    let address =
        |x: Option<&Array>| x.map_or(Ok(0), |x| Ok::<u64, crate::Error>(read(op, &lane, x)?.address));
    let (y, to) = fresh(op, &lane, &Shape::new(&[rows, n])?, x.dtype())?;
    let mut args =
        [address(Some(x))?, address(Some(layer.weight))?, address(layer.bias)?, address(added)?, to]
            .map(Arg::U64)
            .to_vec();
    args.extend([rows, n, k].map(|n| Arg::U32(n as u32)));
    args.extend([k, n].map(|n| Arg::U64(n as u64)));
    let tiles = rows.div_ceil(8).next_power_of_two();
    run(op, &lane, (&GEMV, &some_rows(x.dtype(), tiles), "gemv"), n.div_ceil(16) as u32, &args)?;
    Ok(Some(y))
}

/// Rows of a contiguous table by ids that are known to be there.
pub(crate) fn look_up(op: &'static str, table: &Array, ids: &Array) -> Result<Array> {
    let lane = lane_of(op, table)?;
    let (rows, size, width) = (ids.numel(), table.shape()[0], table.shape()[1]);
    let (out, to) = fresh(op, &lane, &Shape::new(&[rows, width])?, table.dtype())?;
    let (from, at) = (read(op, &lane, table)?.address, read(op, &lane, ids)?.address);
    let args = [from, at, to, rows as u64, width as u64, size as u64].map(Arg::U64);
    run(op, &lane, (&GENERATE, &generated(table.dtype()), "look_up"), blocks(&lane, rows * width, 1), &args)?;
    Ok(out)
}

/// Where a contiguous array that a launch changes in place begins. Nobody else may hold its bytes at that time, or they move.
fn changed(op: &'static str, lane: &Arc<Lane>, x: &Array) -> Result<u64> {
    let update = x.begin_cuda_update(op, lane, Coverage::Part)?;
    let at = update.address() + (x.offset() * x.dtype().size()) as u64;
    update.commit();
    Ok(at)
}

/// Rotates contiguous queries in place and keys into the cache, and copies values into it.
pub(crate) fn rotate_into(
    op: &'static str,
    [q, k, v]: [&Array; 3],
    table: &RotaryTable,
    at: &KeyValues<'_>,
) -> Result<()> {
    let lane = lane_of(op, q)?;
    let [rows, kv_heads, capacity, dim] = [0, 1, 2, 3].map(|d| at.keys.shape()[d]);
    let heads = q.shape()[1] / dim;
    let address = |x: &Array| Ok::<u64, crate::Error>(read(op, &lane, x)?.address);
    let mut words = vec![changed(op, &lane, q)?, address(k)?, address(v)?];
    words.extend([changed(op, &lane, at.keys)?, changed(op, &lane, at.values)?, address(at.positions)?]);
    words.extend([address(&table.cos)?, address(&table.sin)?]);
    words.extend([rows, heads, kv_heads, dim, capacity, table.cos.shape()[0]].map(|n| n as u64));
    let units = rows * (heads + 2 * kv_heads) * dim / 2;
    let name = (&GENERATE, &*generated(q.dtype()), "rotate_into");
    run(op, &lane, name, blocks(&lane, units, 1), &[Arg::Words(&words)])
}

/// Keys of a split of `decode.cu` by warps.
const WARPS: usize = 2;

/// One query a row and head, `[rows, heads * dim]` contiguous, over the keys up to the row's position.
pub(crate) fn attend_rows(
    op: &'static str,
    q: &Array,
    at: &KeyValues<'_>,
    (window, scale): (usize, f64),
) -> Result<Array> {
    let lane = lane_of(op, q)?;
    let [rows, kv_heads, capacity, dim] = [0, 1, 2, 3].map(|d| at.keys.shape()[d]);
    let heads = q.shape()[1] / dim;
    let (out, to) = fresh(op, &lane, q.shape(), q.dtype())?;
    let address = |x: &Array| Ok::<u64, crate::Error>(read(op, &lane, x)?.address);
    let mut words = vec![address(q)?, address(at.keys)?, address(at.values)?, to];
    let cores = lane.context().info().capability.0 >= 8;
    let narrow = matches!(q.dtype(), DType::BF16 | DType::F16);
    if !(cores && narrow && matches!(dim, 64 | 128) && heads / kv_heads <= 16 && capacity < 1 << 30) {
        words.push(address(at.positions)?);
        words.extend([heads, kv_heads, dim, capacity, window].map(|n| n as u64));
        words.push(scale.to_bits());
        let kernel = kernel(&lane, &GENERATE, &generated(q.dtype()), "attend_rows")?;
        let grid = [(rows * heads) as u32, 1, 1];
        lane.launch(
            &Launch { op, kernel: &kernel, grid, block: [128, 1, 1], shared: 0 },
            &[Arg::Words(&words)],
        )?;
        return Ok(out);
    }
    let splits = capacity.div_ceil(64 * WARPS);
    let lines = rows * heads * splits;
    let parts = lane.block(op, lines * (dim + 2) * 4)?;
    let tops = parts.address() + (lines * dim * 4) as u64;
    words.extend([parts.address(), tops, tops + (lines * 4) as u64, address(at.positions)?]);
    let cache = [kv_heads * capacity * dim, capacity * dim, dim];
    let strides = [&[heads * dim, dim][..], &cache, &cache, &[heads * dim, dim]].concat();
    words.extend(strides.iter().map(|&n| n as u64));
    let pair = |low: usize, high: u32| low as u64 | u64::from(high) << 32;
    words.extend([
        pair(rows, heads as u32),
        pair(kv_heads, splits as u32),
        pair(window, (scale as f32).to_bits()),
    ]);
    let defines = decoded(q.dtype(), dim, WARPS);
    let launch = |name: &str, grid: [u32; 3], threads: usize, shared: usize| {
        let kernel = kernel(&lane, &DECODE, &defines, name)?;
        let block = [threads as u32, 1, 1];
        let launch = Launch { op, kernel: &kernel, grid, block, shared: shared as u32 };
        Ok::<(), crate::Error>(lane.launch(&launch, &[Arg::Words(&words)])?)
    };
    let shared = WARPS * 64 * dim * 4 + 16 * dim * 2 + WARPS * (16 * dim + 32) * 4;
    launch("decode_splits", [(rows * kv_heads) as u32, splits as u32, 1], 32 * WARPS, shared)?;
    launch("decode_fold", [(rows * heads) as u32, 1, 1], dim, 0)?;
    Ok(out)
}

/// The likeliest token of each row becomes its next one.
pub(crate) fn take_best(op: &'static str, scores: &Array, rows: &Rows) -> Result<()> {
    let lane = lane_of(op, scores)?;
    let address = |x: &Array| Ok::<u64, crate::Error>(read(op, &lane, x)?.address);
    let mut words = vec![address(scores)?];
    for x in [&rows.positions, &rows.next, &rows.made, &rows.ended] {
        words.push(changed(op, &lane, x)?);
    }
    words.extend([address(&rows.lengths)?, address(&rows.limits)?, address(&rows.stops)?]);
    words.extend([scores.shape()[1], rows.made.shape()[1], rows.stops.numel()].map(|n| n as u64));
    let kernel = kernel(&lane, &GENERATE, &generated(scores.dtype()), "take_best")?;
    let grid = [scores.shape()[0] as u32, 1, 1];
    Ok(lane.launch(
        &Launch { op, kernel: &kernel, grid, block: [1024, 1, 1], shared: 0 },
        &[Arg::Words(&words)],
    )?)
}
