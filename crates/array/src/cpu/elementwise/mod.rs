//! Elementwise kernels on contiguous blocks, one function per operation and computing type.

pub(crate) mod binary;
pub(crate) mod grad;
pub(crate) mod integer;
pub(crate) mod lane;
pub(crate) mod unary;

use super::real::Float;
use super::strided::BLOCK;
use crate::convert::{Number, convert};

/// A block kernel of one input.
pub(crate) type Map1<T, O> = fn(&[T], &mut [O]);
/// A block kernel of two inputs.
pub(crate) type Map2<T, O> = fn(&[T], &[T], &mut [O]);

/// Runs an f32 kernel on narrow floats: widened, computed and rounded once, a block at a time.
pub(crate) fn widened1<T: Float + Number, O: Number>(kernel: Map1<f32, f32>, x: &[T], out: &mut [O]) {
    let (mut a, mut r) = ([0f32; BLOCK], [0f32; BLOCK]);
    for (x, o) in x.chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
        let n = x.len();
        convert(x, &mut a[..n]);
        kernel(&a[..n], &mut r[..n]);
        convert(&r[..n], o);
    }
}

/// As [`widened1`] for two inputs; `kernel` may also give truth values, which need no rounding.
pub(crate) fn widened2<T: Float + Number, R: Number, O: Number>(
    kernel: Map2<f32, R>,
    x: &[T],
    y: &[T],
    out: &mut [O],
) {
    let (mut a, mut b, mut r) = ([0f32; BLOCK], [0f32; BLOCK], [R::default(); BLOCK]);
    for ((x, y), o) in x.chunks(BLOCK).zip(y.chunks(BLOCK)).zip(out.chunks_mut(BLOCK)) {
        let n = x.len();
        convert(x, &mut a[..n]);
        convert(y, &mut b[..n]);
        kernel(&a[..n], &b[..n], &mut r[..n]);
        convert(&r[..n], o);
    }
}

/// Declares kernels `name(x, out)` for every listed formula, multi-versioned by `$simd`.
macro_rules! map1_kernels {
    ($simd:ident, $bound:path: $($name:ident |$x:ident| $value:expr;)+) => {
        $crate::cpu::simd::$simd! {$(
            fn $name<T: $bound>(x: &[T], out: &mut [T]) {
                for (o, &$x) in out.iter_mut().zip(x) {
                    *o = $value;
                }
            }
        )+}
    };
}

/// Declares kernels `name(x, y, out)` for every listed formula, multi-versioned by `$simd`.
macro_rules! map2_kernels {
    ($simd:ident, $bound:path, $out:ty: $($name:ident |$x:ident, $y:ident| $value:expr;)+) => {
        $crate::cpu::simd::$simd! {$(
            fn $name<T: $bound>(x: &[T], y: &[T], out: &mut [$out]) {
                for ((o, &$x), &$y) in out.iter_mut().zip(x).zip(y) {
                    *o = $value;
                }
            }
        )+}
    };
}
pub(crate) use {map1_kernels, map2_kernels};
