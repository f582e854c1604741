//! Scaled-dot-product attention on arrays, and its gradient.

use super::fused::{Fresh, all_meta, check_like, check_stat, real_dtype};
use crate::array::Array;
use crate::cpu::attention::{self as kernel, Grads, Mask, MaskValues, Rule, Saved, Sizes};
use crate::cpu::real::{Float, Real, with_float};
use crate::cuda;
use crate::device::Device;
use crate::element::Bool;
use crate::error::{Error, Result};
use crate::view::broadcast_shapes;
use planaria_layout::{DType, Dims, Shape};

pub use crate::cpu::attention::Span;

/// What attention computes besides the product of its operands.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOptions<'a> {
    /// Factor of the scores; one over the root of the dim of the queries where `None`.
    pub scale: Option<f64>,
    /// Which keys a query may see.
    pub span: Span,
    /// Broadcast to `[batch, query heads, queries, keys]`. Booleans say which keys to keep; floats (of the
    /// operands' dtype, or f32) are added to the scaled scores. It gets no gradient.
    pub mask: Option<&'a Array>,
    /// Which keys belong together, with [`Span::Causal`].
    pub bounds: Option<Bounds<'a>>,
}

impl Default for AttentionOptions<'_> {
    fn default() -> Self {
        Self { scale: None, span: Span::All, mask: None, bounds: None }
    }
}

/// Where documents that share a row begin and end, or windows over it. Neither falls along a row.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// Of each query the first key it may see: i32 `[batch, queries]`.
    pub first: &'a Array,
    /// Of each key one past the last query that may see it: i32 `[batch, keys]`.
    pub end: &'a Array,
}

impl Bounds<'_> {
    fn check(&self, op: &'static str, span: Span, sizes: &Sizes) -> Result<()> {
        if span != Span::Causal {
            return Err(Error::argument(op, "bounds of keys go with causal attention only"));
        }
        for (x, count) in [(self.first, sizes.q_len), (self.end, sizes.k_len)] {
            x.check_dtype(op, DType::I32)?;
            super::fused::check_shape(op, x, &Shape::new(&[sizes.batch, count])?, "one bound for each row")?;
            if !x.is_contiguous() {
                return Err(Error::argument(op, "bounds of keys must be contiguous; copy them first"));
            }
        }
        Ok(())
    }

    /// The same as a mask of bools, together with another mask.
    fn mask(&self, sizes: &Sizes, other: Option<&Array>) -> Result<Array> {
        let keys = Array::arange(0, sizes.k_len as i64, 1, DType::I32)?.to(self.first.device())?;
        let keep = keys.ge(&self.first.unsqueeze(-1)?)?.unsqueeze(1)?;
        match other {
            None => Ok(keep),
            Some(mask) if mask.dtype() == DType::Bool => keep.logical_and(mask),
            Some(mask) => {
                let shape = broadcast_shapes("attention", mask.shape(), keep.shape())?;
                let hidden = keep.logical_not()?.broadcast_to(&shape)?;
                mask.broadcast_to(&shape)?.masked_fill(&hidden, f64::NEG_INFINITY)
            }
        }
    }
}

/// The result of [`attention`].
#[derive(Clone, Debug)]
pub struct Attended {
    /// `[batch, query heads, queries, value dim]`.
    pub out: Array,
    /// Log of the sum of the exponentials of each query's scores, -inf where it sees no key; f32, f64 for f64.
    pub lse: Array,
}

/// Gradients of [`attention`].
#[derive(Clone, Debug)]
pub struct AttentionGrad {
    /// Gradient of the queries.
    pub q: Array,
    /// Gradient of the keys.
    pub k: Array,
    /// Gradient of the values.
    pub v: Array,
}

/// `softmax(q · kᵀ * scale + mask) · v` for `q` `[batch, heads, queries, dim]`, `k` and `v` `[batch, kv heads,
/// keys, ..]`, where each key head serves `heads / kv heads` consecutive query heads. Never holds a matrix of
/// queries by keys. A query that sees no key gives zeros.
pub fn attention(q: &Array, k: &Array, v: &Array, options: &AttentionOptions) -> Result<Attended> {
    let op = "attention";
    let sizes = check(op, q, k, v)?;
    let (out, lse) = result_shapes(&sizes)?;
    let real = real_dtype(op, q.dtype())?;
    options.bounds.map_or(Ok(()), |bounds| bounds.check(op, options.span, &sizes))?;
    let given = bounded(q, options, &sizes)?;
    let mask = given.as_ref().or(options.mask);
    let mask = mask.map(|mask| prepare_mask(op, mask, &sizes, q.dtype(), real)).transpose()?;
    if all_meta(op, q, &[Some(k), Some(v), options.mask])? {
        return Ok(Attended { out: Array::meta_of(out, q.dtype()), lse: Array::meta_of(lse, real) });
    }
    if let Device::Cuda(_) = q.device() {
        let rule = rule_on_cuda(op, mask.as_ref(), options, &sizes);
        let (out, lse) = cuda::attend(rule, (q, k, v), (&out, &lse, real))?;
        return Ok(Attended { out, lse });
    }
    with_float!(op, q.dtype(), T => {
        let (q, k, v) = (q.values::<T>(op)?, k.values::<T>(op)?, v.values::<T>(op)?);
        let (mut out, mut lse) = (Fresh::<T>::new(&out)?, Fresh::<<T as Float>::Real>::new(&lse)?);
        with_rule(op, mask.as_ref(), options, &sizes, |rule| {
            kernel::forward::<T>((&q, &k, &v), out.slice(), lse.slice(), sizes, rule)
        })?;
        Ok(Attended { out: out.finish(), lse: lse.finish() })
    })
}

/// Gradients of [`attention`] from its operands, its result, and the gradient of `out`.
pub fn attention_grad(
    dout: &Array,
    q: &Array,
    k: &Array,
    v: &Array,
    result: &Attended,
    options: &AttentionOptions,
) -> Result<AttentionGrad> {
    let op = "attention_grad";
    let sizes = check(op, q, k, v)?;
    let (out, lse) = result_shapes(&sizes)?;
    let real = real_dtype(op, q.dtype())?;
    super::fused::check_shape(op, &result.out, &out, "the output of attention on these operands")?;
    result.out.check_dtype(op, q.dtype())?;
    check_like(op, dout, &result.out)?;
    check_stat(op, q, &result.lse, &lse)?;
    options.bounds.map_or(Ok(()), |bounds| bounds.check(op, options.span, &sizes))?;
    let given = bounded(q, options, &sizes)?;
    let mask = given.as_ref().or(options.mask);
    let mask = mask.map(|mask| prepare_mask(op, mask, &sizes, q.dtype(), real)).transpose()?;
    let others = [Some(k), Some(v), Some(dout), Some(&result.out), Some(&result.lse), options.mask];
    if all_meta(op, q, &others)? {
        return Ok(AttentionGrad { q: q.to_meta(), k: k.to_meta(), v: v.to_meta() });
    }
    if let Device::Cuda(_) = q.device() {
        let rule = rule_on_cuda(op, mask.as_ref(), options, &sizes);
        let grads = cuda::attend_grad(rule, (q, k, v), (&result.out, &result.lse, dout))?;
        return Ok(AttentionGrad { q: grads.q, k: grads.k, v: grads.v });
    }
    with_float!(op, q.dtype(), T => {
        let (mut dq, mut dk, mut dv) =
            (Fresh::<T>::new(q.shape())?, Fresh::<T>::new(k.shape())?, Fresh::<T>::new(v.shape())?);
        let (q, k, v) = (q.values::<T>(op)?, k.values::<T>(op)?, v.values::<T>(op)?);
        let (out, dout) = (result.out.values::<T>(op)?, dout.values::<T>(op)?);
        let lse = result.lse.values::<<T as Float>::Real>(op)?;
        let saved = Saved::<T> { q: &q, k: &k, v: &v, out: &out, lse: &lse, dout: &dout };
        let grads = Grads { q: dq.slice(), k: dk.slice(), v: dv.slice() };
        with_rule(op, mask.as_ref(), options, &sizes, |rule| kernel::backward(saved, grads, sizes, rule))?;
        Ok(AttentionGrad { q: dq.finish(), k: dk.finish(), v: dv.finish() })
    })
}

fn rule_on_cuda<'a>(
    op: &'static str,
    mask: Option<&'a Array>,
    options: &AttentionOptions<'a>,
    sizes: &Sizes,
) -> cuda::AttentionRule<'a> {
    let (causal, scale) = (options.span == Span::Causal, scale_of(options, sizes));
    cuda::AttentionRule { op, causal, scale, mask, bounds: options.bounds }
}

/// Bounds as a mask, where the kernel takes no others: on the host.
fn bounded(q: &Array, options: &AttentionOptions<'_>, sizes: &Sizes) -> Result<Option<Array>> {
    let bounds = options.bounds.filter(|_| q.device() == Device::Cpu);
    bounds.map(|bounds| bounds.mask(sizes, options.mask)).transpose()
}

/// The factor of the scores.
fn scale_of(options: &AttentionOptions, sizes: &Sizes) -> f64 {
    options.scale.unwrap_or_else(|| 1.0 / (sizes.dim.max(1) as f64).sqrt())
}

fn check(op: &'static str, q: &Array, k: &Array, v: &Array) -> Result<Sizes> {
    real_dtype(op, q.dtype())?;
    k.check_dtype(op, q.dtype())?;
    v.check_dtype(op, q.dtype())?;
    let mismatch = |x: &Array, reason| {
        Err(Error::ShapeMismatch { op, lhs: q.shape().clone(), rhs: x.shape().clone(), reason })
    };
    let four = |x: &Array| <[usize; 4]>::try_from(&x.shape()[..]).ok();
    let Some([batch, q_heads, q_len, dim]) = four(q) else {
        return mismatch(q, "queries must have 4 dims: batch, heads, length, dim");
    };
    let Some([k_batch, kv_heads, k_len, k_dim]) = four(k) else {
        return mismatch(k, "keys must have 4 dims: batch, heads, length, dim");
    };
    let Some([v_batch, v_heads, v_len, v_dim]) = four(v) else {
        return mismatch(v, "values must have 4 dims: batch, heads, length, dim");
    };
    if k_batch != batch || k_dim != dim {
        return mismatch(k, "queries and keys must have the same batch and dim");
    }
    if (v_batch, v_heads, v_len) != (k_batch, kv_heads, k_len) {
        return mismatch(v, "values must have the batch, heads and length of the keys");
    }
    let grouped = q_heads == 0 && kv_heads == 0 || kv_heads > 0 && q_heads.is_multiple_of(kv_heads);
    if !grouped {
        return mismatch(k, "the heads of the keys must divide those of the queries");
    }
    Ok(Sizes { batch, q_heads, kv_heads, q_len, k_len, dim, v_dim })
}

fn result_shapes(s: &Sizes) -> Result<(Shape, Shape)> {
    let out = Dims::from_slice(&[s.batch, s.q_heads, s.q_len, s.v_dim]);
    Ok((Shape::from_dims(out)?, Shape::new(&[s.batch, s.q_heads, s.q_len])?))
}

/// The mask as a view of all scores, floats in the computing dtype.
fn prepare_mask(op: &'static str, mask: &Array, s: &Sizes, dtype: DType, real: DType) -> Result<Array> {
    let values = match mask.dtype() {
        DType::Bool => mask.clone(),
        found if found == dtype || found == real => mask.cast(real)?,
        found => {
            let expected = "a mask of bools, of f32 or of the operands' dtype";
            return Err(Error::DType { op, found, expected });
        }
    };
    values.broadcast_to(&[s.batch, s.q_heads, s.q_len, s.k_len])
}

/// Calls `run` with the rule the options and the prepared mask make.
fn with_rule<R: Real>(
    op: &'static str,
    mask: Option<&Array>,
    options: &AttentionOptions,
    sizes: &Sizes,
    run: impl FnOnce(&Rule<R>),
) -> Result<()> {
    let (scale, span) = (R::of(scale_of(options, sizes)), options.span);
    let Some(mask) = mask else {
        run(&Rule { scale, span, mask: None });
        return Ok(());
    };
    let host = mask.host(op)?;
    let values = match mask.dtype() {
        DType::Bool => MaskValues::Keep(host.slice::<Bool>()),
        _ => MaskValues::Add(host.slice::<R>()),
    };
    let mut strides = [0; 4];
    strides.copy_from_slice(mask.strides());
    run(&Rule { scale, span, mask: Some(Mask { values, offset: mask.offset(), strides }) });
    Ok(())
}
