//! Launchers of reductions: one pass, or partial results in tiles of a fixed number of elements and a second pass.

use super::program::{FOLD, computed, kernel};
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

/// Folds the dims marked in `reduced`; the results stand in the order of the other dims, as one dim.
pub(crate) fn reduce(op: &'static str, x: &Array, reduced: &[bool], fold: Fold) -> Result<Array> {
    let pick = |of: &dyn Fn(usize) -> isize, wanted: bool| -> Vec<isize> {
        (0..x.ndim()).filter(|&d| reduced[d] == wanted).map(of).collect()
    };
    let (lens, steps) = (|d: usize| x.shape()[d] as isize, |d: usize| x.strides()[d]);
    let sizes = |wanted| pick(&lens, wanted).into_iter().map(|n| n as usize).collect::<Vec<usize>>();
    let kept = walks(&sizes(false), &[&pick(&steps, false)]);
    let inner = walks(&sizes(true), &[&pick(&steps, true)]);
    let ([kept], [inner]) = (kept.as_slice(), inner.as_slice()) else {
        let what = format!("shape {} with these strides has more than 8 dims to fold over", x.shape());
        return Err(Error::argument(op, what));
    };
    let step = |walk: &Walk| walk.words[2 + super::walk::MAX_DIMS + walk.words[1] as usize - 1] as i64;
    let each = inner.numel <= FEW || (step(kept) == 1 && step(inner) != 1 && kept.numel >= 32);
    let tile = if each { THREAD_TILE } else { BLOCK_TILE };
    let tiles = inner.numel.div_ceil(tile);
    let lane = lane_of(op, x)?;
    let function = format!("{}{}", fold.name(), if each { "_each" } else { "" });
    let kernel = kernel(&lane, &FOLD, &computed(x.dtype()), &function)?;
    let held = read(op, &lane, x)?;
    let results = kept.numel * tiles;
    let dtype = fold.dtype(x.dtype());
    let (out, address) = fresh(op, &lane, &Shape::new(&[kept.numel, tiles])?, dtype)?;
    let args = [
        Arg::Words(&kept.words),
        Arg::Words(&inner.words),
        Arg::U64(tile as u64),
        Arg::U64(tiles as u64),
        Arg::U64(held.address),
        Arg::U64(address),
    ];
    let grid = [blocks(&lane, if each { results } else { results * 256 }, 1), 1, 1];
    lane.launch(&Launch { op, kernel: &kernel, grid, block: [256, 1, 1], shared: 0 }, &args)?;
    if tiles == 1 {
        return out.reshape(&[kept.numel]);
    }
    reduce(op, &out, &[false, true], fold.second())
}
