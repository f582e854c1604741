//! Sorting and selecting along a dim, and the different values of a tensor.

use crate::attributes::Attributes;
use crate::dispatch::apply;
use crate::error::{Error, Result};
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::named::{Found, found, keep};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::Array;
use planaria_array::ops::{Keep, Order, Which};
use planaria_layout::rule::Rule;
use smallvec::smallvec;

/// What is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OrderKind {
    Sort(Order),
    TopK(usize, Which),
    Kth(usize, Keep),
    Median(Keep),
}

/// Values of a dim chosen by their order, and their positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Select {
    kind: OrderKind,
    dim: usize,
}

impl Op for Select {
    fn name(&self) -> &'static str {
        match self.kind {
            OrderKind::Sort(_) => "sort",
            OrderKind::TopK(..) => "topk",
            OrderKind::Kth(..) => "kthvalue",
            OrderKind::Median(_) => "median",
        }
    }

    fn attributes(&self) -> Attributes {
        let at = Attributes::new().with("axis", self.dim);
        match self.kind {
            OrderKind::Sort(order) => at.with("descending", order == Order::Descending),
            OrderKind::TopK(k, which) => at.with("k", k).with("largest", which == Which::Largest),
            OrderKind::Kth(k, keep) => at.with("k", k).with("keepdim", keep == Keep::Yes),
            OrderKind::Median(keep) => at.with("keepdim", keep == Keep::Yes),
        }
    }

    fn rule(&self, inputs: &[Spec], outputs: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let shape = &inputs[0].shape;
        let factor = |(d, &n): (usize, &usize)| (d != self.dim).then(|| rule.free(n));
        let mut dims: Vec<_> = shape.iter().enumerate().map(factor).collect();
        rule.input(&dims);
        if outputs[0].shape.ndim() < shape.ndim() {
            dims.remove(self.dim);
        }
        outputs.iter().for_each(|_| rule.output(&dims));
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let (x, dim) = (inputs[0], self.dim as i64);
        let (values, positions) = match self.kind {
            OrderKind::Sort(order) => x.sort(dim, order)?,
            OrderKind::TopK(k, which) => x.topk(k, dim, which)?,
            OrderKind::Kth(k, keep) => x.kthvalue(k, dim, keep)?,
            OrderKind::Median(keep) => x.median(dim, keep)?,
        };
        Ok(smallvec![values, positions])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::outputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let (shape, positions) = (&at.input_spec(0).shape, at.output(1)?);
        let Some(&size) = shape.get(self.dim) else { return Ok(smallvec![Some(dy.reshape(shape)?)]) };
        let mut kept = shape.to_vec();
        kept[self.dim] = match self.kind {
            OrderKind::Sort(_) => size,
            OrderKind::TopK(k, _) => k,
            OrderKind::Kth(..) | OrderKind::Median(_) => 1,
        };
        let dx = dy.reshape(&kept)?.added_at(&positions.reshape(&kept)?, self.dim, size)?;
        Ok(smallvec![Some(dx)])
    }
}

/// The different values, where each element went, and how often each occurs. The shapes follow from the values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UniqueOp;

impl Op for UniqueOp {
    fn name(&self) -> &'static str {
        "unique"
    }

    fn rule(&self, _: &[Spec], _: &[Spec]) -> Result<Rule> {
        Err(Error::Bug("an op whose shapes follow values has no rule"))
    }

    fn shapes_follow_values(&self) -> bool {
        true
    }

    fn forward(&self, inputs: &[&Array], _: &Local<'_>) -> Result<Arrays> {
        let found = inputs[0].unique()?;
        Ok([found.values, found.inverse, found.counts].into_iter().collect())
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::outputs(&[1, 2])
    }

    /// Equal elements share the gradient of their value.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let shape = &at.input_spec(0).shape;
        let shares = dy.div(&at.output(2)?.cast(dy.dtype())?)?;
        let inverse = at.output(1)?.reshape(&[shape.numel()])?;
        Ok(smallvec![Some(shares.gather(0, &inverse)?.reshape(shape)?)])
    }
}

/// What [`Tensor::unique`] finds.
#[derive(Clone, Debug)]
pub struct Unique {
    /// The values in ascending order.
    pub values: Tensor,
    /// For each element of the input, in its shape, the position of its value.
    pub inverse: Tensor,
    /// How often each value occurs.
    pub counts: Tensor,
}

impl Tensor {
    fn selected(&self, kind: OrderKind, dim: i64) -> Result<(Tensor, Tensor)> {
        let dim = normal_dim("sort", self.ndim(), dim)?;
        let mut found = apply(Select { kind, dim }, &[self])?.into_iter();
        match (found.next(), found.next()) {
            (Some(values), Some(positions)) => Ok((values, positions)),
            _ => Err(Error::Bug("a selection has values and positions")),
        }
    }

    /// Sorts along a dim; equal elements keep their order: (values, positions).
    pub fn sort(&self, dim: i64, order: Order) -> Result<(Tensor, Tensor)> {
        self.selected(OrderKind::Sort(order), dim)
    }

    /// The positions that sort a dim.
    pub fn argsort(&self, dim: i64, order: Order) -> Result<Tensor> {
        Ok(self.detach().selected(OrderKind::Sort(order), dim)?.1)
    }

    /// The `k` largest or smallest elements of a dim, best first: (values, positions).
    pub fn topk(&self, k: usize, dim: i64, which: Which) -> Result<(Tensor, Tensor)> {
        self.selected(OrderKind::TopK(k, which), dim)
    }

    /// The `k`-th smallest element of a dim, counted from 1: (values, positions).
    pub fn kthvalue(&self, k: usize, dim: i64, keep: Keep) -> Result<(Tensor, Tensor)> {
        self.selected(OrderKind::Kth(k, keep), dim)
    }

    /// The median of a dim, the lower one of two: (values, positions).
    pub fn median(&self, dim: i64, keep: Keep) -> Result<(Tensor, Tensor)> {
        self.selected(OrderKind::Median(keep), dim)
    }

    /// The different values of all elements in ascending order. Elements are gathered first, because the shape of
    /// the result follows from them.
    pub fn unique(&self) -> Result<Unique> {
        let mut found = apply(UniqueOp, &[self])?.into_iter();
        match (found.next(), found.next(), found.next()) {
            (Some(values), Some(inverse), Some(counts)) => Ok(Unique { values, inverse, counts }),
            _ => Err(Error::Bug("unique has values, an inverse and counts")),
        }
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let largest = |at: &Attributes| Some(if at.truth("largest")? { Which::Largest } else { Which::Smallest });
    let order =
        |at: &Attributes| Some(if at.truth("descending")? { Order::Descending } else { Order::Ascending });
    let kind = match name {
        "sort" => OrderKind::Sort(order(at)?),
        "topk" => OrderKind::TopK(at.size("k")?, largest(at)?),
        "kthvalue" => OrderKind::Kth(at.size("k")?, keep(at)?),
        "median" => OrderKind::Median(keep(at)?),
        "unique" => return found(UniqueOp),
        _ => return None,
    };
    found(Select { kind, dim: at.size("axis")? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let keep = draw.pick(&[Keep::Yes, Keep::No]);
    let kind = match draw.below(5) {
        0 => OrderKind::Sort(draw.pick(&[Order::Ascending, Order::Descending])),
        1 => OrderKind::TopK(1 + draw.below(shape[dim]), draw.pick(&[Which::Largest, Which::Smallest])),
        2 => OrderKind::Kth(1 + draw.below(shape[dim]), keep),
        3 => OrderKind::Median(keep),
        _ => return Ok(Sample::new(UniqueOp, [draw.distinct(&shape)?])),
    };
    Ok(Sample::new(Select { kind, dim }, [draw.distinct(&shape)?]))
}
