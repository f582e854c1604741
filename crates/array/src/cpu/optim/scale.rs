//! Squared norms and scaling of gradients.

use super::{BLOCK, Stored, Updating, for_blocks};
use crate::cpu::real::{Float, Real};
use crate::cpu::simd::simd;
use planaria_cpu::pool;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements per partial sum: fixed, so that threads cannot change bits.
const PARTIAL: usize = 1 << 16;

simd! {
    /// Sum of squares in f64, 32 lanes.
    fn squares_block<R: Real>(x: &[R]) -> f64 {
        let mut acc = [0f64; 32];
        let (chunks, rest) = x.as_chunks::<32>();
        for c in chunks {
            for l in 0..32 {
                let v = c[l].f64();
                acc[l] = v.mul_add(v, acc[l]);
            }
        }
        let tail: f64 = rest.iter().map(|v| v.f64() * v.f64()).sum();
        let mut width = 16;
        while width > 0 {
            for l in 0..width {
                acc[l] += acc[l + width];
            }
            width /= 2;
        }
        acc[0] + tail
    }

    /// Scales a block; false when any value was not finite before.
    fn scale_block<R: Real>(x: &mut [R], factor: R) -> bool {
        // x * 0 is 0 for finite values and NaN for all others.
        let mut witness = [R::ZERO; 16];
        let (chunks, rest) = x.as_chunks_mut::<16>();
        for c in chunks {
            for l in 0..16 {
                witness[l] += c[l] * R::ZERO;
                c[l] *= factor;
            }
        }
        let mut finite = witness.iter().all(|w| *w == R::ZERO);
        for v in rest {
            finite &= *v * R::ZERO == R::ZERO;
            *v *= factor;
        }
        finite
    }
}

/// Sum of squares of all values.
pub(crate) fn squares<T: Float>(x: &[T]) -> f64 {
    let mut partial = vec![0f64; x.len().div_ceil(PARTIAL)];
    pool::for_chunks_mut(&mut partial, 1, PARTIAL * size_of::<T>(), |at, piece| {
        let mut wide = Vec::new();
        for (i, out) in piece.iter_mut().enumerate() {
            let start = (at + i) * PARTIAL;
            let x = &x[start..(start + PARTIAL).min(x.len())];
            *out = x.chunks(4 * BLOCK).map(|x| squares_block(T::widen(x, &mut wide))).sum();
        }
    });
    partial.iter().sum()
}

/// Multiplies all values; false when any was not finite before.
pub(crate) fn scale<T: Stored>(state: Updating<'_, T>, factor: f64) -> bool {
    let finite = AtomicBool::new(true);
    for_blocks(state, 4 * BLOCK, 2 * size_of::<T>(), |block, scratch: &mut Vec<T::Real>| {
        let all = T::modify(block, scratch, |x| scale_block(x, T::Real::of(factor)));
        finite.fetch_and(all, Ordering::Relaxed);
    });
    finite.into_inner()
}
