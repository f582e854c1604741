//! Rotation of pairs of elements by position-dependent angles.

use super::real::{Float, Real};
use super::simd::simd;
use super::softmax::rows_per_block;
use planaria_cpu::pool;

/// Which elements of a row form the pairs that are rotated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RotaryPairing {
    /// `(x[i], x[i + n/2])`, as in GPT-NeoX and the published Llama weights in their common form.
    #[default]
    Halves,
    /// `(x[2i], x[2i + 1])`, as in the original description.
    Interleaved,
}

simd! {
    /// Rotates each row by the angles of its position; the part of a row past `2 * half` is copied.
    fn rotate_rows<R: Real>(
        x: &[R], y: &mut [R], dim: usize, cos: &[R], sin: &[R], half: usize, positions: &[usize],
        pairing: RotaryPairing,
    ) {
        for ((x, y), &p) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)).zip(positions) {
            let (cos, sin) = (&cos[p * half..(p + 1) * half], &sin[p * half..(p + 1) * half]);
            let (x, x_rest) = x.split_at(2 * half);
            let (y, y_rest) = y.split_at_mut(2 * half);
            y_rest.copy_from_slice(x_rest);
            match pairing {
                RotaryPairing::Halves => {
                    let ((a, b), (p, q)) = (x.split_at(half), y.split_at_mut(half));
                    for i in 0..half {
                        p[i] = a[i].mul_add(cos[i], -(b[i] * sin[i]));
                        q[i] = b[i].mul_add(cos[i], a[i] * sin[i]);
                    }
                }
                RotaryPairing::Interleaved => {
                    let (x, y) = (x.as_chunks::<2>().0, y.as_chunks_mut::<2>().0);
                    for (((x, y), &c), &s) in x.iter().zip(y).zip(cos).zip(sin) {
                        *y = [x[0].mul_add(c, -(x[1] * s)), x[1].mul_add(c, x[0] * s)];
                    }
                }
            }
        }
    }
}

/// Rotates the rows of `x`, of `dim` elements each; `position(row)` is a row of the tables, which are `half` wide.
pub(crate) fn rotate<T: Float>(
    x: &[T],
    y: &mut [T],
    dim: usize,
    (cos, sin): (&[T::Real], &[T::Real]),
    half: usize,
    position: impl Fn(usize) -> usize + Sync,
    pairing: RotaryPairing,
) {
    if y.is_empty() {
        return;
    }
    let unit = rows_per_block(dim);
    pool::for_chunks_mut(y, unit * dim, 2 * size_of::<T>(), |at, piece| {
        let (mut wide, mut out, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for (i, block) in piece.chunks_mut(unit * dim).enumerate() {
            let first = at + i * unit * dim;
            let row = first / dim;
            positions.clear();
            positions.extend((row..row + block.len() / dim).map(&position));
            let x = T::widen(&x[first..first + block.len()], &mut wide);
            T::narrow(block, &mut out, |y| rotate_rows(x, y, dim, cos, sin, half, &positions, pairing));
        }
    });
}
