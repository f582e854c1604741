//! Launchers of reductions: one pass, or partial results in tiles of a fixed number of elements and a second pass.

use super::program::{COLUMNS, FOLD, column_sums, computed, kernel};
use super::walk::{Walk, walks};
use super::{blocks, fresh, lane_of, read};
use crate::array::Array;
use crate::error::{Error, Result};
use planaria_cuda::{Arg, Launch};
use planaria_layout::{DType, Shape};

/// What elements are folded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Sum,
    Squares,
    Product,
    Largest,
    Smallest,
    Any,
    All,
    Count,
}

impl Fold {
    fn name(self) -> &'static str {
        match self {
            Fold::Sum => "sum",
            Fold::Squares => "squares",
            Fold::Product => "product",
            Fold::Largest => "largest",
            Fold::Smallest => "smallest",
            Fold::Any => "any",
            Fold::All => "all",
            Fold::Count => "count",
        }
    }

    /// What partial results are folded by.
    fn second(self) -> Fold {
        match self {
            Fold::Squares | Fold::Count => Fold::Sum,
            Fold::Any => Fold::Largest,
            Fold::All => Fold::Smallest,
            other => other,
        }
    }

    /// The dtype of results.
    pub(crate) fn dtype(self, from: DType) -> DType {
        match self {
            Fold::Any | Fold::All | Fold::Count => DType::I64,
            _ if from == DType::F64 => DType::F64,
            _ if from.is_float() => DType::F32,
            Fold::Largest | Fold::Smallest if from == DType::U64 => DType::U64,
            _ => DType::I64,
        }
    }
}

/// Elements one block folds, and one thread.
const BLOCK_TILE: usize = 16 * 1024;
const THREAD_TILE: usize = 512;
/// Up to so many elements one thread folds alone, whatever their order.
const FEW: usize = 64;

/// How an array is folded: what stays, what is folded, and who folds how much of it.
struct Folding {
    kept: Walk,
    inner: Walk,
    /// One thread a result, not a block.
    each: bool,
    tile: usize,
    tiles: usize,
}

impl Folding {
    fn new(op: &'static str, x: &Array, reduced: &[bool]) -> Result<Folding> {
        let pick = |of: &dyn Fn(usize) -> isize, wanted: bool| -> Vec<isize> {
            (0..x.ndim()).filter(|&d| reduced[d] == wanted).map(of).collect()
        };
        let (lens, steps) = (|d: usize| x.shape()[d] as isize, |d: usize| x.strides()[d]);
        let sizes = |wanted| pick(&lens, wanted).into_iter().map(|n| n as usize).collect::<Vec<usize>>();
        let mut kept = walks(&sizes(false), &[&pick(&steps, false)]);
        let mut inner = walks(&sizes(true), &[&pick(&steps, true)]);
        let (Some(kept), Some(inner), true, true) =
            (kept.pop(), inner.pop(), kept.is_empty(), inner.is_empty())
        else {
            let what = format!("shape {} with these strides has more than 8 dims to fold over", x.shape());
            return Err(Error::argument(op, what));
        };
        let step = |walk: &Walk| walk.words[2 + super::walk::MAX_DIMS + walk.words[1] as usize - 1] as i64;
        let each = inner.numel <= FEW || (step(&kept) == 1 && step(&inner) != 1 && kept.numel >= 32);
        let tile = if each { THREAD_TILE } else { BLOCK_TILE };
        let tiles = inner.numel.div_ceil(tile);
        Ok(Folding { kept, inner, each, tile, tiles })
    }

    /// Queues a kernel over all results; `rest` follows the array's address.
    fn launch(&self, op: &'static str, x: &Array, name: &str, rest: &[u64]) -> Result<()> {
        let lane = lane_of(op, x)?;
        let function = format!("{name}{}", if self.each { "_each" } else { "" });
        let kernel = kernel(&lane, &FOLD, &computed(x.dtype()), &function)?;
        let held = read(op, &lane, x)?;
        let mut args = vec![Arg::Words(&self.kept.words), Arg::Words(&self.inner.words)];
        args.extend([self.tile as u64, self.tiles as u64, held.address].map(Arg::U64));
        args.extend(rest.iter().map(|&x| Arg::U64(x)));
        let results = self.kept.numel * self.tiles;
        let grid = [blocks(&lane, if self.each { results } else { results * 256 }, 1), 1, 1];
        Ok(lane.launch(&Launch { op, kernel: &kernel, grid, block: [256, 1, 1], shared: 0 }, &args)?)
    }

    /// Room for partial results and its address.
    fn parts(&self, op: &'static str, x: &Array, dtype: DType) -> Result<(Array, u64)> {
        fresh(op, &lane_of(op, x)?, &Shape::new(&[self.kept.numel, self.tiles])?, dtype)
    }
}

/// The first place among the reduced dims, in row-major order, whose element is `want` (one for each result).
pub(crate) fn first_equal(op: &'static str, x: &Array, reduced: &[bool], want: &Array) -> Result<Array> {
    let folding = Folding::new(op, x, reduced)?;
    let (out, address) = folding.parts(op, x, DType::I64)?;
    let want = read(op, &lane_of(op, x)?, want)?;
    folding.launch(op, x, "first_equal", &[want.address, address])?;
    if folding.tiles == 1 {
        return out.reshape(&[folding.kept.numel]);
    }
    reduce(op, &out, &[false, true], Fold::Smallest)
}

/// Sums down the columns of a matrix of this many rows or more have a kernel of their own.
const MANY_ROWS: usize = 256;
/// Rows that it folds at a time, and the most of such pieces.
const ROWS: usize = 128;
const MOST_PIECES: usize = 65_535;

/// The matrix down whose columns floats are summed, if that is what a folding is: rows, columns, elements between rows.
fn columns(folding: &Folding, x: &Array, fold: Fold) -> Option<(usize, usize, usize)> {
    let Folding { kept, inner, .. } = folding;
    let step = |walk: &Walk| (walk.words[1] == 1).then(|| walk.words[2 + super::walk::MAX_DIMS] as i64);
    let (along, between) = (step(kept)?, step(inner)?);
    let real = matches!(x.dtype(), DType::F32 | DType::F64 | DType::BF16 | DType::F16);
    let fits = kept.numel >= 32 && (MANY_ROWS..=ROWS * MOST_PIECES).contains(&inner.numel);
    (fold == Fold::Sum && real && fits && along == 1 && between >= kept.numel as i64).then_some((
        inner.numel,
        kept.numel,
        between as usize,
    ))
}

fn sum_columns(op: &'static str, x: &Array, (rows, cols, stride): (usize, usize, usize)) -> Result<Array> {
    let lane = lane_of(op, x)?;
    let (held, size) = (read(op, &lane, x)?, x.dtype().size());
    let whole = |bytes: usize| bytes.is_multiple_of(16);
    let packets = whole(cols * size) && whole(stride * size) && held.address.is_multiple_of(16);
    let real = Fold::Sum.dtype(x.dtype());
    let pieces = rows.div_ceil(ROWS);
    let parts = lane.block(op, pieces * cols * real.size())?;
    let columns = if packets { 32 * 16 / size } else { 32 };
    let defines = column_sums(x.dtype(), packets);
    let first = kernel(&lane, &COLUMNS, &defines, "column_parts")?;
    let grid = [cols.div_ceil(columns) as u32, pieces as u32, 1];
    let args = [held.address, rows as u64, cols as u64, stride as u64, parts.address()].map(Arg::U64);
    lane.launch(&Launch { op, kernel: &first, grid, block: [256, 1, 1], shared: 0 }, &args)?;
    let (out, to) = fresh(op, &lane, &Shape::new(&[cols])?, real)?;
    let second = kernel(&lane, &COLUMNS, &defines, "column_fold")?;
    let mut args = [parts.address(), pieces as u64, cols as u64, to].map(Arg::U64).to_vec();
    args.push(Arg::U32(0));
    let grid = [cols.div_ceil(32) as u32, 1, 1];
    lane.launch(&Launch { op, kernel: &second, grid, block: [256, 1, 1], shared: 0 }, &args)?;
    Ok(out)
}

/// Folds the dims marked in `reduced`; the results stand in the order of the other dims, as one dim.
pub(crate) fn reduce(op: &'static str, x: &Array, reduced: &[bool], fold: Fold) -> Result<Array> {
    let folding = Folding::new(op, x, reduced)?;
    if let Some(matrix) = columns(&folding, x, fold) {
        return sum_columns(op, x, matrix);
    }
    let (out, address) = folding.parts(op, x, fold.dtype(x.dtype()))?;
    folding.launch(op, x, fold.name(), &[address])?;
    if folding.tiles == 1 {
        return out.reshape(&[folding.kept.numel]);
    }
    reduce(op, &out, &[false, true], fold.second())
}
