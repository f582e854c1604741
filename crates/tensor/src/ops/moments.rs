//! Reductions that need the whole of a dim at once: logsumexp, norms, variance. Ranks that cut it work together.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::{keep_shape, normal_dims};
use crate::ops::named::{Found, found, keep};
use crate::ops::reduce::{highest, lowest, reduced_shape, share, signed, some_dims};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops::Keep;
use planaria_array::{Array, DType, Error, Scalar};
use planaria_layout::rule::{FactorId, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::smallvec;

/// What is made of the elements.
#[derive(Debug, Clone, Copy, PartialEq)]
enum MomentKind {
    LogSumExp,
    /// The p-norm.
    Norm(f64),
    /// Variance, divided by the count less this.
    Var(f64),
    /// Its root.
    Std(f64),
}

/// Elements along dims made into one, by steps that each know the result of the one before.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    kind: MomentKind,
    dims: Dims,
    keep: Keep,
}

impl Op for Moment {
    fn name(&self) -> &'static str {
        match self.kind {
            MomentKind::LogSumExp => "logsumexp",
            MomentKind::Norm(_) => "p_norm",
            MomentKind::Var(_) => "var",
            MomentKind::Std(_) => "std",
        }
    }

    fn attributes(&self) -> Attributes {
        let dims =
            Attributes::new().with("axis", self.dims.as_slice()).with("keepdim", self.keep == Keep::Yes);
        match self.kind {
            MomentKind::LogSumExp => dims,
            MomentKind::Norm(p) => dims.with("porder", p),
            MomentKind::Var(correction) | MomentKind::Std(correction) => dims.with("correction", correction),
        }
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let messages = match self.kind {
            MomentKind::Norm(_) => 1,
            MomentKind::LogSumExp | MomentKind::Var(_) | MomentKind::Std(_) => 2,
        };
        Ok(joint_reduction(&inputs[0], &self.dims, outputs, messages))
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, dims) = (inputs[0], signed(&self.dims));
        if !local.is_cut(0, &self.dims) {
            return Ok(smallvec![match self.kind {
                MomentKind::LogSumExp => x.logsumexp(&dims, self.keep)?,
                MomentKind::Norm(p) => x.norm(p, &dims, self.keep)?,
                MomentKind::Var(correction) => x.var(&dims, correction, self.keep)?,
                MomentKind::Std(correction) => x.std(&dims, correction, self.keep)?,
            }]);
        }
        let wide = x.cast(wide(x.dtype()))?;
        let y = match self.kind {
            MomentKind::LogSumExp => log_sum_exp(&wide, &self.dims, local, 0)?,
            MomentKind::Norm(p) => norm(&wide, p, &self.dims, local)?,
            MomentKind::Var(correction) => variance(&wide, &self.dims, correction, local, 0)?,
            MomentKind::Std(correction) => variance(&wide, &self.dims, correction, local, 0)?.sqrt()?,
        };
        Ok(smallvec![y.reshape(&reduced_shape(x, &self.dims, self.keep))?.cast(x.dtype())?])
    }

    fn saves(&self, _: &Places) -> Saves {
        match self.kind {
            MomentKind::Var(_) => Saves::inputs(&[0]),
            _ => Saves::inputs(&[0]).and_outputs(&[0]),
        }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let x = at.input(0)?;
        let kept = keep_shape(x.shape(), &self.dims);
        let (dy, y) = (dy.reshape(&kept)?, || at.output(0)?.reshape(&kept));
        let dx = match self.kind {
            MomentKind::LogSumExp => dy.mul(&x.sub(&y()?)?.exp()?)?,
            MomentKind::Norm(p) => norm_gradient(&x, &y()?, &dy, p, &self.dims)?,
            MomentKind::Var(correction) => {
                let freedom = count(x.shape(), &self.dims) as f64 - correction;
                dy.mul_scalar(2.0 / freedom.max(0.0))?.mul(&centered(&x, &self.dims)?)?
            }
            MomentKind::Std(correction) => {
                let freedom = count(x.shape(), &self.dims) as f64 - correction;
                dy.div(&y()?)?.mul_scalar(1.0 / freedom.max(0.0))?.mul(&centered(&x, &self.dims)?)?
            }
        };
        Ok(smallvec![Some(dx)])
    }
}

/// A reduction whose kernel communicates: results are equal on the ranks that cut what is reduced. So many messages
/// are exchanged, each with one value for every row.
fn joint_reduction(input: &Spec, dims: &[usize], outputs: &[Spec], messages: usize) -> Rule {
    let mut rule = Rule::default();
    let factors: Vec<_> = input.shape.iter().map(|&n| Some(rule.free(n))).collect();
    rule.input(&factors);
    exchange(&mut rule, &factors, dims, messages * wide(input.dtype).size());
    for output in outputs {
        let keeps = output.shape.ndim() == input.shape.ndim();
        let kept = |(d, &f): (usize, &Option<usize>)| match dims.contains(&d) {
            true => keeps.then_some(None),
            false => Some(f),
        };
        rule.output(&factors.iter().enumerate().filter_map(kept).collect::<Vec<_>>());
    }
    rule
}

/// Says that a kernel exchanges values of rows, so many bytes for each, when some of these dims is cut.
pub(crate) fn exchange(rule: &mut Rule, factors: &[Option<FactorId>], dims: &[usize], size: usize) {
    let over: Vec<FactorId> = dims.iter().filter_map(|&d| *factors.get(d)?).collect();
    let rows: Vec<FactorId> =
        (0..factors.len()).filter(|d| !dims.contains(d)).filter_map(|d| factors[d]).collect();
    rule.exchange(&over, &rows, size);
}

/// A constant where the array is: without bytes next to one that has none.
pub(crate) fn constant(beside: &Array, value: impl Into<Scalar>, dtype: DType) -> Result<Array> {
    filled(beside, &[], value, dtype)
}

/// One value everywhere, where the array is.
pub(crate) fn filled(
    beside: &Array,
    shape: &[usize],
    value: impl Into<Scalar>,
    dtype: DType,
) -> Result<Array> {
    Ok(Array::full_on(shape, value, dtype, beside.device())?)
}

/// The dtype that narrow floats are computed in.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype.is_float() && dtype.size() < 4 { DType::F32 } else { dtype }
}

fn count(shape: &[usize], dims: &[usize]) -> usize {
    dims.iter().map(|&d| shape[d]).product()
}

fn centered(x: &Tensor, dims: &[usize]) -> Result<Tensor> {
    x.sub(&x.mean(&signed(dims), Keep::Yes)?)
}

/// The extreme over dims that other ranks have parts of, dims kept.
pub(crate) fn extreme(
    x: &Array,
    dims: &[usize],
    local: &Local<'_>,
    input: usize,
    of: Reduce,
) -> Result<Array> {
    let here = match (x.numel() == 0, of) {
        (true, Reduce::Min) => filled(x, &reduced_shape(x, dims, Keep::Yes), highest(x.dtype()), x.dtype())?,
        (true, _) => filled(x, &reduced_shape(x, dims, Keep::Yes), lowest(x.dtype()), x.dtype())?,
        (false, Reduce::Min) => x.amin(&signed(dims), Keep::Yes)?,
        (false, _) => x.amax(&signed(dims), Keep::Yes)?,
    };
    local.reduce_over(input, dims, &here, of)
}

/// The sum over dims that other ranks have parts of, dims kept.
pub(crate) fn total(x: &Array, dims: &[usize], local: &Local<'_>, input: usize) -> Result<Array> {
    local.reduce_over(input, dims, &x.sum(&signed(dims), Keep::Yes)?, Reduce::Sum)
}

/// `ln Σ eˣ` over dims that other ranks have parts of, dims kept.
pub(crate) fn log_sum_exp(x: &Array, dims: &[usize], local: &Local<'_>, input: usize) -> Result<Array> {
    let largest = extreme(x, dims, local, input, Reduce::Max)?;
    // Infinite or NaN: e^x alone already gives the right limit.
    let largest =
        planaria_array::ops::where_(&largest.is_finite()?, &largest, &constant(x, 0.0, x.dtype())?)?;
    Ok(total(&x.sub(&largest)?.exp()?, dims, local, input)?.ln()?.add(&largest)?)
}

/// Squared deviations from the mean over dims that other ranks have parts of, dims kept.
pub(crate) fn variance(
    x: &Array,
    dims: &[usize],
    correction: f64,
    local: &Local<'_>,
    input: usize,
) -> Result<Array> {
    let scalar = |v: f64| constant(x, v, x.dtype());
    let count = count(&local.input_shape(input, x), dims) as f64;
    let mean = total(x, dims, local, input)?.div(&scalar(count)?)?;
    let squares = total(&x.sub(&mean)?.square()?, dims, local, input)?;
    Ok(squares.div(&scalar((count - correction).max(0.0))?)?)
}

fn norm(x: &Array, p: f64, dims: &[usize], local: &Local<'_>) -> Result<Array> {
    if p.is_nan() {
        return Err(Error::Argument { op: "norm", what: "p must be a number, got NaN".to_string() }.into());
    }
    let size = x.abs()?;
    let scalar = |v: f64| constant(x, v, x.dtype());
    if p.is_infinite() {
        return extreme(&size, dims, local, 0, if p > 0.0 { Reduce::Max } else { Reduce::Min });
    }
    if p == 0.0 {
        return total(&x.ne(&scalar(0.0)?)?.cast(x.dtype())?, dims, local, 0);
    }
    if p == 1.0 {
        return total(&size, dims, local, 0);
    }
    if p == 2.0 {
        return Ok(total(&x.square()?, dims, local, 0)?.sqrt()?);
    }
    Ok(total(&size.pow(&scalar(p)?)?, dims, local, 0)?.pow(&scalar(1.0 / p)?)?)
}

/// `dy sign(x) (|x| / y)^(p - 1)`, and its limits.
fn norm_gradient(x: &Tensor, y: &Tensor, dy: &Tensor, p: f64, dims: &[usize]) -> Result<Tensor> {
    if p == 0.0 {
        return x.zeros_like();
    }
    if p == 1.0 {
        return dy.mul(&x.sign()?);
    }
    if p.is_infinite() {
        return share(&x.abs()?, y, dy, dims)?.mul(&x.sign()?);
    }
    let none = y.eq(&y.zero()?)?;
    let safe = y.masked_fill(&none, 1.0)?;
    if p == 2.0 {
        return dy.mul(&x.div(&safe)?);
    }
    let power = Tensor::new(Array::scalar(p - 1.0, x.dtype())?);
    let at_zero = x.eq(&x.zero()?)?;
    // Away from 0 before the power, which may be negative there.
    let ratio = x.abs()?.masked_fill(&at_zero, 1.0)?.div(&safe)?.pow(&power)?;
    dy.mul(&x.sign()?.mul(&ratio)?)
}

impl Tensor {
    fn moment(&self, kind: MomentKind, dims: &[i64], keep: Keep) -> Result<Tensor> {
        let dims = normal_dims("reduction", self.ndim(), dims)?;
        apply1(Moment { kind, dims, keep }, &[self])
    }

    /// `ln Σ eˣ` over dims, without overflow.
    pub fn logsumexp(&self, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.moment(MomentKind::LogSumExp, dims, keep)
    }

    /// The p-norm over dims: p = 0 counts what is not zero, p = ±inf is the largest or smallest `|x|`.
    pub fn norm(&self, p: f64, dims: &[i64], keep: Keep) -> Result<Tensor> {
        self.moment(MomentKind::Norm(p), dims, keep)
    }

    /// Variance over dims, divided by the count less `correction`.
    pub fn var(&self, dims: &[i64], correction: f64, keep: Keep) -> Result<Tensor> {
        self.moment(MomentKind::Var(correction), dims, keep)
    }

    /// Standard deviation over dims: the root of [`Tensor::var`].
    pub fn std(&self, dims: &[i64], correction: f64, keep: Keep) -> Result<Tensor> {
        self.moment(MomentKind::Std(correction), dims, keep)
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let kind = match name {
        "logsumexp" => MomentKind::LogSumExp,
        "p_norm" => MomentKind::Norm(at.real("porder")?),
        "var" => MomentKind::Var(at.real("correction")?),
        "std" => MomentKind::Std(at.real("correction")?),
        _ => return None,
    };
    found(Moment { kind, dims: at.sizes("axis")?, keep: keep(at)? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let mut shape = draw.shape_of(1, 3);
    let dims = some_dims(draw, shape.len());
    let keep = draw.pick(&[Keep::Yes, Keep::No]);
    let kind = match draw.below(5) {
        0 => MomentKind::LogSumExp,
        1 | 2 => MomentKind::Norm(draw.pick(&[0.0, 1.0, 2.0, 3.0, 2.5, f64::INFINITY, f64::NEG_INFINITY])),
        3 => MomentKind::Var(draw.pick(&[0.0, 1.0])),
        _ => MomentKind::Std(draw.pick(&[0.0, 1.0])),
    };
    if matches!(kind, MomentKind::Var(_) | MomentKind::Std(_)) {
        shape[dims[0]] = shape[dims[0]].max(3);
    }
    let x = match kind {
        MomentKind::Norm(p) if p.is_infinite() => draw.distinct(&shape)?,
        MomentKind::Norm(_) => draw.between(0.3, 1.5, &shape)?.mul(&draw.normal(&shape)?.sign()?)?,
        _ => draw.normal(&shape)?,
    };
    Ok(Sample::new(Moment { kind, dims, keep }, [x]))
}
