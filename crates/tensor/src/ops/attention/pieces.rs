//! Attention on one rank's piece where one call of the fused kernel does not do: document by document, and with
//! dropout some queries at a time.

use super::{Documents, Drop};
use crate::error::{Error, Result};
use crate::op::Local;
use crate::ops::moments::wide;
use planaria_array::ops::{self, Attended, AttentionGrad, AttentionOptions, Bounds, Keep, Span};
use planaria_array::random::Window;
use planaria_array::{Array, DType, Device};
use planaria_layout::Piece;
use rayon::prelude::*;
use std::ops::Range;

/// Scores held at once with dropout.
const SCORES: usize = 1 << 20;

/// Stands for minus infinity, so that a query that sees nothing has gradients of 0 and not NaN.
const HIDDEN: f64 = -1e30;

/// Queries, keys and values of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operands<'a> {
    pub(super) q: &'a Array,
    pub(super) k: &'a Array,
    pub(super) v: &'a Array,
}

/// What a rank's piece of a call must know besides its operands.
#[derive(Debug)]
pub(super) struct Here<'a> {
    options: AttentionOptions<'a>,
    /// The mask, and the window where it is not among bounds, as a view of all of this rank's scores.
    mask: Option<Array>,
    drop: Option<Drop>,
    documents: Option<&'a Documents>,
    /// Rows of the batch and heads of this rank, as they are numbered globally.
    rows: Vec<usize>,
    heads: Vec<usize>,
    /// All scores there are: rows, heads, queries, keys.
    global: [usize; 4],
}

/// Queries of one head and the keys they may see, numbered on this rank.
struct Part {
    row: usize,
    head: usize,
    queries: Range<usize>,
    keys: Range<usize>,
}

impl<'a> Here<'a> {
    /// `first` is the place of the queries among the inputs.
    pub(super) fn new(
        options: AttentionOptions<'a>,
        (drop, documents): (Option<Drop>, Option<&'a Documents>),
        of: Operands<'_>,
        local: &Local<'_>,
        first: usize,
    ) -> Result<Here<'a>> {
        let (q, k) = (local.input_shape(first, of.q), local.input_shape(first + 1, of.k));
        let piece = local.input_piece(first)?;
        let indices = |dim: usize| numbered(piece.as_ref(), dim, of.q.shape()[dim]);
        let [rows, heads, queries, _] = of.q.shape()[..] else { return Err(super::SHAPES) };
        let all = [rows, heads, queries, of.k.shape()[2]];
        let band = match documents.filter(|_| !in_one_call(&options, drop, of)) {
            Some(documents) => documents.band(of.q.device())?,
            None => None,
        };
        let mask = match (options.mask, band) {
            (mask, None) => mask.cloned(),
            (None, band) => band,
            (Some(mask), Some(band)) if mask.dtype() == DType::Bool => Some(mask.logical_and(&band)?),
            (Some(mask), Some(band)) => {
                let hidden = band.logical_not()?.broadcast_to(&all)?;
                Some(mask.broadcast_to(&all)?.masked_fill(&hidden, f64::NEG_INFINITY)?)
            }
        };
        Ok(Here {
            mask: mask.map(|mask| mask.broadcast_to(&all)).transpose()?,
            options,
            drop,
            documents,
            rows: indices(0)?,
            heads: indices(1)?,
            global: [q[0], q[1], q[2], k[2]],
        })
    }

    /// Bounds of the documents, where one call of the kernel takes them all.
    fn bounds(&self, of: Operands<'_>) -> Result<Option<[Array; 2]>> {
        match self.documents.filter(|_| in_one_call(&self.options, self.drop, of)) {
            Some(documents) => documents.bounds(&self.rows, of.q.device()).map(Some),
            None => Ok(None),
        }
    }

    /// The result and its logsumexp.
    pub(super) fn forward(&self, of: Operands<'_>) -> Result<Attended> {
        if let Some([first, end]) = &self.bounds(of)? {
            let options = AttentionOptions { bounds: Some(Bounds { first, end }), ..self.options };
            return Ok(ops::attention(of.q, of.k, of.v, &options)?);
        }
        let like =
            ops::attention(&of.q.to_meta(), &of.k.to_meta(), &of.v.to_meta(), &AttentionOptions::default())?;
        // Every query is in one document, so all of it is written.
        let done = Attended {
            out: Array::empty_on(like.out.shape(), like.out.dtype(), of.q.device())?,
            lse: Array::empty_on(like.lse.shape(), like.lse.dtype(), of.q.device())?,
        };
        if let Some(drop) = &self.drop {
            let wide = of.wide()?;
            self.parts().try_for_each(|part| self.dropped(drop, wide.borrowed(), &done, &part))?;
            return Ok(done);
        }
        self.each_document(of.q.device(), &|row, range| {
            let one = |x: &Array| cut(x, row, range);
            let mask =
                self.mask.as_ref().map(|mask| one(mask)?.narrow(3, range.start, range.len())).transpose()?;
            let options = AttentionOptions { mask: mask.as_ref(), ..self.options };
            let found = ops::attention(&one(of.q)?, &one(of.k)?, &one(of.v)?, &options)?;
            one(&done.out)?.copy_from(&found.out)?;
            Ok(one(&done.lse)?.copy_from(&found.lse)?)
        })?;
        Ok(done)
    }

    /// The gradients of queries, keys and values.
    pub(super) fn backward(&self, dy: &Array, of: Operands<'_>, done: &Attended) -> Result<AttentionGrad> {
        if let Some([first, end]) = &self.bounds(of)? {
            let options = AttentionOptions { bounds: Some(Bounds { first, end }), ..self.options };
            return Ok(ops::attention_grad(dy, of.q, of.k, of.v, done, &options)?);
        }
        let zeros = |x: &Array, dtype| Array::zeros_on(x.shape(), dtype, x.device());
        if let Some(drop) = &self.drop {
            let dtype = wide(of.q.dtype());
            let sums =
                AttentionGrad { q: zeros(of.q, dtype)?, k: zeros(of.k, dtype)?, v: zeros(of.v, dtype)? };
            let (wide, dy) = (of.wide()?, dy.cast(dtype)?);
            // What each query's gradient has of its result: the same with dropout as without.
            let shares = dy.mul(&done.out.cast(dtype)?)?.sum(&[-1], Keep::Yes)?;
            let given = Given { dy, shares, lse: &done.lse };
            self.parts()
                .try_for_each(|part| self.dropped_grad(drop, &given, wide.borrowed(), &sums, &part))?;
            let narrow = |x: &Array| x.cast(of.q.dtype());
            return Ok(AttentionGrad { q: narrow(&sums.q)?, k: narrow(&sums.k)?, v: narrow(&sums.v)? });
        }
        let empty = |x: &Array| Array::empty_on(x.shape(), of.q.dtype(), x.device());
        let all = AttentionGrad { q: empty(of.q)?, k: empty(of.k)?, v: empty(of.v)? };
        self.each_document(of.q.device(), &|row, range| {
            let one = |x: &Array| cut(x, row, range);
            let mask =
                self.mask.as_ref().map(|mask| one(mask)?.narrow(3, range.start, range.len())).transpose()?;
            let options = AttentionOptions { mask: mask.as_ref(), ..self.options };
            let done = Attended { out: one(&done.out)?, lse: one(&done.lse)? };
            let found =
                ops::attention_grad(&one(dy)?, &one(of.q)?, &one(of.k)?, &one(of.v)?, &done, &options)?;
            for (to, from) in [(&all.q, found.q), (&all.k, found.k), (&all.v, found.v)] {
                one(to)?.copy_from(&from)?;
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Runs `work` for each document of this rank. On the host they share the threads out: most are too short for more than one.
    fn each_document(
        &self,
        device: Device,
        work: &(dyn Fn(usize, &Range<usize>) -> Result<()> + Sync),
    ) -> Result<()> {
        if device == Device::Cpu {
            let all: Vec<_> = self.ranges().collect();
            return all.par_iter().try_for_each(|(row, range)| work(*row, range));
        }
        self.ranges().try_for_each(|(row, range)| work(row, &range))
    }

    /// Rows of this rank and the documents in them.
    fn ranges(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let of_row = |(row, &global): (usize, &usize)| {
            let documents = self.documents.map(|documents| documents.of_row(global).collect::<Vec<_>>());
            documents.unwrap_or_default().into_iter().map(move |range| (row, range))
        };
        self.rows.iter().enumerate().flat_map(of_row)
    }

    /// Everything, some queries of one head at a time.
    fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let (queries, keys) = (self.global[2], self.global[3]);
        let whole = move || (0..self.rows.len()).map(move |row| (row, (0..queries, 0..keys)));
        let cut = || self.ranges().map(|(row, range)| (row, (range.clone(), range)));
        let all: Vec<_> = if self.documents.is_some() { cut().collect() } else { whole().collect() };
        let causal = self.options.span == Span::Causal;
        all.into_iter().flat_map(move |(row, (queries, keys))| {
            let step = (SCORES / keys.len().max(1)).max(1);
            let starts: Vec<usize> = queries.clone().step_by(step).collect();
            (0..self.heads.len()).flat_map(move |head| {
                let (queries, keys) = (queries.clone(), keys.clone());
                starts.clone().into_iter().map(move |start| {
                    let end = (start + step).min(queries.end);
                    let last = if causal { keys.end.min(end).max(keys.start) } else { keys.end };
                    Part { row, head, queries: start..end, keys: keys.start..last }
                })
            })
        })
    }

    fn dropped(&self, drop: &Drop, of: Operands<'_>, done: &Attended, part: &Part) -> Result<()> {
        let (scores, hidden) = self.scores(of, part)?;
        let lse = scores.logsumexp(&[-1], Keep::Yes)?;
        let p = self.kept(drop, &shares(&scores, &lse, &hidden)?, part)?;
        let out = part.of_queries(&done.out)?;
        out.copy_from(&ops::matmul(&p, &part.of_keys(of.v, self.group(of))?)?.cast(out.dtype())?)?;
        part.of_queries(&done.lse.unsqueeze(-1)?)?.copy_from(&lse)?;
        Ok(())
    }

    fn dropped_grad(
        &self,
        drop: &Drop,
        given: &Given<'_>,
        of: Operands<'_>,
        sums: &AttentionGrad,
        part: &Part,
    ) -> Result<()> {
        let group = self.group(of);
        let (scores, hidden) = self.scores(of, part)?;
        let p = shares(&scores, &part.of_queries(&given.lse.unsqueeze(-1)?)?, &hidden)?;
        let dy = part.of_queries(&given.dy)?;
        let add = |to: Array, more: Array| Ok::<_, Error>(to.copy_from(&to.add(&more)?)?);
        let kept = self.kept(drop, &p, part)?;
        add(part.of_keys(&sums.v, group)?, ops::matmul(&kept.transpose(0, 1)?, &dy)?)?;
        let dp = ops::matmul(&dy, &part.of_keys(of.v, group)?.transpose(0, 1)?)?;
        let dp = self.kept(drop, &dp, part)?.sub(&part.of_queries(&given.shares)?)?;
        let ds = p.mul(&dp)?.mul(&self.scale(of)?)?;
        part.of_queries(&sums.q)?.copy_from(&ops::matmul(&ds, &part.of_keys(of.k, group)?)?)?;
        add(part.of_keys(&sums.k, group)?, ops::matmul(&ds.transpose(0, 1)?, &part.of_queries(of.q)?)?)
    }

    /// Scaled scores, and which of them count for nothing.
    fn scores(&self, of: Operands<'_>, part: &Part) -> Result<(Array, Option<Array>)> {
        let (q, k) = (part.of_queries(of.q)?, part.of_keys(of.k, self.group(of))?);
        let mut scores = ops::matmul(&q.mul(&self.scale(of)?)?, &k.transpose(0, 1)?)?;
        let mut keep = None;
        if self.options.span == Span::Causal {
            let ahead = part.queries.start as i64 - part.keys.start as i64;
            let all = Array::full_on(&[part.queries.len(), part.keys.len()], true, DType::Bool, q.device())?;
            keep = Some(all.tril(ahead)?);
        }
        if let Some(mask) = &self.mask {
            let mask = part.of_queries(mask)?.narrow(1, part.keys.start, part.keys.len())?;
            match mask.dtype() {
                DType::Bool => keep = Some(keep.map_or(Ok(mask.clone()), |keep| keep.logical_and(&mask))?),
                _ => scores = scores.add(&mask.cast(scores.dtype())?)?,
            }
        }
        let hidden = keep.map(|keep| keep.logical_not()).transpose()?;
        let scores = match &hidden {
            Some(hidden) => scores.masked_fill(hidden, HIDDEN)?,
            None => scores,
        };
        Ok((scores, hidden))
    }

    /// What dropout leaves of a part. The draws follow from row, head, query and key in the whole batch.
    fn kept(&self, drop: &Drop, x: &Array, part: &Part) -> Result<Array> {
        let (row, head) = (self.rows[part.row], self.heads[part.head]);
        let lo = [row, head, part.queries.start, part.keys.start];
        let hi = [row + 1, head + 1, part.queries.end, part.keys.end];
        let window = Window::of_box(&self.global, &lo, &hi)?;
        let dropped = ops::dropout(&x.reshape(window.shape())?, drop.p, drop.key, &window)?;
        Ok(dropped.reshape(x.shape())?)
    }

    fn scale(&self, of: Operands<'_>) -> Result<Array> {
        let usual = || 1.0 / (of.q.shape()[3].max(1) as f64).sqrt();
        Ok(Array::scalar(self.options.scale.unwrap_or_else(usual), of.q.dtype())?)
    }

    /// Heads of queries that one head of keys serves.
    fn group(&self, of: Operands<'_>) -> usize {
        (of.q.shape()[1] / of.k.shape()[1].max(1)).max(1)
    }
}

/// What backward starts from.
struct Given<'a> {
    dy: Array,
    shares: Array,
    lse: &'a Array,
}

impl Part {
    /// `[queries, ..]` of what has rows, heads and queries.
    fn of_queries(&self, x: &Array) -> Result<Array> {
        let one = x.select(0, self.row as i64)?.select(0, self.head as i64)?;
        Ok(one.narrow(0, self.queries.start, self.queries.len())?)
    }

    /// `[keys, ..]` of what has rows, heads of keys and keys.
    fn of_keys(&self, x: &Array, group: usize) -> Result<Array> {
        let one = x.select(0, self.row as i64)?.select(0, (self.head / group) as i64)?;
        Ok(one.narrow(0, self.keys.start, self.keys.len())?)
    }
}

/// Operands in the dtype that is computed in.
struct Wide([Array; 3]);

impl Wide {
    fn borrowed(&self) -> Operands<'_> {
        let [q, k, v] = &self.0;
        Operands { q, k, v }
    }
}

impl Operands<'_> {
    fn wide(&self) -> Result<Wide> {
        let dtype = wide(self.q.dtype());
        Ok(Wide([self.q.cast(dtype)?, self.k.cast(dtype)?, self.v.cast(dtype)?]))
    }
}

/// True where one call of the kernel takes all documents: causal, on a device.
fn in_one_call(options: &AttentionOptions<'_>, drop: Option<Drop>, of: Operands<'_>) -> bool {
    let on_device = matches!(of.q.device(), Device::Cuda(_));
    on_device && drop.is_none() && options.span == Span::Causal
}

/// One row of the batch and some positions of its sequence.
fn cut(x: &Array, row: usize, range: &Range<usize>) -> planaria_array::Result<Array> {
    x.narrow(0, row, 1)?.narrow(2, range.start, range.len())
}

/// `exp(scores - lse)`, and 0 for what is hidden.
fn shares(scores: &Array, lse: &Array, hidden: &Option<Array>) -> Result<Array> {
    let p = scores.sub(lse)?.exp()?;
    Ok(match hidden {
        Some(hidden) => p.masked_fill(hidden, 0.0)?,
        None => p,
    })
}

/// The global index of each local one along a dim.
fn numbered(piece: Option<&Piece>, dim: usize, size: usize) -> Result<Vec<usize>> {
    let mut out: Vec<usize> = (0..size).collect();
    let Some(piece) = piece else { return Ok(out) };
    for region in piece.boxes() {
        let at = piece.locate(&region).ok_or(Error::Bug("a piece does not have its own box"))?;
        for (place, global) in (at.lo()[dim]..at.hi()[dim]).zip(region.lo()[dim]..) {
            out[place] = global;
        }
    }
    Ok(out)
}
