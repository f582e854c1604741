//! Gather and scatter along a dim, one position per element.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::index::Entry;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::in_place::{Onto, write_into, zeros_for};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::ops::slice::real_dim;
use crate::ops::window::{Window, joined, outside_of};
use crate::tensor::Tensor;
use planaria_array::ops::{self, OwnValue, ScatterReduce};
use planaria_array::{Array, DType, Error, Scalar, Shape};
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, FactorId, FactorKind, LINEAR, Rule};
use smallvec::smallvec;

/// `out[i][j] = x[i][index[i][j]]` for dim 1, and likewise for other dims.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gather {
    pub(crate) dim: usize,
}

/// The factors of the array and of the index: shared where the sizes agree; windows of the indexed dim.
fn factors(
    rule: &mut Rule,
    (x, index): (&Shape, &Shape),
    dim: usize,
    indexed: FactorKind,
    picked: impl Fn(&mut Rule, usize) -> Option<FactorId>,
) -> (Vec<Option<FactorId>>, Vec<Option<FactorId>>) {
    let (mut of_x, mut of_index) = (Vec::new(), Vec::new());
    for d in 0..x.ndim().max(index.ndim()) {
        let (have, want) = (x.get(d), index.get(d));
        let shared = if d != dim && have == want { have.map(|&size| rule.free(size)) } else { None };
        of_x.extend(
            have.map(|&size| if d == dim { Some(rule.factor(size, indexed, Cuts::Windows)) } else { shared }),
        );
        of_index.extend(want.map(|&size| if d == dim { picked(rule, size) } else { shared }));
    }
    (of_x, of_index)
}

/// The window of the dim, when ranks share it out.
fn window(local: &Local<'_>, x: &Array, dim: usize) -> Result<Option<Window>> {
    if matches!(local, Local::Whole) || x.is_meta() || x.ndim() == 0 {
        return Ok(None);
    }
    Ok(Some(Window::of(local, 0, x, dim)?).filter(Window::is_cut))
}

fn outside(op: &'static str, dim: usize, size: usize) -> impl Fn(i64) -> Error {
    move |index| Error::PositionOutOfRange { op, index, dim, size }
}

impl Op for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let join = FactorKind::Reduce(joined(inputs[0].dtype));
        let shapes = (&inputs[0].shape, &inputs[1].shape);
        let (x, index) = factors(&mut rule, shapes, self.dim, join, |rule, size| Some(rule.free(size)));
        rule.input(&x);
        rule.input(&index);
        rule.output(&index);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, index) = (inputs[0], inputs[1]);
        let Some(window) = window(local, x, self.dim)? else {
            return Ok(smallvec![x.gather(self.dim as i64, index)?]);
        };
        let found = window.locate_plain(index, outside("gather", self.dim, window.size))?;
        if window.len == 0 {
            return Ok(smallvec![Array::zeros_on(index.shape(), x.dtype(), x.device())?]);
        }
        let out = x.gather(self.dim as i64, &window.clamped(&found.here)?)?;
        Ok(smallvec![out.masked_fill(&outside_of(&found.inside)?, 0.0)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let add = Scatter { dim: self.dim, kind: Meet::Add, onto: Onto::Zeros };
        Ok(smallvec![Some(apply1(add, &[&zeros_for(at, 0)?, &at.input(1)?, dy])?), None])
    }
}

/// What becomes of values that meet in one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meet {
    /// The last one stays.
    Replace,
    /// They are added.
    Add,
    /// They are reduced to their product, largest or smallest, the element's own value among them or not.
    Reduce(ScatterReduce, OwnValue),
}

/// Input 0 with input 2 at the positions of input 1, which has its shape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scatter {
    dim: usize,
    kind: Meet,
    onto: Onto,
}

impl Scatter {
    fn run(&self, out: &Array, index: &Array, source: &Array) -> Result<Array> {
        let dim = self.dim as i64;
        match self.kind {
            Meet::Replace => out.scatter_assign(dim, index, source)?,
            Meet::Add => out.scatter_add_assign(dim, index, source)?,
            Meet::Reduce(reduction, own) => {
                let reduced = out.scatter_reduce(dim, index, source, reduction, own)?;
                return if self.onto == Onto::Copy { Ok(reduced) } else { copied(out, &reduced) };
            }
        }
        Ok(out.clone())
    }

    /// Only what falls into the window is written; the rest goes to a place that is thrown away.
    fn run_in(&self, window: &Window, x: &Array, index: &Array, source: &Array) -> Result<Array> {
        let dim = self.dim as i64;
        let found = window.locate_plain(index, outside(self.name(), self.dim, window.size))?;
        let mut one = x.shape().to_vec();
        one[self.dim] = 1;
        let longer = ops::concat(&[x, &Array::full_on(&one, 1, x.dtype(), x.device())?], dim)?;
        let away = Array::scalar(Scalar::Int(window.len as i128), DType::I64)?;
        let index = ops::where_(&found.inside, &found.here, &away)?;
        let run = Scatter { onto: Onto::Here, ..*self };
        let out = run.run(&longer, &index, source)?.narrow(dim, 0, window.len)?;
        if self.onto == Onto::Copy { Ok(out.copy()?) } else { copied(x, &out) }
    }
}

fn copied(to: &Array, from: &Array) -> Result<Array> {
    to.copy_from(from)?;
    Ok(to.clone())
}

impl Op for Scatter {
    fn name(&self) -> &'static str {
        match self.kind {
            Meet::Replace => "scatter",
            Meet::Add => "scatter_add",
            Meet::Reduce(ScatterReduce::Prod, _) => "scatter_prod",
            Meet::Reduce(ScatterReduce::Max, _) => "scatter_max",
            Meet::Reduce(ScatterReduce::Min, _) => "scatter_min",
            Meet::Reduce(ScatterReduce::Sum | ScatterReduce::Mean, _) => "scatter_reduce",
        }
    }

    fn attributes(&self) -> Attributes {
        let includes = matches!(self.kind, Meet::Reduce(_, OwnValue::Include));
        let attributes = Attributes::new().with("axis", self.dim).with("include_self", includes);
        attributes.with("onto", self.onto.name())
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let adds = self.kind == Meet::Add;
        let shapes = (&inputs[0].shape, &inputs[1].shape);
        let summed = |rule: &mut Rule, size| adds.then(|| rule.reduced(size, Reduce::Sum));
        let (x, index) = factors(&mut rule, shapes, self.dim, FactorKind::Free, summed);
        rule.input(&x);
        rule.input(&index);
        rule.input(&index);
        rule.output(&x);
        if self.onto == Onto::Zeros {
            rule.pass(&[2], LINEAR);
        } else if let Some(Some(factor)) = index.get(self.dim).filter(|_| adds) {
            rule.count_once(*factor, 0);
        }
        match self.kind {
            Meet::Add => rule.pass(&[0, 2], LINEAR),
            Meet::Replace => rule.pass(&[0, 2], &Reduce::EVERY),
            Meet::Reduce(..) => {}
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, index, source) = (inputs[0], inputs[1], inputs[2]);
        Ok(smallvec![match window(local, x, self.dim)? {
            Some(window) => self.run_in(&window, x, index, source)?,
            None if matches!(self.kind, Meet::Reduce(..)) => self.run(x, index, source)?,
            None => self.run(&self.onto.of(x)?, index, source)?,
        }])
    }

    fn saves(&self, needs: &Places) -> Saves {
        match self.kind {
            Meet::Add if !needs.has(2) => Saves::nothing(),
            Meet::Reduce(..) => Saves::inputs(&[0, 1, 2]).and_outputs(&[0]),
            _ => Saves::inputs(&[1]),
        }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None, None]) };
        if let Meet::Reduce(reduction, own) = self.kind {
            return self.reduced_vjp(at, dy, reduction, own);
        }
        let dim = self.dim as i64;
        let before = || match self.kind {
            Meet::Add => Ok(dy.clone()),
            _ => dy.scatter_scalar(dim, &at.input(1)?, 0.0),
        };
        let source = || dy.gather(dim, &at.input(1)?);
        Ok(smallvec![at.needs(0).then(before).transpose()?, None, at.needs(2).then(source).transpose()?])
    }
}

impl Scatter {
    /// Max and min share the gradient among those equal to the result; a product gives each factor the product of
    /// the others.
    fn reduced_vjp(
        &self,
        at: &Backward<'_>,
        dy: &Tensor,
        reduction: ScatterReduce,
        own: OwnValue,
    ) -> Result<Grads> {
        let (x, index, src, y) = (at.input(0)?, at.input(1)?, at.input(2)?, at.output(0)?);
        let dim = self.dim as i64;
        // Elements whose own value does not count.
        let replaced = |of_x: Tensor| match own {
            OwnValue::Include => Ok(of_x),
            OwnValue::Exclude => of_x.scatter_scalar(dim, &index, 0.0),
        };
        let dtype = dy.dtype();
        let (dx, dsrc) = if reduction == ScatterReduce::Prod {
            let zero = |t: &Tensor| t.eq(&t.zero()?);
            let (x_zero, src_zero) = (zero(&x)?, zero(&src)?);
            let (x_one, src_one) = (x.masked_fill(&x_zero, 1.0)?, src.masked_fill(&src_zero, 1.0)?);
            let others = x_one.scatter_reduce(dim, &index, &src_one, reduction, own)?;
            let zeros = replaced(x_zero.cast(dtype)?)?.scatter_add(dim, &index, &src_zero.cast(dtype)?)?;
            let one = Tensor::new(Array::scalar(1.0, dtype)?);
            let lone = dy.mul(&others)?.mul(&zeros.eq(&one)?.cast(dtype)?)?;
            let usual = dy.mul(&y)?;
            let dx = x_zero.where_(&lone, &usual.div(&x_one)?)?;
            let of = |t: &Tensor| t.gather(dim, &index);
            (replaced(dx)?, src_zero.where_(&of(&lone)?, &of(&usual)?.div(&src_one)?)?)
        } else {
            let (x_wins, src_wins) = (x.eq(&y)?.cast(dtype)?, src.eq(&y.gather(dim, &index)?)?.cast(dtype)?);
            let x_wins = replaced(x_wins)?;
            let winners = x_wins.scatter_add(dim, &index, &src_wins)?;
            let one = Tensor::new(Array::scalar(1.0, dtype)?);
            let share = dy.div(&winners.maximum(&one)?)?;
            (share.mul(&x_wins)?, share.gather(dim, &index)?.mul(&src_wins)?)
        };
        Ok(smallvec![at.needs(0).then_some(dx), None, at.needs(2).then_some(dsrc)])
    }
}

impl Tensor {
    /// `out[i][j] = x[i][index[i][j]]` for `dim` 1, and likewise for other dims: the result has the index's shape.
    /// Positions must lie in `0..size`.
    pub fn gather(&self, dim: i64, index: &Tensor) -> Result<Tensor> {
        apply1(Gather { dim: normal_dim("gather", self.ndim(), dim)? }, &[self, index])
    }

    /// A copy with `x[i][index[i][j]] = src[i][j]` for `dim` 1, and likewise for other dims. Of several writes to
    /// one element the last wins.
    pub fn scatter(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.scattered(dim, index, src, Meet::Replace)
    }

    /// [`Tensor::scatter`] in place.
    pub fn scatter_assign(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<()> {
        self.scatter_here(dim, index, src, Meet::Replace)
    }

    /// [`Tensor::scatter`] of one number.
    pub fn scatter_scalar(&self, dim: i64, index: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        let value = self.near(&Array::scalar(value, self.dtype())?)?.broadcast_to(index.shape())?;
        self.scattered(dim, index, &value, Meet::Replace)
    }

    /// A copy with `src` added at the positions of [`Tensor::scatter`], in index order.
    pub fn scatter_add(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.scattered(dim, index, src, Meet::Add)
    }

    /// [`Tensor::scatter_add`] in place.
    pub fn scatter_add_assign(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<()> {
        self.scatter_here(dim, index, src, Meet::Add)
    }

    /// A copy in which the values of `src` that meet in one element are reduced, with or without its own value.
    pub fn scatter_reduce(
        &self,
        dim: i64,
        index: &Tensor,
        src: &Tensor,
        reduction: ScatterReduce,
        own: OwnValue,
    ) -> Result<Tensor> {
        let rest = || match own {
            OwnValue::Include => Ok(self.clone()),
            OwnValue::Exclude => self.scatter_scalar(dim, index, 0.0),
        };
        match reduction {
            ScatterReduce::Sum => rest()?.scatter_add(dim, index, src),
            ScatterReduce::Mean if self.dtype().is_float() => {
                let sum = rest()?.scatter_add(dim, index, src)?;
                let (ones, each) = (self.ones_like()?, src.ones_like()?);
                let start = if own == OwnValue::Include {
                    ones.clone()
                } else {
                    ones.scatter_scalar(dim, index, 0.0)?
                };
                sum.div(&start.scatter_add(dim, index, &each)?.maximum(&ones)?)
            }
            _ => self.scattered(dim, index, src, Meet::Reduce(reduction, own)),
        }
    }

    fn scattered(&self, dim: i64, index: &Tensor, src: &Tensor, kind: Meet) -> Result<Tensor> {
        let op = Scatter { dim: normal_dim("scatter", self.ndim(), dim)?, kind, onto: Onto::Copy };
        apply1(op, &[self, index, &covered(op.name(), self, index, src)?])
    }

    fn scatter_here(&self, dim: i64, index: &Tensor, src: &Tensor, kind: Meet) -> Result<()> {
        let op = Scatter { dim: normal_dim("scatter", self.ndim(), dim)?, kind, onto: Onto::Copy };
        let src = covered(op.name(), self, index, src)?;
        write_into(self, Scatter { onto: Onto::Here, ..op }, op, &[self, index, &src])
    }

    /// Elements of a dim chosen by an index with as many dims, both broadcast except along `dim`; positions may
    /// count from the end.
    pub fn take_along_dim(&self, index: &Tensor, dim: i64) -> Result<Tensor> {
        let (x, index, dim) = aligned("take_along_dim", self, index, dim)?;
        x.gather(dim as i64, &index)
    }

    /// Writes `value`, broadcast to the index's shape, at positions along `dim` chosen by an index with as many
    /// dims, which is broadcast except along `dim`; positions may count from the end.
    pub fn put_along_dim(&self, index: &Tensor, value: &Tensor, dim: i64) -> Result<()> {
        let (_, index, dim) = aligned("put_along_dim", self, index, dim)?;
        self.scatter_assign(dim as i64, &index, &value.broadcast_to(index.shape())?)
    }
}

/// The part of `src` that the index covers.
fn covered(op: &'static str, x: &Tensor, index: &Tensor, src: &Tensor) -> Result<Tensor> {
    if src.dtype() != x.dtype() {
        return Err(Error::DTypeMismatch { op, lhs: src.dtype(), rhs: x.dtype() }.into());
    }
    if src.shape() == index.shape() {
        return Ok(src.clone());
    }
    if index.numel() == 0 {
        // Nothing is read, but the source stays connected.
        let part = src.reshape(&[src.numel()])?.narrow(0, 0, 0)?;
        return part.reshape(index.shape());
    }
    let dims = |t: &Tensor| if t.ndim() == 0 { t.reshape(&[1]) } else { Ok(t.clone()) };
    let (lifted, index) = (dims(src)?, dims(index)?);
    let fits =
        lifted.ndim() == index.ndim() && lifted.shape().iter().zip(index.shape().iter()).all(|(s, i)| i <= s);
    if !fits {
        let reason = "the index must not be larger than the source in any dim";
        let (lhs, rhs) = (index.shape().clone(), src.shape().clone());
        return Err(Error::ShapeMismatch { op, lhs, rhs, reason }.into());
    }
    lifted.shown(&index.shape().iter().map(|&size| Entry::part(0, size)).collect())?.reshape(index.shape())
}

/// A tensor and an index broadcast to each other except along `dim`, negative positions resolved.
fn aligned(op: &'static str, x: &Tensor, index: &Tensor, dim: i64) -> Result<(Tensor, Tensor, usize)> {
    let d = real_dim(op, x.ndim(), dim)?;
    let mismatch =
        |reason| Error::ShapeMismatch { op, lhs: x.shape().clone(), rhs: index.shape().clone(), reason };
    if !matches!(index.dtype(), DType::I64 | DType::I32) {
        return Err(Error::DType { op, found: index.dtype(), expected: "i64 or i32 for an index" }.into());
    }
    if x.ndim() != index.ndim() {
        return Err(mismatch("the index needs as many dims as the array").into());
    }
    let common = x.shape().iter().zip(index.shape().iter()).map(|(&a, &b)| if a == 1 { b } else { a });
    let mut shape: Vec<usize> = common.collect();
    let reason = "dims other than the chosen one must be equal or 1";
    shape[d] = x.shape()[d];
    let wide = x.broadcast_to(&shape).map_err(|_| mismatch(reason))?;
    shape[d] = index.shape()[d];
    // Narrow positions stay narrow, and so does what is sent of them, where counting from the end fits into them.
    let index = if i32::try_from(x.shape()[d]).is_ok() { index.clone() } else { index.cast(DType::I64)? };
    let index = index.broadcast_to(&shape).map_err(|_| mismatch(reason))?;
    let size = Scalar::Int(x.shape()[d] as i128);
    let from_end = index.lt(&index.zero()?)?;
    Ok((wide, from_end.where_(&index.add_scalar(size)?, &index)?, d))
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let own =
        |at: &Attributes| Some(if at.truth("include_self")? { OwnValue::Include } else { OwnValue::Exclude });
    let kind = match name {
        "gather" => return found(Gather { dim: at.size("axis")? }),
        "scatter" => Meet::Replace,
        "scatter_add" => Meet::Add,
        "scatter_prod" => Meet::Reduce(ScatterReduce::Prod, own(at)?),
        "scatter_max" => Meet::Reduce(ScatterReduce::Max, own(at)?),
        "scatter_min" => Meet::Reduce(ScatterReduce::Min, own(at)?),
        _ => return None,
    };
    found(Scatter { dim: at.size("axis")?, kind, onto: Onto::of_name(at.text("onto")?)? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let mut part = |&n: &usize| if draw.below(3) == 0 { 1 + draw.below(n) } else { n };
    let mut small: Vec<usize> = shape.iter().map(&mut part).collect();
    let scatter = |kind| Scatter { dim, kind, onto: Onto::Copy };
    if draw.below(4) == 0 {
        // Of two writes to one element the second wins, which has no derivative.
        small[dim] = 1 + draw.below(shape[dim]);
        let mut line = vec![1; shape.len()];
        line[dim] = small[dim];
        let index = draw.positions(shape[dim], small[dim])?.reshape(&line)?.broadcast_to(&small)?.copy()?;
        return Ok(Sample::new(scatter(Meet::Replace), [draw.normal(&shape)?, index, draw.normal(&small)?]));
    }
    small[dim] = draw.size();
    let index = draw.integers(shape[dim], &small)?;
    let kinds = [ScatterReduce::Prod, ScatterReduce::Max, ScatterReduce::Min];
    Ok(match draw.below(3) {
        0 => Sample::new(Gather { dim }, [draw.normal(&shape)?, index]),
        1 => Sample::new(scatter(Meet::Add), [draw.normal(&shape)?, index, draw.normal(&small)?]),
        _ => {
            let own = if draw.coin() { OwnValue::Include } else { OwnValue::Exclude };
            let op = scatter(Meet::Reduce(draw.pick(&kinds), own));
            let (x, src) = (draw.distinct(&shape)?, draw.between(0.5, 1.5, &small)?);
            Sample::new(op, [x, index, src])
        }
    })
}
