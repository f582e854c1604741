//! The fold of several ranks' contributions, element by element in a given order. Communicators and tensors share it,
//! so a result has the same bits wherever it is made and however its bytes are cut.

use super::simd::simd;
use crate::convert::convert_bytes;
use bytemuck::Pod;
use planaria_layout::{Combine, DType, Reduce};

/// Elements folded at a time: accumulators and converted inputs stay in the nearest cache.
const BLOCK: usize = 1024;

/// How two values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    Add,
    Mul,
    /// NaN wins.
    Larger,
    /// NaN wins.
    Smaller,
}

/// A fold of one dtype.
#[derive(Clone, Copy)]
struct Fold {
    dtype: DType,
    /// What inputs are converted to before they are joined.
    wide: DType,
    join: Join,
    divisor: usize,
}

/// A fold that is done in parts: what earlier contributions gave, and whether more follow. Such values are of the dtype that
/// [`wide`] tells, so that nothing is rounded between the parts.
#[derive(Clone, Copy, Default)]
pub(crate) struct Part<'a> {
    pub(crate) before: Option<&'a [u8]>,
    pub(crate) more: bool,
}

fn truth(how: Combine, dtype: DType) -> bool {
    dtype == DType::Bool || matches!(how.reduce, Reduce::Any | Reduce::All)
}

/// The dtype contributions are folded in.
pub(crate) fn wide(how: Combine, dtype: DType) -> DType {
    match dtype {
        _ if truth(how, dtype) => DType::Bool,
        DType::F64 | DType::U64 => dtype,
        dtype if dtype.is_float() => DType::F32,
        _ => DType::I64,
    }
}

/// Folds `inputs` into `out`; all hold the same number of elements, and there is something to fold. Narrow floats are
/// folded in f32 and rounded once; integers in 64 bits, where they wrap and quotients drop their fraction; truth values
/// as 0 and 1.
pub(crate) fn fold(how: Combine, dtype: DType, inputs: &[&[u8]], out: &mut [u8], part: Part<'_>) {
    let truth = truth(how, dtype);
    let join = match how.reduce {
        Reduce::Sum | Reduce::Avg if !truth => Join::Add,
        Reduce::Prod if !truth => Join::Mul,
        Reduce::Sum | Reduce::Avg | Reduce::Any | Reduce::Max => Join::Larger,
        Reduce::Prod | Reduce::All | Reduce::Min => Join::Smaller,
    };
    let wide = wide(how, dtype);
    let fold = Fold { dtype, wide, join, divisor: if part.more { 1 } else { how.divisor } };
    match wide {
        DType::Bool => run::<u8>(fold, inputs, out, part),
        DType::F64 => run::<f64>(fold, inputs, out, part),
        DType::U64 => run::<u64>(fold, inputs, out, part),
        DType::F32 => run::<f32>(fold, inputs, out, part),
        _ => run::<i64>(fold, inputs, out, part),
    }
}

fn run<W: Wide>(fold: Fold, inputs: &[&[u8]], out: &mut [u8], part: Part<'_>) {
    let whole = if part.more { fold.wide } else { fold.dtype };
    // Zeroed only where it is used: a call of a few elements would spend most of its time on that.
    let mut room = if fold.wide == fold.dtype { None } else { Some([[0u64; BLOCK]; 2]) };
    for (i, out) in out.chunks_mut(BLOCK * whole.size()).enumerate() {
        let (first, count) = (i * BLOCK, out.len() / whole.size());
        let at = |dtype: DType| first * dtype.size()..(first + count) * dtype.size();
        let inputs = inputs.iter().map(|input| &input[at(fold.dtype)]);
        let before = part.before.map(|before| &before[at(fold.wide)]);
        match &mut room {
            None => fold_where_it_lies::<W>(fold, before.into_iter().chain(inputs), out),
            Some(room) => fold_converted::<W>(fold, before, inputs, out, part.more, room),
        }
    }
}

/// Nothing to convert: the result is its own accumulator.
fn fold_where_it_lies<'a, W: Wide>(fold: Fold, inputs: impl Iterator<Item = &'a [u8]>, out: &mut [u8]) {
    let mut inputs = inputs.map(bytemuck::cast_slice::<u8, W>);
    let out = bytemuck::cast_slice_mut::<u8, W>(out);
    match (inputs.next(), inputs.next()) {
        (Some(x), Some(y)) => join_two(fold.join, x, y, out),
        (Some(x), None) => out.copy_from_slice(x),
        (None, _) => {}
    }
    inputs.for_each(|x| join_one(fold.join, out, x));
    divide(out, fold.divisor);
}

fn fold_converted<'a, W: Wide>(
    fold: Fold,
    before: Option<&[u8]>,
    mut inputs: impl Iterator<Item = &'a [u8]>,
    out: &mut [u8],
    more: bool,
    room: &mut [[u64; BLOCK]; 2],
) {
    let count = out.len() / if more { fold.wide } else { fold.dtype }.size();
    let wide = count * fold.wide.size();
    let [sum, next] = room.each_mut().map(|room| &mut bytemuck::cast_slice_mut::<u64, u8>(room)[..wide]);
    match before {
        Some(before) => sum.copy_from_slice(before),
        None => inputs.next().into_iter().for_each(|first| convert_bytes(fold.dtype, first, fold.wide, sum)),
    }
    for input in inputs {
        convert_bytes(fold.dtype, input, fold.wide, next);
        join_one::<W>(fold.join, bytemuck::cast_slice_mut(sum), bytemuck::cast_slice(next));
    }
    divide::<W>(bytemuck::cast_slice_mut(sum), fold.divisor);
    match more {
        true => out.copy_from_slice(sum),
        false => convert_bytes(fold.wide, sum, fold.dtype, out),
    }
}

/// What contributions are folded in.
trait Wide: Pod {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn over(self, divisor: usize) -> Self;
}

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Wide for $t {
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn over(self, divisor: usize) -> $t {
                self / divisor as $t
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Wide for $t {
            #[inline(always)]
            fn add(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn mul(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                self.max(other)
            }
            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                self.min(other)
            }
            #[inline(always)]
            fn over(self, divisor: usize) -> $t {
                self / divisor as $t
            }
        }
    )*};
}
integers!(u8, i64, u64);

simd! {
    /// `sum = sum joined with x`.
    fn join_one<W: Wide>(join: Join, sum: &mut [W], x: &[W]) {
        let pairs = sum.iter_mut().zip(x);
        match join {
            Join::Add => pairs.for_each(|(s, &x)| *s = s.add(x)),
            Join::Mul => pairs.for_each(|(s, &x)| *s = s.mul(x)),
            Join::Larger => pairs.for_each(|(s, &x)| *s = s.larger(x)),
            Join::Smaller => pairs.for_each(|(s, &x)| *s = s.smaller(x)),
        }
    }

    /// `out = x joined with y`, in one pass.
    fn join_two<W: Wide>(join: Join, x: &[W], y: &[W], out: &mut [W]) {
        let triples = out.iter_mut().zip(x).zip(y);
        match join {
            Join::Add => triples.for_each(|((o, &x), &y)| *o = x.add(y)),
            Join::Mul => triples.for_each(|((o, &x), &y)| *o = x.mul(y)),
            Join::Larger => triples.for_each(|((o, &x), &y)| *o = x.larger(y)),
            Join::Smaller => triples.for_each(|((o, &x), &y)| *o = x.smaller(y)),
        }
    }
}

fn divide<W: Wide>(sum: &mut [W], divisor: usize) {
    if divisor > 1 {
        sum.iter_mut().for_each(|s| *s = s.over(divisor));
    }
}
