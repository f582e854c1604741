//! Whole slices along one dim: index_select, index_add, index_copy, index_fill.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::in_place::{Onto, write_into, zeros_for};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::ops::window::{Window, joined, outside_of};
use crate::tensor::Tensor;
use planaria_array::{Array, Error, Index, Scalar};
use planaria_layout::Reduce;
use planaria_layout::rule::{Cuts, FactorId, FactorKind, LINEAR, Rule};
use smallvec::smallvec;

/// The slices of input 0 at the positions that input 1 names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexSelect {
    dim: usize,
}

/// One factor per dim of x, the indexed one cut in windows of the given kind.
fn factors(rule: &mut Rule, x: &Spec, dim: usize, indexed: FactorKind) -> Vec<Option<FactorId>> {
    let one = |(d, &size): (usize, &usize)| {
        Some(if d == dim { rule.factor(size, indexed, Cuts::Windows) } else { rule.free(size) })
    };
    x.shape.iter().enumerate().map(one).collect()
}

/// The dims with another factor at one place.
fn with(dims: &[Option<FactorId>], dim: usize, factor: Option<FactorId>) -> Vec<Option<FactorId>> {
    dims.iter().enumerate().map(|(d, &f)| if d == dim { factor } else { f }).collect()
}

fn outside(op: &'static str, dim: usize, size: usize) -> impl Fn(i64) -> Error {
    move |index| Error::PositionOutOfRange { op, index, dim, size }
}

/// The window of the dim, when ranks share it out.
fn window(local: &Local<'_>, x: &Array, dim: usize) -> Result<Option<Window>> {
    if matches!(local, Local::Whole) || x.is_meta() || x.ndim() == 0 {
        return Ok(None);
    }
    Ok(Some(Window::of(local, 0, x, dim)?).filter(Window::is_cut))
}

impl Op for IndexSelect {
    fn name(&self) -> &'static str {
        "index_select"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let x = factors(&mut rule, &inputs[0], self.dim, FactorKind::Reduce(joined(inputs[0].dtype)));
        let count = inputs[1].shape.first().map(|&size| rule.free(size));
        rule.input(&x);
        rule.input(&inputs[1].shape.iter().map(|_| count).collect::<Vec<_>>());
        rule.output(&with(&x, self.dim, count));
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, index) = (inputs[0], inputs[1]);
        let Some(window) = window(local, x, self.dim)? else {
            return Ok(smallvec![x.index_select(self.dim as i64, index)?]);
        };
        let found = window.locate_plain(index, outside("index_select", self.dim, window.size))?;
        if window.len == 0 {
            let mut shape = x.shape().to_vec();
            shape[self.dim] = index.numel();
            return Ok(smallvec![Array::zeros_on(&shape, x.dtype(), x.device())?]);
        }
        let out = x.index_select(self.dim as i64, &window.clamped(&found.here)?)?;
        let mut shape = vec![1; x.ndim() - self.dim];
        shape[0] = index.numel();
        Ok(smallvec![out.masked_fill(&outside_of(&found.inside)?.reshape(&shape)?, 0.0)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&[1])
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let add = IndexWrite { dim: self.dim, kind: Write::Add, onto: Onto::Zeros };
        Ok(smallvec![Some(apply1(add, &[&zeros_for(at, 0)?, &at.input(1)?, dy])?), None])
    }
}

/// What happens to the slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// The source's slices are added.
    Add,
    /// The source's slices replace them.
    Copy,
    /// One value replaces all of their elements.
    Fill,
}

/// Input 0 with the slices at the positions of input 1 changed by input 2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexWrite {
    dim: usize,
    kind: Write,
    onto: Onto,
}

impl Op for IndexWrite {
    fn name(&self) -> &'static str {
        match self.kind {
            Write::Add => "index_add",
            Write::Copy => "index_copy",
            Write::Fill => "index_fill",
        }
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("axis", self.dim).with("onto", self.onto.name())
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let x = factors(&mut rule, &inputs[0], self.dim, FactorKind::Free);
        let count = inputs[1].shape.first().filter(|_| self.kind == Write::Add);
        let count = count.map(|&size| rule.reduced(size, Reduce::Sum));
        rule.input(&x);
        rule.input(&inputs[1].shape.iter().map(|_| count).collect::<Vec<_>>());
        rule.input(&if self.kind == Write::Fill { Vec::new() } else { with(&x, self.dim, count) });
        rule.output(&x);
        match (self.onto, count) {
            (Onto::Zeros, _) => rule.pass(&[2], LINEAR),
            (_, Some(factor)) => rule.count_once(factor, 0),
            _ => {}
        }
        rule.pass(&[0, 2], if self.kind == Write::Add { LINEAR } else { &Reduce::EVERY });
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, mut index, mut value) = (inputs[0], inputs[1].clone(), inputs[2].clone());
        if value.dtype() != x.dtype() {
            return Err(Error::DTypeMismatch { op: self.name(), lhs: x.dtype(), rhs: value.dtype() }.into());
        }
        if let Some(window) = window(local, x, self.dim)? {
            let error = outside(self.name(), self.dim, window.size);
            let found = match self.kind {
                Write::Fill => window.locate(&index, error)?,
                _ => window.locate_plain(&index, error)?,
            };
            let inside = found.inside.reshape(&[index.numel()])?;
            index = found.here.reshape(&[index.numel()])?.masked_select(&inside)?;
            if self.kind != Write::Fill {
                let mut kept = vec![Index::all(); self.dim];
                kept.push(Index::Mask(inside));
                value = value.get(&kept)?;
            }
        }
        let (out, dim) = (self.onto.of(x)?, self.dim as i64);
        match self.kind {
            Write::Add => out.index_add_assign(dim, &index, &value)?,
            Write::Copy => out.index_copy_assign(dim, &index, &value)?,
            Write::Fill if x.is_meta() => out.index_fill_assign(dim, &index, 0.0)?,
            Write::Fill if window_is_empty(x, self.dim, local)? => {}
            Write::Fill => out.index_fill_assign(dim, &index, value.item()?)?,
        }
        Ok(smallvec![out])
    }

    fn saves(&self, needs: &Places) -> Saves {
        if self.kind == Write::Add && !needs.has(2) { Saves::nothing() } else { Saves::inputs(&[1]) }
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None, None]) };
        let before = || match self.kind {
            Write::Add => Ok(dy.clone()),
            _ => apply1(
                IndexWrite { kind: Write::Fill, onto: Onto::Copy, ..*self },
                &[dy, &at.input(1)?, &dy.zero()?],
            ),
        };
        let source = || {
            let spec = at.input_spec(2);
            if dy.numel() == 0 {
                // Nothing was written, whatever the positions say.
                return at.input_zeros(2);
            }
            let dy = if dy.ndim() == 0 { dy.unsqueeze(0)? } else { dy.clone() };
            let index = at.input(1)?.reshape(&[at.input_spec(1).shape.numel()])?;
            let mut kept = vec![crate::Index::all(); self.dim];
            kept.push(crate::Index::Take(index));
            let read = dy.get(&kept)?;
            if self.kind == Write::Fill { read.sum_to(&spec.shape) } else { read.reshape(&spec.shape) }
        };
        Ok(smallvec![at.needs(0).then(before).transpose()?, None, at.needs(2).then(source).transpose()?])
    }
}

/// True when this rank has no position of a dim that others have.
fn window_is_empty(x: &Array, dim: usize, local: &Local<'_>) -> Result<bool> {
    Ok(window(local, x, dim)?.is_some_and(|window| window.len == 0))
}

impl Tensor {
    /// The slices at the given positions of a dim, in their order. Positions must lie in `0..size`.
    pub fn index_select(&self, dim: i64, index: &Tensor) -> Result<Tensor> {
        let dim = normal_dim("index_select", self.ndim(), dim)?;
        apply1(IndexSelect { dim }, &[self, index])
    }

    /// A copy with the slices of `src` added to the slices at the given positions of a dim, in index order.
    pub fn index_add(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.index_written(dim, index, src, Write::Add)
    }

    /// [`Tensor::index_add`] in place.
    pub fn index_add_assign(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<()> {
        self.index_write(dim, index, src, Write::Add)
    }

    /// A copy with the slices at the given positions of a dim replaced by those of `src`.
    pub fn index_copy(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<Tensor> {
        self.index_written(dim, index, src, Write::Copy)
    }

    /// [`Tensor::index_copy`] in place.
    pub fn index_copy_assign(&self, dim: i64, index: &Tensor, src: &Tensor) -> Result<()> {
        self.index_write(dim, index, src, Write::Copy)
    }

    /// A copy with the slices at the given positions of a dim filled with one number; positions may count from the
    /// end.
    pub fn index_fill(&self, dim: i64, index: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        self.index_fill_with(dim, index, &Tensor::new(Array::scalar(value, self.dtype())?))
    }

    /// [`Tensor::index_fill`] with the value in a 0-d tensor.
    pub fn index_fill_with(&self, dim: i64, index: &Tensor, value: &Tensor) -> Result<Tensor> {
        self.index_written(dim, index, value, Write::Fill)
    }

    /// [`Tensor::index_fill`] in place.
    pub fn index_fill_assign(&self, dim: i64, index: &Tensor, value: impl Into<Scalar>) -> Result<()> {
        self.index_write(dim, index, &Tensor::new(Array::scalar(value, self.dtype())?), Write::Fill)
    }

    fn index_written(&self, dim: i64, index: &Tensor, value: &Tensor, kind: Write) -> Result<Tensor> {
        let op = IndexWrite { dim: normal_dim("index", self.ndim(), dim)?, kind, onto: Onto::Copy };
        check_fill(&op, value)?;
        apply1(op, &[self, index, value])
    }

    fn index_write(&self, dim: i64, index: &Tensor, value: &Tensor, kind: Write) -> Result<()> {
        let op = IndexWrite { dim: normal_dim("index", self.ndim(), dim)?, kind, onto: Onto::Copy };
        check_fill(&op, value)?;
        write_into(self, IndexWrite { onto: Onto::Here, ..op }, op, &[self, index, value])
    }
}

/// The value of a fill is one number.
fn check_fill(op: &IndexWrite, value: &Tensor) -> Result<()> {
    if op.kind != Write::Fill || value.ndim() == 0 {
        return Ok(());
    }
    let (lhs, rhs) = (value.shape().clone(), planaria_array::Shape::default());
    Err(Error::ShapeMismatch { op: op.name(), lhs, rhs, reason: "the value must be 0-d" }.into())
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let kind = match name {
        "index_select" => return found(IndexSelect { dim: at.size("axis")? }),
        "index_add" => Write::Add,
        "index_copy" => Write::Copy,
        "index_fill" => Write::Fill,
        _ => return None,
    };
    found(IndexWrite { dim: at.size("axis")?, kind, onto: Onto::of_name(at.text("onto")?)? })
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let dim = draw.below(shape.len());
    let which = draw.below(4);
    let x = draw.normal(&shape)?;
    // Of two writes to one slice the second wins, which has no derivative.
    let index = match which {
        0 | 1 => {
            let count = draw.size();
            draw.integers(shape[dim], &[count])?
        }
        _ => {
            let count = 1 + draw.below(shape[dim]);
            draw.positions(shape[dim], count)?
        }
    };
    let mut source = shape;
    source[dim] = index.numel();
    let write = |kind| IndexWrite { dim, kind, onto: Onto::Copy };
    Ok(match which {
        0 => Sample::new(IndexSelect { dim }, [x, index]),
        1 => Sample::new(write(Write::Add), [x, index, draw.normal(&source)?]),
        2 => Sample::new(write(Write::Copy), [x, index, draw.normal(&source)?]),
        _ => Sample::new(write(Write::Fill), [x, index, draw.normal(&[])?]),
    })
}
