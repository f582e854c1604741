//! Attention of one new token a row over keys and values in a cache, which are read where they are.

use super::forward::query_block;
use super::*;
use planaria_cpu::pool;

/// A cache `[rows, kv heads, capacity, dim]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cached<'a, T> {
    pub(crate) keys: &'a [T],
    pub(crate) values: &'a [T],
    pub(crate) kv_heads: usize,
    pub(crate) capacity: usize,
    pub(crate) dim: usize,
}

/// Writes `[rows, heads, dim]`: queries of as many heads over the keys of their row that `seen` names.
pub(crate) fn over_cache<T: Float>(
    q: &[T],
    cache: Cached<'_, T>,
    seen: &[Range<usize>],
    scale: T::Real,
    out: &mut [T],
) where
    T::Real: MatmulElement,
{
    let Cached { keys, values, kv_heads, capacity, dim } = cache;
    // The heads that share a head of keys are queries that see the same.
    let width = out.len() / (seen.len() * kv_heads).max(1);
    let group = width / dim.max(1);
    let rule = Rule { scale, span: Span::All, mask: None };
    let read = seen.iter().map(|keys| keys.len()).sum::<usize>() * kv_heads * dim * 2 * size_of::<T::Real>();
    let bytes = read / out.len().max(1);
    pool::for_chunks_mut(out, width.max(1), bytes, |first, piece| {
        let (mut space, mut narrow, mut lse) = (Space::new(), Vec::new(), vec![T::Real::ZERO; group]);
        for (at, out) in (first / width..).zip(piece.chunks_exact_mut(width)) {
            let (seen, row) = (&seen[at / kv_heads], at * capacity);
            let keep = (row + seen.start) * dim..(row + seen.end) * dim;
            let k_len = seen.len();
            let sizes = Sizes { batch: 1, q_heads: 1, kv_heads: 1, q_len: group, k_len, dim, v_dim: dim };
            let given = (&q[at * width..(at + 1) * width], &keys[keep.clone()], &values[keep]);
            T::narrow(out, &mut narrow, |out| {
                out.fill(T::Real::ZERO);
                query_block(given, out, &mut lse, 0, &(0..group), (sizes, &rule), &mut space);
            });
        }
    });
}
