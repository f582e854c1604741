//! Running sums, products, extremes and logsumexp along a dim.

use crate::attributes::Attributes;
use crate::dispatch::{apply, apply1};
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::compose;
use crate::ops::dims::normal_dim;
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::ops;
use planaria_array::{Array, DType};
use planaria_layout::rule::{self, LINEAR, Rule};
use smallvec::smallvec;

/// What runs along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanKind {
    Sum,
    /// The sum from the other end, which is the gradient of the first.
    ReverseSum,
    Product,
    LogSumExp,
    Max,
    Min,
}

/// At each place of a dim, what the elements up to it make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scan {
    kind: ScanKind,
    dim: usize,
}

impl Op for Scan {
    fn name(&self) -> &'static str {
        match self.kind {
            ScanKind::Sum => "cumsum",
            ScanKind::ReverseSum => "cumsum_reverse",
            ScanKind::Product => "cumprod",
            ScanKind::LogSumExp => "logcumsumexp",
            ScanKind::Max => "cummax",
            ScanKind::Min => "cummin",
        }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let results: Vec<_> = outputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::along(&[&inputs[0].shape], &results, &[self.dim]);
        if matches!(self.kind, ScanKind::Sum | ScanKind::ReverseSum) {
            rule.pass(&[0], LINEAR);
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let (x, dim) = (inputs[0], self.dim as i64);
        let two = |(values, positions)| smallvec![values, positions];
        Ok(match self.kind {
            ScanKind::Sum => smallvec![x.cumsum(dim)?],
            ScanKind::ReverseSum => smallvec![ops::cumsum_grad(x, dim)?],
            ScanKind::Product => smallvec![x.cumprod(dim)?],
            ScanKind::LogSumExp => smallvec![x.logcumsumexp(dim)?],
            ScanKind::Max => two(x.cummax(dim)?),
            ScanKind::Min => two(x.cummin(dim)?),
        })
    }

    fn saves(&self, _: &Places) -> Saves {
        match self.kind {
            ScanKind::Sum | ScanKind::ReverseSum => Saves::nothing(),
            ScanKind::Product => Saves::inputs(&[0]),
            ScanKind::LogSumExp => Saves::inputs(&[0]).and_outputs(&[0]),
            ScanKind::Max | ScanKind::Min => Saves::outputs(&[1]),
        }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let scan = |kind: ScanKind, x: &Tensor| apply1(Scan { kind, dim: self.dim }, &[x]);
        let dx = match self.kind {
            ScanKind::Sum => scan(ScanKind::ReverseSum, dy)?,
            ScanKind::ReverseSum => scan(ScanKind::Sum, dy)?,
            ScanKind::Product if at.is_differentiable() => {
                return compose::gradient(at, grads, |x| Ok(vec![doubling_product(&x[0], self.dim)?]));
            }
            ScanKind::Product => {
                apply1(ScanGrad { kind: ScanKind::Product, dim: self.dim }, &[dy, &at.input(0)?])?
            }
            ScanKind::LogSumExp if at.is_differentiable() => {
                let back = scan(ScanKind::ReverseSum, &dy.mul(&at.output(0)?.neg()?.exp()?)?)?;
                at.input(0)?.exp()?.mul(&back)?
            }
            ScanKind::LogSumExp => {
                let op = ScanGrad { kind: ScanKind::LogSumExp, dim: self.dim };
                apply1(op, &[dy, &at.input(0)?, &at.output(0)?])?
            }
            ScanKind::Max | ScanKind::Min => match at.input_spec(0).shape.get(self.dim) {
                Some(&size) => dy.added_at(&at.output(1)?, self.dim, size)?,
                None => dy.clone(),
            },
        };
        Ok(smallvec![Some(dx)])
    }
}

/// Running product by doubling steps, so that its gradients hold where elements are 0.
fn doubling_product(x: &Tensor, dim: usize) -> Result<Tensor> {
    let Some(&n) = x.shape().get(dim) else { return Ok(x.clone()) };
    let mut y = x.clone();
    let mut step = 1;
    while step < n {
        let mut shape = vec![1; x.ndim()];
        shape[dim] = n;
        let ones: Vec<f64> = (0..n).map(|i| if i < step { 1.0 } else { 0.0 }).collect();
        let ones = x.near(&Array::from_slice(&ones, &shape)?.cast(x.dtype())?)?;
        let before = y.narrow(dim as i64, 0, n - step)?.surrounded(dim, step, 0)?.add(&ones)?;
        y = y.mul(&before)?;
        step *= 2;
    }
    Ok(y)
}

/// The fused gradients of running products and logsumexp.
#[derive(Debug, Clone, Copy)]
struct ScanGrad {
    kind: ScanKind,
    dim: usize,
}

impl Op for ScanGrad {
    fn name(&self) -> &'static str {
        if self.kind == ScanKind::Product { "cumprod_grad" } else { "logcumsumexp_grad" }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim)
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let shapes: Vec<_> = inputs.iter().map(|spec| &spec.shape).collect();
        let mut rule = rule::along(&shapes, &[&outputs[0].shape], &[self.dim]);
        rule.pass(&[0], LINEAR);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let dim = self.dim as i64;
        Ok(smallvec![match self.kind {
            ScanKind::Product => ops::cumprod_grad(inputs[0], inputs[1], dim)?,
            _ => ops::logcumsumexp_grad(inputs[0], inputs[1], inputs[2], dim)?,
        }])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, _: &Backward<'_>, _: &[Option<Tensor>]) -> Result<Grads> {
        Err(super::fused_only(self.name()))
    }
}

impl Tensor {
    fn scan(&self, kind: ScanKind, dim: i64) -> Result<Tensor> {
        let dim = normal_dim("scan", self.ndim(), dim)?;
        apply1(Scan { kind, dim }, &[self])
    }

    fn scan_extreme(&self, kind: ScanKind, dim: i64) -> Result<(Tensor, Tensor)> {
        let dim = normal_dim("scan", self.ndim(), dim)?;
        let mut found = apply(Scan { kind, dim }, &[self])?.into_iter();
        match (found.next(), found.next()) {
            (Some(values), Some(positions)) => Ok((values, positions)),
            _ => Err(Error::Bug("a running extreme has values and positions")),
        }
    }

    /// Running sum along a dim.
    pub fn cumsum(&self, dim: i64) -> Result<Tensor> {
        self.scan(ScanKind::Sum, dim)
    }

    /// Running product along a dim.
    pub fn cumprod(&self, dim: i64) -> Result<Tensor> {
        self.scan(ScanKind::Product, dim)
    }

    /// Running `ln Σ eˣ` along a dim, without overflow.
    pub fn logcumsumexp(&self, dim: i64) -> Result<Tensor> {
        self.scan(ScanKind::LogSumExp, dim)
    }

    /// Largest element so far along a dim and its position, the last one among equals.
    pub fn cummax(&self, dim: i64) -> Result<(Tensor, Tensor)> {
        self.scan_extreme(ScanKind::Max, dim)
    }

    /// Smallest element so far along a dim and its position, the last one among equals.
    pub fn cummin(&self, dim: i64) -> Result<(Tensor, Tensor)> {
        self.scan_extreme(ScanKind::Min, dim)
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let kind = match name {
        "cumsum" => ScanKind::Sum,
        "cumsum_reverse" => ScanKind::ReverseSum,
        "cumprod" | "cumprod_grad" => ScanKind::Product,
        "logcumsumexp" | "logcumsumexp_grad" => ScanKind::LogSumExp,
        "cummax" => ScanKind::Max,
        "cummin" => ScanKind::Min,
        _ => return None,
    };
    let dim = at.size("axis")?;
    if name.ends_with("_grad") { found(ScanGrad { kind, dim }) } else { found(Scan { kind, dim }) }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let kind = draw.pick(&[
        ScanKind::Sum,
        ScanKind::ReverseSum,
        ScanKind::Product,
        ScanKind::LogSumExp,
        ScanKind::Max,
        ScanKind::Min,
    ]);
    let x = match kind {
        ScanKind::Product if draw.coin() => {
            let zeros = draw.integers(6, &shape)?.cast(DType::Bool)?.cast(DType::F64)?;
            draw.between(0.5, 1.5, &shape)?.mul(&zeros)?
        }
        ScanKind::Product => draw.between(0.5, 1.5, &shape)?,
        ScanKind::Max | ScanKind::Min => draw.distinct(&shape)?,
        _ => draw.normal(&shape)?,
    };
    Ok(Sample::new(Scan { kind, dim }, [x]))
}
