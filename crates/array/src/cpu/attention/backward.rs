//! The gradient of attention: weights are computed again, block by block.

use super::*;
use planaria_cpu::pool;

/// Gradients to fill, contiguous and shaped like their operands.
#[derive(Debug)]
pub(crate) struct Grads<'a, T> {
    pub(crate) q: &'a mut [T],
    pub(crate) k: &'a mut [T],
    pub(crate) v: &'a mut [T],
}

/// What the gradient is computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved<'a, T: Float> {
    pub(crate) q: &'a [T],
    pub(crate) k: &'a [T],
    pub(crate) v: &'a [T],
    pub(crate) out: &'a [T],
    pub(crate) lse: &'a [T::Real],
    pub(crate) dout: &'a [T],
}

/// Fills the gradients of queries, keys and values.
pub(crate) fn backward<T: Float>(saved: Saved<T>, grads: Grads<T>, sizes: Sizes, rule: &Rule<T::Real>)
where
    T::Real: MatmulElement,
{
    let delta = deltas(&saved, sizes);
    let job = Job { saved, sizes, rule, delta: &delta };
    let heads = sizes.batch * sizes.kv_heads;
    if heads >= rayon::current_num_threads() {
        job.by_head(grads);
    } else {
        job.by_block(grads);
    }
}

/// `sum(dout * out)` of every query: what all gradients of its scores are relative to.
fn deltas<T: Float>(saved: &Saved<T>, sizes: Sizes) -> Vec<T::Real> {
    let mut delta = vec![T::Real::ZERO; saved.lse.len()];
    let dim = sizes.v_dim;
    pool::for_chunks_mut(&mut delta, 64, 2 * dim * size_of::<T>(), |first, delta| {
        let (mut wide_out, mut wide_dout) = (Vec::new(), Vec::new());
        let rows = first * dim..(first + delta.len()) * dim;
        let out = T::widen(&saved.out[rows.clone()], &mut wide_out);
        let dout = T::widen(&saved.dout[rows], &mut wide_dout);
        rows::row_dots(out, dout, delta, dim);
    });
    delta
}

struct Job<'a, T: Float> {
    saved: Saved<'a, T>,
    sizes: Sizes,
    rule: &'a Rule<'a, T::Real>,
    delta: &'a [T::Real],
}

/// Weights of a pair of blocks, the gradients of its `q · k`, and the operands they came from.
struct Block<'s, R> {
    weights: MatRef<'s, R>,
    grads: MatRef<'s, R>,
    q: MatRef<'s, R>,
    k: MatRef<'s, R>,
    dout: MatRef<'s, R>,
}

impl<T: Float> Job<'_, T>
where
    T::Real: MatmulElement,
{
    /// One task per key head: every block is computed once and serves all three gradients.
    fn by_head(&self, grads: Grads<T>) {
        let s = self.sizes;
        let q_size = (s.group() * s.q_len * s.dim).max(1);
        let (k_size, v_size) = ((s.k_len * s.dim).max(1), (s.k_len * s.v_dim).max(1));
        let count = s.batch * s.kv_heads;
        let mut dq = grads.q.chunks_mut(q_size);
        let mut dk = grads.k.chunks_mut(k_size);
        let mut dv = grads.v.chunks_mut(v_size);
        // An empty gradient has no chunks; its heads get empty slices.
        let parts: Vec<_> = (0..count)
            .map(|head| {
                (
                    head,
                    dq.next().unwrap_or_default(),
                    dk.next().unwrap_or_default(),
                    dv.next().unwrap_or_default(),
                )
            })
            .collect();
        pool::for_parts(parts, s.work_bytes(), |(kv_head, dq, dk, dv)| {
            let mut space = Space::new();
            T::narrow(dq, &mut Vec::new(), |dq| {
                dq.fill(T::Real::ZERO);
                for keys in blocks(s.k_len, K_BLOCK) {
                    let dk = &mut dk[keys.start * s.dim..keys.end * s.dim];
                    let dv = &mut dv[keys.start * s.v_dim..keys.end * s.v_dim];
                    self.key_block(kv_head, &keys, dk, dv, Some(&mut *dq), &mut space);
                }
            });
        });
    }

    /// One task per block of one gradient: computes each block twice, but there are enough tasks for any
    /// number of threads. Sums run in the same order as by head, so the bits are the same.
    fn by_block(&self, grads: Grads<T>) {
        let s = self.sizes;
        let (mut dk, mut dv) = (grads.k, grads.v);
        let mut parts = Vec::new();
        for kv_head in 0..s.batch * s.kv_heads {
            for keys in blocks(s.k_len, K_BLOCK) {
                let (dk_part, dk_rest) = dk.split_at_mut(keys.len() * s.dim);
                let (dv_part, dv_rest) = dv.split_at_mut(keys.len() * s.v_dim);
                (dk, dv) = (dk_rest, dv_rest);
                parts.push((kv_head, keys, dk_part, dv_part));
            }
        }
        pool::for_parts(parts, s.work_bytes(), |(kv_head, keys, dk, dv)| {
            self.key_block(kv_head, &keys, dk, dv, None, &mut Space::new());
        });
        let mut dq = grads.q;
        let mut parts = Vec::new();
        for head in 0..s.batch * s.q_heads {
            for queries in blocks(s.q_len, Q_BLOCK) {
                let (part, rest) = dq.split_at_mut(queries.len() * s.dim);
                dq = rest;
                parts.push((head, queries, part));
            }
        }
        pool::for_parts(parts, s.work_bytes(), |(head, queries, dq): (usize, Range<usize>, &mut [T])| {
            let mut space = Space::new();
            T::narrow(dq, &mut Vec::new(), |dq| {
                dq.fill(T::Real::ZERO);
                for keys in blocks(keys_for(self.rule.span, &queries, s.k_len), K_BLOCK) {
                    let block = self.block(head, &queries, &keys, &mut space);
                    product(dq, block.grads, block.k, Accumulate::Add);
                }
            });
        });
    }

    /// Gradients of one block of keys and values; adds to those of the group's queries on the way if asked.
    fn key_block(
        &self,
        kv_head: usize,
        keys: &Range<usize>,
        dk: &mut [T],
        dv: &mut [T],
        mut dq: Option<&mut [T::Real]>,
        space: &mut Space<T>,
    ) {
        let s = self.sizes;
        T::narrow(dk, &mut Vec::new(), |dk| {
            T::narrow(dv, &mut Vec::new(), |dv| {
                dk.fill(T::Real::ZERO);
                dv.fill(T::Real::ZERO);
                for member in 0..s.group() {
                    for queries in blocks(s.q_len, Q_BLOCK) {
                        // Keys past the last this block of queries may see.
                        let end = keys.end.min(keys_for(self.rule.span, &queries, s.k_len));
                        if end <= keys.start {
                            continue;
                        }
                        let keys = keys.start..end;
                        let block = self.block(kv_head * s.group() + member, &queries, &keys, space);
                        let dk = &mut dk[..keys.len() * s.dim];
                        let dv = &mut dv[..keys.len() * s.v_dim];
                        product(dv, block.weights.t(), block.dout, Accumulate::Add);
                        product(dk, block.grads.t(), block.q, Accumulate::Add);
                        if let Some(dq) = &mut dq {
                            let rows = rows_of(dq, member, s.q_len, s.dim, &queries);
                            product(&mut dq[rows], block.grads, block.k, Accumulate::Add);
                        }
                    }
                }
            });
        });
    }

    /// Computes weights and score gradients of one pair of blocks again.
    fn block<'s>(
        &self,
        head: usize,
        queries: &Range<usize>,
        keys: &Range<usize>,
        space: &'s mut Space<T>,
    ) -> Block<'s, T::Real>
    where
        T: 's,
        Self: 's,
    {
        let (s, kv_head) = (self.sizes, head / self.sizes.group());
        let [wide_q, wide_k, wide_v, wide_dout] = &mut space.wide;
        let (q, k) = (self.saved.q, self.saved.k);
        let (v, dout) = (self.saved.v, self.saved.dout);
        let q = T::widen(&q[rows_of(q, head, s.q_len, s.dim, queries)], wide_q);
        let k = T::widen(&k[rows_of(k, kv_head, s.k_len, s.dim, keys)], wide_k);
        let v = T::widen(&v[rows_of(v, kv_head, s.k_len, s.v_dim, keys)], wide_v);
        let dout = T::widen(&dout[rows_of(dout, head, s.q_len, s.v_dim, queries)], wide_dout);
        let pair = Pair {
            batch: head / s.q_heads,
            head: head % s.q_heads,
            queries: queries.clone(),
            keys: keys.clone(),
        };
        let (rows, cols) = (queries.len(), keys.len());
        space.scores.resize(rows * cols, T::Real::ZERO);
        space.grads.resize(rows * cols, T::Real::ZERO);
        let (weights, grads) = (&mut space.scores[..], &mut space.grads[..]);
        let left = scores(q, k, &pair, self.rule, s.dim, weights);
        let dout = MatRef::row_major(dout, rows, s.v_dim);
        product(grads, dout, MatRef::row_major(v, cols, s.v_dim).t(), Accumulate::Overwrite);
        let row = rows_of(self.saved.lse, head, s.q_len, 1, queries);
        let (lse, delta) = (&self.saved.lse[row.clone()], &self.delta[row]);
        let scales = (left, self.rule.scale);
        rows::soften_grad(weights, grads, cols, scales, pair.visible(self.rule.span), lse, delta);
        Block {
            weights: MatRef::row_major(weights, rows, cols),
            grads: MatRef::row_major(grads, rows, cols),
            q: MatRef::row_major(q, rows, s.dim),
            k: MatRef::row_major(k, cols, s.dim),
            dout,
        }
    }
}
