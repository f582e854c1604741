//! The reductions themselves: sums, products, extremes, truth.

use super::Fold;
use crate::convert::Number;
use crate::cpu::real::Real;
use crate::element::Bool;
use std::marker::PhantomData;

/// Which end of an order is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The largest; NaN counts as larger than all.
    Largest,
    /// The smallest; NaN counts as smaller than all.
    Smallest,
}

/// How elements are read so that the one looked for is the largest: bits kept, then bits flipped. Flipping all bits
/// reverses the order of integers, flipping the sign that of floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<B> {
    keep: B,
    flip: B,
}

/// Values with a largest and a smallest; NaN wins both ways.
pub(crate) trait Ordered: Number + PartialOrd {
    type Bits: Copy + Send + Sync;
    /// Less than all others, or equal.
    const LOWEST: Self;
    /// The reading under which this end is the largest.
    fn towards(end: End) -> Reading<Self::Bits>;
    /// The element under a reading.
    fn read(self, reading: Reading<Self::Bits>) -> Self;
    /// From the largest under a reading back to the value it was read from.
    fn restore(self, reading: Reading<Self::Bits>) -> Self;

    #[inline(always)]
    #[allow(clippy::eq_op)]
    fn unordered(self) -> bool {
        self != self
    }
    /// The same value, or both NaN.
    #[inline(always)]
    fn same(self, other: Self) -> bool {
        self == other || (self.unordered() && other.unordered())
    }
    /// True when it lies further out than `other`, or is the first NaN.
    #[inline(always)]
    fn replaces(self, other: Self) -> bool {
        self > other || (self.unordered() && !other.unordered())
    }
}

macro_rules! ordered {
    ($($t:ty, $bits:ty: $low:expr, $turn:expr, $to:expr, $from:expr);*) => {$(
        impl Ordered for $t {
            type Bits = $bits;
            const LOWEST: $t = $low;
            fn towards(end: End) -> Reading<$bits> {
                Reading { keep: !0, flip: if end == End::Largest { 0 } else { $turn } }
            }
            #[inline(always)]
            fn read(self, reading: Reading<$bits>) -> $t {
                $from(($to(self) & reading.keep) ^ reading.flip)
            }
            #[inline(always)]
            fn restore(self, reading: Reading<$bits>) -> $t {
                $from($to(self) ^ reading.flip)
            }
        }
    )*};
}
ordered! {
    u8, u8: u8::MIN, !0, u8::from, u8::from;
    i32, i32: i32::MIN, !0, i32::from, i32::from;
    i64, i64: i64::MIN, !0, i64::from, i64::from;
    u64, u64: u64::MIN, !0, u64::from, u64::from;
    f32, u32: f32::NEG_INFINITY, 1 << 31, f32::to_bits, f32::from_bits;
    f64, u64: f64::NEG_INFINITY, 1 << 63, f64::to_bits, f64::from_bits
}

/// The element furthest out as its reading has it, or NaN if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Extreme<T: Ordered>(pub(crate) Reading<T::Bits>);

impl<T: Ordered> Extreme<T> {
    pub(crate) fn new(end: End) -> Self {
        Extreme(T::towards(end))
    }
}

impl Extreme<f32> {
    /// Looks at absolute values.
    pub(crate) fn absolute(mut self) -> Self {
        self.0.keep = u32::MAX >> 1;
        self
    }
}

impl Extreme<f64> {
    /// Looks at absolute values.
    pub(crate) fn absolute(mut self) -> Self {
        self.0.keep = u64::MAX >> 1;
        self
    }
}

impl<T: Ordered> Fold for Extreme<T> {
    type In = T;
    type Acc = T;
    #[inline(always)]
    fn empty(self) -> T {
        T::LOWEST
    }
    #[inline(always)]
    fn lift(self, x: T, _: T) -> T {
        x.read(self.0)
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        if b.replaces(a) { b } else { a }
    }
}

/// What is added up, as a function of the element and, for some, a value per result.
pub(crate) trait Term: Copy + Send + Sync {
    /// Whether the value per result is looked at.
    const AT: bool = false;
    fn term<R: Real>(self, x: R, at: R) -> R;
}

/// The sum of a term, computed in R.
#[derive(Clone, Copy)]
pub(crate) struct Sum<T, R, K>(pub(crate) K, PhantomData<(T, R)>);

impl<T: Number, R: Real + Number, K: Term> Sum<T, R, K> {
    pub(crate) fn of(term: K) -> Self {
        Sum(term, PhantomData)
    }
}

impl<T: Number, R: Real + Number, K: Term> Fold for Sum<T, R, K> {
    type In = T;
    type Acc = R;
    const AT: bool = K::AT;
    #[inline(always)]
    fn empty(self) -> R {
        R::ZERO
    }
    #[inline(always)]
    fn lift(self, x: T, at: R) -> R {
        self.0.term(x.cast(), at)
    }
    #[inline(always)]
    fn join(self, a: R, b: R) -> R {
        a + b
    }
}

/// x
#[derive(Clone, Copy)]
pub(crate) struct Plain;
impl Term for Plain {
    #[inline(always)]
    fn term<R: Real>(self, x: R, _: R) -> R {
        x
    }
}

/// x²
#[derive(Clone, Copy)]
pub(crate) struct Square;
impl Term for Square {
    #[inline(always)]
    fn term<R: Real>(self, x: R, _: R) -> R {
        x * x
    }
}

/// |x|
#[derive(Clone, Copy)]
pub(crate) struct Abs;
impl Term for Abs {
    #[inline(always)]
    fn term<R: Real>(self, x: R, _: R) -> R {
        x.abs()
    }
}

/// |x|^p
#[derive(Clone, Copy)]
pub(crate) struct Power(pub(crate) f64);
impl Term for Power {
    // A call per element: not inlined eight times over.
    #[inline(never)]
    fn term<R: Real>(self, x: R, _: R) -> R {
        R::of(x.abs().f64().powf(self.0))
    }
}

/// (x - mean)²
#[derive(Clone, Copy)]
pub(crate) struct Deviation;
impl Term for Deviation {
    const AT: bool = true;
    #[inline(always)]
    fn term<R: Real>(self, x: R, mean: R) -> R {
        let d = x - mean;
        d * d
    }
}

/// e^(x - max)
#[derive(Clone, Copy)]
pub(crate) struct Exponential;
impl Term for Exponential {
    const AT: bool = true;
    #[inline(always)]
    fn term<R: Real>(self, x: R, max: R) -> R {
        (x - max).exp()
    }
}

/// 1 where x is the given value
#[derive(Clone, Copy)]
pub(crate) struct Ties;
impl Term for Ties {
    const AT: bool = true;
    #[inline(always)]
    fn term<R: Real>(self, x: R, value: R) -> R {
        if x == value || (x.is_nan() && value.is_nan()) { R::ONE } else { R::ZERO }
    }
}

/// The product of float elements.
#[derive(Clone, Copy)]
pub(crate) struct Product<T>(pub(crate) PhantomData<T>);

impl<T: Real> Fold for Product<T> {
    type In = T;
    type Acc = T;
    #[inline(always)]
    fn empty(self) -> T {
        T::ONE
    }
    #[inline(always)]
    fn lift(self, x: T, _: T) -> T {
        x
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        a * b
    }
}

/// The sum of integers, as i64 with wrapping.
#[derive(Clone, Copy)]
pub(crate) struct IntSum<T>(pub(crate) PhantomData<T>);

impl<T: Number> Fold for IntSum<T> {
    type In = T;
    type Acc = i64;
    const ANY_ORDER: bool = true;
    #[inline(always)]
    fn empty(self) -> i64 {
        0
    }
    #[inline(always)]
    fn lift(self, x: T, _: i64) -> i64 {
        x.cast()
    }
    #[inline(always)]
    fn join(self, a: i64, b: i64) -> i64 {
        a.wrapping_add(b)
    }
}

/// The product of integers, with wrapping.
#[derive(Clone, Copy)]
pub(crate) struct IntProduct;

impl Fold for IntProduct {
    type In = i64;
    type Acc = i64;
    const ANY_ORDER: bool = true;
    #[inline(always)]
    fn empty(self) -> i64 {
        1
    }
    #[inline(always)]
    fn lift(self, x: i64, _: i64) -> i64 {
        x
    }
    #[inline(always)]
    fn join(self, a: i64, b: i64) -> i64 {
        a.wrapping_mul(b)
    }
}

/// The bits of an element of some size, with the mask under which all bits zero means the value zero.
pub(crate) trait Bits: Copy + Send + Sync {
    /// All bits for integers; all but the sign for floats, whose -0 is zero too.
    fn mask(float: bool) -> Self;
    fn nonzero(self, mask: Self) -> bool;
}

macro_rules! bits {
    ($($t:ty),*) => {$(
        impl Bits for $t {
            fn mask(float: bool) -> $t {
                if float { <$t>::MAX >> 1 } else { <$t>::MAX }
            }
            #[inline(always)]
            fn nonzero(self, mask: $t) -> bool {
                self & mask != 0
            }
        }
    )*};
}
bits!(u8, u16, u32, u64);

/// True if any element is zero, or if any is not.
#[derive(Clone, Copy)]
pub(crate) struct Found<B> {
    pub(crate) mask: B,
    pub(crate) zero: bool,
}

impl<B: Bits> Fold for Found<B> {
    type In = B;
    type Acc = Bool;
    const ANY_ORDER: bool = true;
    #[inline(always)]
    fn empty(self) -> Bool {
        Bool::new(false)
    }
    #[inline(always)]
    fn lift(self, x: B, _: Bool) -> Bool {
        Bool::new(x.nonzero(self.mask) != self.zero)
    }
    #[inline(always)]
    fn join(self, a: Bool, b: Bool) -> Bool {
        Bool::new(a.get() | b.get())
    }
}

/// How many elements are not zero.
#[derive(Clone, Copy)]
pub(crate) struct Count<B>(pub(crate) B);

impl<B: Bits> Fold for Count<B> {
    type In = B;
    type Acc = i64;
    const ANY_ORDER: bool = true;
    #[inline(always)]
    fn empty(self) -> i64 {
        0
    }
    #[inline(always)]
    fn lift(self, x: B, _: i64) -> i64 {
        i64::from(x.nonzero(self.0))
    }
    #[inline(always)]
    fn join(self, a: i64, b: i64) -> i64 {
        a + b
    }
}
