//! Attention forward: each block of queries walks the blocks of keys once, with a running softmax.

use super::*;
use planaria_cpu::pool;

/// Writes the output `[batch, q_heads, q_len, v_dim]` and the log of the sum of exponentials of each query's
/// scores, -inf where it sees no key.
pub(crate) fn forward<T: Float>(
    (q, k, v): (&[T], &[T], &[T]),
    out: &mut [T],
    lse: &mut [T::Real],
    sizes: Sizes,
    rule: &Rule<T::Real>,
) where
    T::Real: MatmulElement,
{
    let parts = query_parts(out, lse, sizes);
    pool::for_parts(parts, sizes.work_bytes(), |part: Part<T>| {
        let mut space = Space::new();
        T::narrow(part.out, &mut Vec::new(), |out| {
            out.fill(T::Real::ZERO);
            query_block((q, k, v), out, part.lse, part.head, &part.queries, (sizes, rule), &mut space);
        });
    });
}

/// The outputs of one block of queries.
struct Part<'a, T: Float> {
    head: usize,
    queries: Range<usize>,
    out: &'a mut [T],
    lse: &'a mut [T::Real],
}

fn query_parts<'a, T: Float>(
    mut out: &'a mut [T],
    mut lse: &'a mut [T::Real],
    sizes: Sizes,
) -> Vec<Part<'a, T>> {
    let mut parts = Vec::new();
    for head in 0..sizes.batch * sizes.q_heads {
        for queries in blocks(sizes.q_len, Q_BLOCK) {
            let (out_part, out_rest) = out.split_at_mut(queries.len() * sizes.v_dim);
            let (lse_part, lse_rest) = lse.split_at_mut(queries.len());
            (out, lse) = (out_rest, lse_rest);
            parts.push(Part { head, queries, out: out_part, lse: lse_part });
        }
    }
    parts
}

/// One block of queries of head `head`, counted over the batch. `out` is zero; `lse` is overwritten.
pub(super) fn query_block<T: Float>(
    (q, k, v): (&[T], &[T], &[T]),
    out: &mut [T::Real],
    lse: &mut [T::Real],
    head: usize,
    queries: &Range<usize>,
    (sizes, rule): (Sizes, &Rule<T::Real>),
    space: &mut Space<T>,
) where
    T::Real: MatmulElement,
{
    let kv_head = head / sizes.group();
    let [wide_q, wide_k, wide_v, total] = &mut space.wide;
    let q = T::widen(&q[rows_of(q, head, sizes.q_len, sizes.dim, queries)], wide_q);
    lse.fill(T::Real::NEG_INFINITY);
    total.clear();
    total.resize(queries.len(), T::Real::ZERO);
    for keys in blocks(keys_for(rule.span, queries, sizes.k_len), K_BLOCK) {
        let k = T::widen(&k[rows_of(k, kv_head, sizes.k_len, sizes.dim, &keys)], wide_k);
        let v = T::widen(&v[rows_of(v, kv_head, sizes.k_len, sizes.v_dim, &keys)], wide_v);
        let pair = Pair {
            batch: head / sizes.q_heads,
            head: head % sizes.q_heads,
            queries: queries.clone(),
            keys: keys.clone(),
        };
        space.scores.resize(queries.len() * keys.len(), T::Real::ZERO);
        let weights = &mut space.scores[..];
        let scale = scores(q, k, &pair, rule, sizes.dim, weights);
        rows::soften(weights, keys.len(), scale, pair.visible(rule.span), lse, total, out, sizes.v_dim);
        let weights = MatRef::row_major(weights, queries.len(), keys.len());
        product(out, weights, MatRef::row_major(v, keys.len(), sizes.v_dim), Accumulate::Add);
    }
    rows::finish(lse, total, out, sizes.v_dim);
}
