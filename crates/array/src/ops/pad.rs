//! Padding and its gradient.

use super::rearrange::{remap, remap_grad};
use crate::array::Array;
use crate::cpu::remap::Map;
use crate::element::Scalar;
use crate::error::{Error, Result};
use planaria_layout::{Dims, Shape};

/// What the positions outside the array are given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// One value.
    Constant(Scalar),
    /// The array mirrored at its border, which is not repeated: `c b | a b c | b a`.
    Reflect,
    /// The border repeated: `a a | a b c | c c`.
    Replicate,
    /// The array continued from its other end: `b c | a b c | a b`.
    Circular,
}

/// One dim's padding, resolved: sizes before and after and how many positions are added (or, if negative, cut).
#[derive(Clone, Copy)]
struct Width {
    size: usize,
    result: usize,
    before: i64,
    after: i64,
}

impl Width {
    fn new(size: usize, dim: usize, before: i64, after: i64, mode: PadMode) -> Result<Width> {
        let result = size as i128 + i128::from(before) + i128::from(after);
        let widest = i128::from(before.max(after));
        let (fits, rule) = match mode {
            PadMode::Constant(_) => (true, ""),
            PadMode::Reflect => (widest < size.max(1) as i128, "reflect needs margins below the size"),
            PadMode::Replicate => (size > 0 || result <= 0, "replicate needs at least one position"),
            PadMode::Circular => (widest <= size as i128, "circular needs margins of at most the size"),
        };
        if result < 0 || !fits {
            let why = if fits { "the result would have a negative size" } else { rule };
            let what = format!("margins {before} and {after} do not suit dim {dim} of size {size}: {why}");
            return Err(Error::argument("pad", what));
        }
        // Past usize is past what a shape accepts; the shape check says so.
        let result = usize::try_from(result).unwrap_or(usize::MAX);
        Ok(Width { size, result, before, after })
    }

    fn map(self, mode: PadMode) -> Map {
        let Width { size, result, before, after } = self;
        if (before, after) == (0, 0) {
            return Map::identity(size);
        }
        let margin = |m: i64| m.max(0) as usize;
        let whole = match mode {
            PadMode::Constant(_) => {
                // Result position j shows source position j - before.
                let end = result as i128;
                let first = i128::from(before).clamp(0, end);
                let last = (i128::from(before) + size as i128).clamp(first, end);
                let start = (first - i128::from(before)) as usize;
                return Map::constant(
                    size,
                    first as usize,
                    start,
                    (last - first) as usize,
                    (end - last) as usize,
                );
            }
            PadMode::Reflect => Map::reflect(size, margin(before), margin(after)),
            PadMode::Replicate => Map::replicate(size, margin(before), margin(after)),
            PadMode::Circular => Map::circular(size, margin(before), margin(after)),
        };
        whole.cut(margin(before.saturating_neg()), result)
    }
}

/// One width per dim of `shape`; `margins` belong to its last dims.
fn widths(shape: &Shape, margins: &[(i64, i64)], mode: PadMode) -> Result<(Vec<Width>, Shape)> {
    let Some(first) = shape.ndim().checked_sub(margins.len()) else {
        let what = format!("{} pairs of margins are given for shape {shape}", margins.len());
        return Err(Error::argument("pad", what));
    };
    let mut out = Vec::with_capacity(shape.ndim());
    for (d, &size) in shape.iter().enumerate() {
        let (before, after) = d.checked_sub(first).map_or((0, 0), |i| margins[i]);
        out.push(Width::new(size, d, before, after, mode)?);
    }
    let shape = Shape::from_dims(out.iter().map(|w| w.result).collect::<Dims>())?;
    Ok((out, shape))
}

impl Array {
    /// Adds `margins[i] = (before, after)` positions to each of the last `margins.len()` dims, in dim order.
    /// Negative margins cut positions off.
    pub fn pad(&self, margins: &[(i64, i64)], mode: PadMode) -> Result<Array> {
        let (widths, shape) = widths(self.shape(), margins, mode)?;
        let fill = if let PadMode::Constant(value) = mode { value } else { Scalar::Int(0) };
        remap("pad", self, shape, fill, || widths.iter().map(|w| w.map(mode)).collect())
    }
}

/// Gradient of [`Array::pad`] of an array of shape `input`: each element of `grad` goes back to the position it was
/// copied from; those of a constant go nowhere.
pub fn pad_grad(grad: &Array, input: &Shape, margins: &[(i64, i64)], mode: PadMode) -> Result<Array> {
    let (widths, shape) = widths(input, margins, mode)?;
    remap_grad("pad_grad", grad, input, &shape, || widths.iter().map(|w| w.map(mode)).collect())
}
