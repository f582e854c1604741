//! Scaled-dot-product attention and its gradient, in blocks: no matrix of queries by keys is ever held.
//!
//! Heads are contiguous `[batch, heads, length, dim]`. Sums over keys run in fixed blocks in order, and so do
//! those over queries and over the heads of a group, so results do not depend on the number of threads.
//! A query that sees no key gives zeros.

mod backward;
mod cached;
mod forward;
mod rows;

pub(crate) use backward::{Grads, Saved, backward};
pub(crate) use cached::{Cached, over_cache};
pub(crate) use forward::forward;

use super::real::{Float, Real};
use crate::element::Bool;
use planaria_cpu::matmul::{Accumulate, MatRef, MatmulElement, matmul};
use std::ops::Range;

/// Queries of a block.
const Q_BLOCK: usize = 64;
/// Keys of a block.
const K_BLOCK: usize = 256;

/// The sizes of one attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) q_heads: usize,
    /// Divides `q_heads`: each serves a group of consecutive query heads.
    pub(crate) kv_heads: usize,
    pub(crate) q_len: usize,
    pub(crate) k_len: usize,
    /// Of queries and keys.
    pub(crate) dim: usize,
    /// Of values and outputs.
    pub(crate) v_dim: usize,
}

impl Sizes {
    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.q_heads / self.kv_heads.max(1)
    }

    /// Products of one query with one key, in bytes of scores; what decides whether threads are worth it.
    fn work_bytes(&self) -> usize {
        let scores =
            self.batch.saturating_mul(self.q_heads).saturating_mul(self.q_len).saturating_mul(self.k_len);
        scores.saturating_mul(8)
    }
}

/// Which keys a query may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All of them.
    All,
    /// Key `j` only from query `i >= j`, counted from the first of each.
    Causal,
}

/// Values of a mask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MaskValues<'a, R> {
    /// Added to the scaled scores.
    Add(&'a [R]),
    /// Keys to keep.
    Keep(&'a [Bool]),
}

/// A mask over `[batch, q_heads, q_len, k_len]`; strides of 0 broadcast. The caller checked the bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask<'a, R> {
    pub(crate) values: MaskValues<'a, R>,
    pub(crate) offset: usize,
    pub(crate) strides: [isize; 4],
}

/// What to compute besides the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule<'a, R> {
    pub(crate) scale: R,
    pub(crate) span: Span,
    pub(crate) mask: Option<Mask<'a, R>>,
}

/// A block of queries against a block of keys of one head.
#[derive(Clone, Debug)]
struct Pair {
    batch: usize,
    head: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl Pair {
    /// How many of the keys row `r` may see: `first + r * step`, cut to the keys there are.
    fn visible(&self, span: Span) -> Visible {
        match span {
            Span::All => Visible { first: self.keys.len() as isize, step: 0 },
            Span::Causal => {
                Visible { first: self.queries.start as isize + 1 - self.keys.start as isize, step: 1 }
            }
        }
    }
}

/// The visible keys of each row of a block, a prefix.
#[derive(Clone, Copy, Debug)]
struct Visible {
    first: isize,
    step: isize,
}

impl Visible {
    #[inline(always)]
    fn of(self, row: usize, keys: usize) -> usize {
        (self.first + row as isize * self.step).clamp(0, keys as isize) as usize
    }
}

/// Keys that any of the queries may see.
fn keys_for(span: Span, queries: &Range<usize>, k_len: usize) -> usize {
    match span {
        Span::All => k_len,
        Span::Causal => k_len.min(queries.end),
    }
}

fn blocks(len: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(size).map(move |start| start..len.min(start + size))
}

/// Rows `rows` of head `head` of a contiguous array of heads.
fn rows_of<T>(x: &[T], head: usize, len: usize, dim: usize, rows: &Range<usize>) -> Range<usize> {
    debug_assert!((head * len + rows.end) * dim <= x.len());
    (head * len + rows.start) * dim..(head * len + rows.end) * dim
}

/// A block product. Sizes come from the blocks themselves, so it cannot be refused.
fn product<R: MatmulElement>(out: &mut [R], a: MatRef<R>, b: MatRef<R>, accumulate: Accumulate) {
    let done = matmul(out, a, b, accumulate);
    debug_assert_eq!(done, Ok(()));
}

/// Scores of a block, before the scale: `q · kᵀ`, and the mask on top if there is one. Returns what is left to
/// multiply them with.
fn scores<R: Real + MatmulElement>(
    q: &[R],
    k: &[R],
    pair: &Pair,
    rule: &Rule<R>,
    dim: usize,
    out: &mut [R],
) -> R {
    let (rows, cols) = (pair.queries.len(), pair.keys.len());
    let (q, k) = (MatRef::row_major(q, rows, dim), MatRef::row_major(k, cols, dim));
    product(out, q, k.t(), Accumulate::Overwrite);
    let Some(mask) = &rule.mask else { return rule.scale };
    apply_mask(mask, pair, rule.scale, out);
    R::ONE
}

fn apply_mask<R: Real>(mask: &Mask<R>, pair: &Pair, scale: R, out: &mut [R]) {
    let [batch, head, row, col] = mask.strides;
    let start = mask.offset as isize + pair.batch as isize * batch + pair.head as isize * head;
    for (i, out) in pair.queries.clone().zip(out.chunks_exact_mut(pair.keys.len())) {
        let start = start + i as isize * row;
        let at = |j: usize| (start + j as isize * col) as usize;
        match mask.values {
            MaskValues::Add(values) => {
                for (j, s) in pair.keys.clone().zip(out) {
                    *s = s.mul_add(scale, values[at(j)]);
                }
            }
            MaskValues::Keep(values) => {
                for (j, s) in pair.keys.clone().zip(out) {
                    *s = if values[at(j)].get() { *s * scale } else { R::NEG_INFINITY };
                }
            }
        }
    }
}

/// Space one task reuses for all of its blocks.
struct Space<T: Float> {
    wide: [Vec<T::Real>; 4],
    scores: Vec<T::Real>,
    grads: Vec<T::Real>,
}

impl<T: Float> Space<T> {
    fn new() -> Self {
        Self { wide: [const { Vec::new() }; 4], scores: Vec::new(), grads: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
