//! Element-wise reduction of several ranks' bytes in rank order. Every engine that reduces on the host uses this
//! one fold, so results are the same bits everywhere and do not depend on how a buffer is cut.

use bytemuck::Pod;
use planaria_array::{Bool, F8E4M3, F8E5M2, bf16, f16};
use planaria_layout::{DType, Reduce};

/// Combines `inputs`, in this order, into `out`; all hold the same number of elements. Narrow floats are combined
/// in f32 and rounded once; integers wrap, and their average truncates.
pub(crate) fn combine(op: Reduce, dtype: DType, inputs: &[&[u8]], out: &mut [u8]) {
    match dtype {
        DType::Bool => fold::<Bool>(op, inputs, out),
        DType::U8 => fold::<u8>(op, inputs, out),
        DType::I8 => fold::<i8>(op, inputs, out),
        DType::I16 => fold::<i16>(op, inputs, out),
        DType::I32 => fold::<i32>(op, inputs, out),
        DType::I64 => fold::<i64>(op, inputs, out),
        DType::U16 => fold::<u16>(op, inputs, out),
        DType::U32 => fold::<u32>(op, inputs, out),
        DType::U64 => fold::<u64>(op, inputs, out),
        DType::F16 => fold::<f16>(op, inputs, out),
        DType::BF16 => fold::<bf16>(op, inputs, out),
        DType::F32 => fold::<f32>(op, inputs, out),
        DType::F64 => fold::<f64>(op, inputs, out),
        DType::F8E4M3 => fold::<F8E4M3>(op, inputs, out),
        DType::F8E5M2 => fold::<F8E5M2>(op, inputs, out),
    }
}

/// Elements combined at a time: the accumulators stay in the nearest cache.
const BLOCK: usize = 1024;

/// An element and the type it is combined in.
trait Item: Pod {
    type Acc: Acc;
    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
}

/// What reductions need from an accumulator.
trait Acc: Copy + PartialEq {
    const ZERO: Self;
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// NaN wins.
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn over(self, count: usize) -> Self;
}

fn fold<T: Item>(op: Reduce, inputs: &[&[u8]], out: &mut [u8]) {
    let truth = |a: T::Acc| if a == T::Acc::ZERO { T::Acc::ZERO } else { T::Acc::ONE };
    let same = |a: T::Acc| a;
    let count = inputs.len();
    match op {
        Reduce::Sum => fold_with::<T>(inputs, out, T::Acc::add, same),
        Reduce::Avg => fold_with::<T>(inputs, out, T::Acc::add, |a| a.over(count)),
        Reduce::Max => fold_with::<T>(inputs, out, T::Acc::max, same),
        Reduce::Min => fold_with::<T>(inputs, out, T::Acc::min, same),
        Reduce::Prod => fold_with::<T>(inputs, out, T::Acc::mul, same),
        Reduce::Any => fold_with::<T>(inputs, out, |a, b| if a == T::Acc::ZERO { b } else { a }, truth),
        Reduce::All => fold_with::<T>(inputs, out, |a, b| if a == T::Acc::ZERO { a } else { b }, truth),
    }
}

fn fold_with<T: Item>(
    inputs: &[&[u8]],
    out: &mut [u8],
    join: impl Fn(T::Acc, T::Acc) -> T::Acc,
    finish: impl Fn(T::Acc) -> T::Acc,
) {
    let mut acc = [T::Acc::ZERO; BLOCK];
    let step = BLOCK * size_of::<T>();
    for (i, out) in out.chunks_mut(step).enumerate() {
        let (at, len) = (i * step, out.len());
        let part = |input: &'_ [u8]| -> std::ops::Range<usize> { at..(at + len).min(input.len()) };
        let out = bytemuck::cast_slice_mut::<u8, T>(out);
        // The first two and the last input are joined as they are read, so that two inputs need one pass.
        match inputs {
            [] => return,
            [x] => {
                for (o, &x) in out.iter_mut().zip(bytemuck::cast_slice::<u8, T>(&x[part(x)])) {
                    *o = T::narrow(finish(x.widen()));
                }
            }
            [x, y] => {
                let (x, y) = (bytemuck::cast_slice::<u8, T>(&x[part(x)]), bytemuck::cast_slice(&y[part(y)]));
                for ((o, x), y) in out.iter_mut().zip(x).zip::<&[T]>(y) {
                    *o = T::narrow(finish(join(x.widen(), y.widen())));
                }
            }
            [x, y, middle @ .., last] => {
                let acc = &mut acc[..out.len()];
                let (x, y) = (bytemuck::cast_slice::<u8, T>(&x[part(x)]), bytemuck::cast_slice(&y[part(y)]));
                for ((a, x), y) in acc.iter_mut().zip(x).zip::<&[T]>(y) {
                    *a = join(x.widen(), y.widen());
                }
                for input in middle {
                    for (a, &x) in acc.iter_mut().zip(bytemuck::cast_slice::<u8, T>(&input[part(input)])) {
                        *a = join(*a, x.widen());
                    }
                }
                let last = bytemuck::cast_slice::<u8, T>(&last[part(last)]);
                for ((o, &a), &x) in out.iter_mut().zip(&*acc).zip(last) {
                    *o = T::narrow(finish(join(a, x.widen())));
                }
            }
        }
    }
}

impl Acc for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    #[inline(always)]
    fn add(self, other: f32) -> f32 {
        self + other
    }
    #[inline(always)]
    fn mul(self, other: f32) -> f32 {
        self * other
    }
    #[inline(always)]
    fn max(self, other: f32) -> f32 {
        if self > other || self.is_nan() { self } else { other }
    }
    #[inline(always)]
    fn min(self, other: f32) -> f32 {
        if self < other || self.is_nan() { self } else { other }
    }
    #[inline(always)]
    fn over(self, count: usize) -> f32 {
        self / count as f32
    }
}

impl Acc for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    #[inline(always)]
    fn add(self, other: f64) -> f64 {
        self + other
    }
    #[inline(always)]
    fn mul(self, other: f64) -> f64 {
        self * other
    }
    #[inline(always)]
    fn max(self, other: f64) -> f64 {
        if self > other || self.is_nan() { self } else { other }
    }
    #[inline(always)]
    fn min(self, other: f64) -> f64 {
        if self < other || self.is_nan() { self } else { other }
    }
    #[inline(always)]
    fn over(self, count: usize) -> f64 {
        self / count as f64
    }
}

impl Acc for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    #[inline(always)]
    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn mul(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }
    #[inline(always)]
    fn max(self, other: i64) -> i64 {
        Ord::max(self, other)
    }
    #[inline(always)]
    fn min(self, other: i64) -> i64 {
        Ord::min(self, other)
    }
    #[inline(always)]
    fn over(self, count: usize) -> i64 {
        self / count as i64
    }
}

impl Acc for u64 {
    const ZERO: u64 = 0;
    const ONE: u64 = 1;
    #[inline(always)]
    fn add(self, other: u64) -> u64 {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn mul(self, other: u64) -> u64 {
        self.wrapping_mul(other)
    }
    #[inline(always)]
    fn max(self, other: u64) -> u64 {
        Ord::max(self, other)
    }
    #[inline(always)]
    fn min(self, other: u64) -> u64 {
        Ord::min(self, other)
    }
    #[inline(always)]
    fn over(self, count: usize) -> u64 {
        self / count as u64
    }
}

/// Truth values: a sum is "or", a product "and".
impl Acc for bool {
    const ZERO: bool = false;
    const ONE: bool = true;
    fn add(self, other: bool) -> bool {
        self | other
    }
    fn mul(self, other: bool) -> bool {
        self & other
    }
    fn max(self, other: bool) -> bool {
        self | other
    }
    fn min(self, other: bool) -> bool {
        self & other
    }
    fn over(self, _count: usize) -> bool {
        self
    }
}

impl Item for f32 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(acc: f32) -> f32 {
        acc
    }
}

impl Item for f64 {
    type Acc = f64;
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    #[inline(always)]
    fn narrow(acc: f64) -> f64 {
        acc
    }
}

impl Item for i64 {
    type Acc = i64;
    #[inline(always)]
    fn widen(self) -> i64 {
        self
    }
    #[inline(always)]
    fn narrow(acc: i64) -> i64 {
        acc
    }
}

impl Item for u64 {
    type Acc = u64;
    #[inline(always)]
    fn widen(self) -> u64 {
        self
    }
    #[inline(always)]
    fn narrow(acc: u64) -> u64 {
        acc
    }
}

impl Item for u8 {
    type Acc = i64;
    #[inline(always)]
    fn widen(self) -> i64 {
        self.into()
    }
    #[inline(always)]
    fn narrow(acc: i64) -> u8 {
        acc as u8
    }
}

impl Item for i8 {
    type Acc = i64;
    #[inline(always)]
    fn widen(self) -> i64 {
        self.into()
    }
    #[inline(always)]
    fn narrow(acc: i64) -> i8 {
        acc as i8
    }
}

impl Item for i16 {
    type Acc = i64;
    #[inline(always)]
    fn widen(self) -> i64 {
        self.into()
    }
    #[inline(always)]
    fn narrow(acc: i64) -> i16 {
        acc as i16
    }
}

impl Item for i32 {
    type Acc = i64;
    #[inline(always)]
    fn widen(self) -> i64 {
        self.into()
    }
    #[inline(always)]
    fn narrow(acc: i64) -> i32 {
        acc as i32
    }
}

impl Item for u16 {
    type Acc = i64;
    #[inline(always)]
    fn widen(self) -> i64 {
        self.into()
    }
    #[inline(always)]
    fn narrow(acc: i64) -> u16 {
        acc as u16
    }
}

impl Item for u32 {
    type Acc = i64;
    #[inline(always)]
    fn widen(self) -> i64 {
        self.into()
    }
    #[inline(always)]
    fn narrow(acc: i64) -> u32 {
        acc as u32
    }
}

impl Item for f16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(acc: f32) -> f16 {
        f16::from_f32(acc)
    }
}

impl Item for bf16 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(acc: f32) -> bf16 {
        bf16::from_f32(acc)
    }
}

impl Item for F8E4M3 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(acc: f32) -> F8E4M3 {
        F8E4M3::from_f32(acc)
    }
}

impl Item for F8E5M2 {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(acc: f32) -> F8E5M2 {
        F8E5M2::from_f32(acc)
    }
}

impl Item for Bool {
    type Acc = bool;
    #[inline(always)]
    fn widen(self) -> bool {
        self.get()
    }
    #[inline(always)]
    fn narrow(acc: bool) -> Bool {
        Bool::new(acc)
    }
}
