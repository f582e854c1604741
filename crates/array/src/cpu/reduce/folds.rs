//! The reductions themselves: sums, products, extremes, truth.

use super::Fold;
use crate::convert::Number;
use crate::cpu::real::Real;
use crate::element::Bool;
use std::marker::PhantomData;

/// Values with a largest and a smallest; NaN wins both ways.
pub(crate) trait Ordered: Number + PartialOrd {
    const LOWEST: Self;
    const HIGHEST: Self;

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
}

macro_rules! ordered {
    ($($t:ty: $low:expr, $high:expr);*) => {$(
        impl Ordered for $t {
            const LOWEST: $t = $low;
            const HIGHEST: $t = $high;
        }
    )*};
}
ordered!(u8: u8::MIN, u8::MAX; i32: i32::MIN, i32::MAX; i64: i64::MIN, i64::MAX; u64: u64::MIN, u64::MAX);
ordered!(f32: f32::NEG_INFINITY, f32::INFINITY; f64: f64::NEG_INFINITY, f64::INFINITY);

/// What is added up, as a function of the element.
pub(crate) trait Term: Copy + Send + Sync {
    fn term<R: Real>(self, x: R) -> R;
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
    type Param = ();
    #[inline(always)]
    fn empty(self) -> R {
        R::ZERO
    }
    #[inline(always)]
    fn lift(self, x: T, (): ()) -> R {
        self.0.term(x.cast())
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
    fn term<R: Real>(self, x: R) -> R {
        x
    }
}

/// x²
#[derive(Clone, Copy)]
pub(crate) struct Square;
impl Term for Square {
    #[inline(always)]
    fn term<R: Real>(self, x: R) -> R {
        x * x
    }
}

/// |x|
#[derive(Clone, Copy)]
pub(crate) struct Abs;
impl Term for Abs {
    #[inline(always)]
    fn term<R: Real>(self, x: R) -> R {
        x.abs()
    }
}

/// |x|^p
#[derive(Clone, Copy)]
pub(crate) struct Power(pub(crate) f64);
impl Term for Power {
    #[inline(always)]
    fn term<R: Real>(self, x: R) -> R {
        R::of(x.abs().f64().powf(self.0))
    }
}

/// 1 where x is not 0
#[derive(Clone, Copy)]
pub(crate) struct NonZero;
impl Term for NonZero {
    #[inline(always)]
    fn term<R: Real>(self, x: R) -> R {
        if x == R::ZERO { R::ZERO } else { R::ONE }
    }
}

/// What is added up, as a function of the element and a value per result.
pub(crate) trait TermAt: Copy + Send + Sync {
    fn term<R: Real>(self, x: R, at: R) -> R;
}

/// The sum of a term that depends on a value per result, computed in R.
#[derive(Clone, Copy)]
pub(crate) struct SumAt<T, R, K>(pub(crate) K, PhantomData<(T, R)>);

impl<T: Number, R: Real + Number, K: TermAt> SumAt<T, R, K> {
    pub(crate) fn of(term: K) -> Self {
        SumAt(term, PhantomData)
    }
}

impl<T: Number, R: Real + Number, K: TermAt> Fold for SumAt<T, R, K> {
    type In = T;
    type Acc = R;
    type Param = R;
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

/// (x - mean)²
#[derive(Clone, Copy)]
pub(crate) struct Deviation;
impl TermAt for Deviation {
    #[inline(always)]
    fn term<R: Real>(self, x: R, mean: R) -> R {
        let d = x - mean;
        d * d
    }
}

/// e^(x - max)
#[derive(Clone, Copy)]
pub(crate) struct Exponential;
impl TermAt for Exponential {
    #[inline(always)]
    fn term<R: Real>(self, x: R, max: R) -> R {
        (x - max).exp()
    }
}

/// 1 where x is the given value
#[derive(Clone, Copy)]
pub(crate) struct Ties;
impl TermAt for Ties {
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
    type Param = ();
    #[inline(always)]
    fn empty(self) -> T {
        T::ONE
    }
    #[inline(always)]
    fn lift(self, x: T, (): ()) -> T {
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
    type Param = ();
    #[inline(always)]
    fn empty(self) -> i64 {
        0
    }
    #[inline(always)]
    fn lift(self, x: T, (): ()) -> i64 {
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
    type Param = ();
    #[inline(always)]
    fn empty(self) -> i64 {
        1
    }
    #[inline(always)]
    fn lift(self, x: i64, (): ()) -> i64 {
        x
    }
    #[inline(always)]
    fn join(self, a: i64, b: i64) -> i64 {
        a.wrapping_mul(b)
    }
}

/// Which end of an order is looked for.
pub(crate) trait End: Copy + Send + Sync {
    fn worst<A: Ordered>() -> A;
    /// True when `a` replaces `b`: it lies further out, or is the first NaN.
    fn replaces<A: Ordered>(a: A, b: A) -> bool;
}

/// The largest; NaN counts as larger than all.
#[derive(Clone, Copy)]
pub(crate) struct Largest;
impl End for Largest {
    #[inline(always)]
    fn worst<A: Ordered>() -> A {
        A::LOWEST
    }
    #[inline(always)]
    fn replaces<A: Ordered>(a: A, b: A) -> bool {
        a > b || (a.unordered() && !b.unordered())
    }
}

/// The smallest; NaN counts as smaller than all.
#[derive(Clone, Copy)]
pub(crate) struct Smallest;
impl End for Smallest {
    #[inline(always)]
    fn worst<A: Ordered>() -> A {
        A::HIGHEST
    }
    #[inline(always)]
    fn replaces<A: Ordered>(a: A, b: A) -> bool {
        a < b || (a.unordered() && !b.unordered())
    }
}

/// The element furthest out, or NaN if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Extreme<T, E>(pub(crate) PhantomData<(T, E)>);

impl<T: Ordered, E: End> Fold for Extreme<T, E> {
    type In = T;
    type Acc = T;
    type Param = ();
    #[inline(always)]
    fn empty(self) -> T {
        E::worst()
    }
    #[inline(always)]
    fn lift(self, x: T, (): ()) -> T {
        x
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        if E::replaces(b, a) { b } else { a }
    }
}

/// The absolute value furthest out, or NaN if there is one.
#[derive(Clone, Copy)]
pub(crate) struct AbsExtreme<T, E>(pub(crate) PhantomData<(T, E)>);

impl<T: Real + Ordered, E: End> Fold for AbsExtreme<T, E> {
    type In = T;
    type Acc = T;
    type Param = ();
    #[inline(always)]
    fn empty(self) -> T {
        E::worst()
    }
    #[inline(always)]
    fn lift(self, x: T, (): ()) -> T {
        x.abs()
    }
    #[inline(always)]
    fn join(self, a: T, b: T) -> T {
        if E::replaces(b, a) { b } else { a }
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

/// True if any element is not zero.
#[derive(Clone, Copy)]
pub(crate) struct Any<B>(pub(crate) B);

impl<B: Bits> Fold for Any<B> {
    type In = B;
    type Acc = Bool;
    type Param = ();
    #[inline(always)]
    fn empty(self) -> Bool {
        Bool::new(false)
    }
    #[inline(always)]
    fn lift(self, x: B, (): ()) -> Bool {
        Bool::new(x.nonzero(self.0))
    }
    #[inline(always)]
    fn join(self, a: Bool, b: Bool) -> Bool {
        Bool::new(a.get() | b.get())
    }
}

/// True if no element is zero.
#[derive(Clone, Copy)]
pub(crate) struct All<B>(pub(crate) B);

impl<B: Bits> Fold for All<B> {
    type In = B;
    type Acc = Bool;
    type Param = ();
    #[inline(always)]
    fn empty(self) -> Bool {
        Bool::new(true)
    }
    #[inline(always)]
    fn lift(self, x: B, (): ()) -> Bool {
        Bool::new(x.nonzero(self.0))
    }
    #[inline(always)]
    fn join(self, a: Bool, b: Bool) -> Bool {
        Bool::new(a.get() & b.get())
    }
}

/// How many elements are not zero.
#[derive(Clone, Copy)]
pub(crate) struct Count<B>(pub(crate) B);

impl<B: Bits> Fold for Count<B> {
    type In = B;
    type Acc = i64;
    type Param = ();
    #[inline(always)]
    fn empty(self) -> i64 {
        0
    }
    #[inline(always)]
    fn lift(self, x: B, (): ()) -> i64 {
        i64::from(x.nonzero(self.0))
    }
    #[inline(always)]
    fn join(self, a: i64, b: i64) -> i64 {
        a + b
    }
}

/// Calls `$body` with `$T` bound to the type of a dtype that [`Array::widened`] gives.
///
/// [`Array::widened`]: crate::Array
macro_rules! with_ordered {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            planaria_layout::DType::Bool | planaria_layout::DType::U8 => {
                type $T = u8;
                $body
            }
            planaria_layout::DType::I32 => {
                type $T = i32;
                $body
            }
            planaria_layout::DType::I64 => {
                type $T = i64;
                $body
            }
            planaria_layout::DType::U64 => {
                type $T = u64;
                $body
            }
            planaria_layout::DType::F32 => {
                type $T = f32;
                $body
            }
            planaria_layout::DType::F64 => {
                type $T = f64;
                $body
            }
            found => Err($crate::error::Error::DType { op: $op, found, expected: "any but 8-bit floats" }),
        }
    };
}

/// Calls `$body` with `$T` bound to f32 or f64.
macro_rules! with_real {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            planaria_layout::DType::F32 => {
                type $T = f32;
                $body
            }
            planaria_layout::DType::F64 => {
                type $T = f64;
                $body
            }
            found => Err($crate::error::Error::DType { op: $op, found, expected: "f32, f64, bf16 or f16" }),
        }
    };
}
pub(crate) use {with_ordered, with_real};
