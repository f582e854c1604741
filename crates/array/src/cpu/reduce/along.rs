//! Reading and adding at positions along one dim, for results that remember where they came from.

use super::plan::Pass;
use crate::cpu::copy::Geometry;
use crate::cpu::real::{Float, Real};
use planaria_cpu::pool;

/// Picks one element along dim `dim` for each place of the other dims; positions are known to be inside.
pub(crate) fn pick<T: Copy + Send + Sync>(
    data: &[T],
    view: Geometry<'_>,
    dim: usize,
    positions: &[i64],
    out: &mut [T],
) {
    let (pass, stride) = Pass::across(view, dim);
    pool::for_chunks_mut(out, 64, 32, |at, piece| {
        let mut walk = pass.walk(at);
        for (o, &p) in piece.iter_mut().zip(&positions[at..]) {
            *o = data[(walk.data() as isize + p as isize * stride) as usize];
            walk.advance();
        }
    });
}

/// Extents around one dim: `outer` slabs of `from` x `inner` values that go to `to` x `inner` places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Along {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) inner: usize,
}

/// Adds each value of `dy` to the place of `out` that its index names; the other places become 0. Repeated
/// places add up in the order of `dy`. Indices are known to lie in `0..along.to`.
pub(crate) fn scatter_add<T: Float>(dy: &[T], index: &[i64], along: Along, out: &mut [T]) {
    let Along { from, to, inner } = along;
    let (slab, source) = (to * inner, from * inner);
    if slab == 0 {
        return;
    }
    pool::for_chunks_mut(out, slab, 2 * size_of::<T>(), |at, piece| {
        let (mut wide, mut narrow) = (Vec::new(), Vec::new());
        for (s, slab_out) in piece.chunks_exact_mut(slab).enumerate() {
            let first = (at / slab + s) * source;
            let dy = T::widen(&dy[first..first + source], &mut wide);
            let index = &index[first..first + source];
            T::narrow(slab_out, &mut narrow, |out| {
                out.fill(T::Real::ZERO);
                for (i, (&d, &at)) in dy.iter().zip(index).enumerate() {
                    out[at as usize * inner + i % inner] += d;
                }
            });
        }
    });
}

/// Reads `out[o, k, i] = data[o, index[o, k, i], i]`, with `n` places along the dim in `data` and `m` in `out`.
/// Indices are known to lie in `0..n`.
pub(crate) fn gather<T: Copy + Send + Sync>(
    data: &[T],
    index: &[i64],
    n: usize,
    m: usize,
    inner: usize,
    out: &mut [T],
) {
    let slab = m * inner;
    if slab == 0 {
        return;
    }
    pool::for_chunks_mut(out, 1, 16 + 2 * size_of::<T>(), |at, piece| {
        let (mut o, mut i) = (at / slab, at % inner);
        let mut left = slab - at % slab;
        for (cell, &from) in piece.iter_mut().zip(&index[at..]) {
            *cell = data[(o * n + from as usize) * inner + i];
            i = if i + 1 == inner { 0 } else { i + 1 };
            left -= 1;
            if left == 0 {
                (o, left) = (o + 1, slab);
            }
        }
    });
}
