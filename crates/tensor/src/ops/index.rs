//! Advanced indexing: reads and writes at the positions that index tensors name.

use crate::attributes::Attributes;
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::in_place::{Onto, zeros_for};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::ops::window::{Located, Window, joined, outside_of};
use crate::tensor::Tensor;
use planaria_array::ops::{self, Put};
use planaria_array::{Array, DType, Device, Error, Index, Shape, broadcast_shapes};
use planaria_layout::rule::{Cuts, FactorId, FactorKind, LINEAR, Rule};
use planaria_layout::{Dims, Reduce};
use smallvec::{SmallVec, smallvec};

/// `x[indices]`: input 0 read at the positions that the other inputs name, each along its dim (a mask along as many
/// as it has). The dims of the index tensors, broadcast together, stand where the indexed dims stood, or in front
/// when those do not lie side by side.
#[derive(Debug, Clone)]
pub(crate) struct Take {
    pub(crate) starts: Dims,
}

/// The dims in front of and behind the place where the index tensors' dims go.
struct Around {
    outer: Dims,
    inner: Dims,
}

impl Around {
    /// `covered` are the first dim and the number of dims of each index tensor.
    fn new(ndim: usize, covered: impl Iterator<Item = (usize, usize)>) -> Around {
        let mut taken: SmallVec<[bool; 8]> = SmallVec::from_elem(false, ndim);
        let (mut adjacent, mut next) = (true, None);
        for (start, span) in covered {
            adjacent &= next.is_none_or(|n| n == start);
            taken[start..start + span].fill(true);
            next = Some(start + span);
        }
        let first = if adjacent { taken.iter().position(|&t| t).unwrap_or(0) } else { 0 };
        let free = |range: std::ops::Range<usize>| range.filter(|&d| !taken[d]).collect();
        Around { outer: free(0..first), inner: free(first..ndim) }
    }

    fn extents(&self, x: &[usize], picks: &[usize]) -> Dims {
        let outer = self.outer.iter().map(|&d| x[d]);
        outer.chain(picks.iter().copied()).chain(self.inner.iter().map(|&d| x[d])).collect()
    }
}

/// The shape of index tensors broadcast together.
fn picks<'a>(shapes: impl Iterator<Item = &'a Shape>) -> Result<Shape> {
    let join = |all: Shape, shape: &Shape| {
        broadcast_shapes("index", &all, shape)
            .map_err(|_| Error::IndexBroadcast { lhs: all, rhs: shape.clone() })
    };
    Ok(shapes.into_iter().try_fold(Shape::default(), join)?)
}

/// An index tensor or a whole dim for each dim.
fn by_dim(ndim: usize, starts: &[usize], index: &[Array]) -> Vec<Option<Array>> {
    let mut list = Vec::with_capacity(ndim);
    let mut dim = 0;
    for (&start, array) in starts.iter().zip(index) {
        list.extend((dim..start).map(|_| None));
        dim = start + span(array);
        list.push(Some(array.clone()));
    }
    list
}

/// Dims that an index array covers.
fn span(index: &Array) -> usize {
    if index.dtype() == DType::Bool { index.ndim() } else { 1 }
}

fn read(x: &Array, starts: &[usize], index: &[Array]) -> Result<Array> {
    let list = by_dim(x.ndim(), starts, index);
    if index.iter().all(|a| a.ndim() > 0) && !index.is_empty() {
        let entry = |one: Option<Array>| one.map_or_else(Index::all, Index::from);
        return Ok(x.get(&list.into_iter().map(entry).collect::<Vec<_>>())?);
    }
    // In `x[...]` an index without dims selects first; here it stands beside the others.
    let around = around(x.ndim(), starts, index);
    let shape = around.extents(x.shape(), &picks(index.iter().map(Array::shape))?);
    if x.is_meta() {
        return Ok(Array::meta(&shape, x.dtype())?);
    }
    Ok(ops::index_put_value_grad(x, &list, &shape)?)
}

fn around(ndim: usize, starts: &[usize], index: &[Array]) -> Around {
    Around::new(ndim, starts.iter().copied().zip(index.iter().map(span)))
}

/// The windows of the indexed dims, when some of them are cut.
fn windows(local: &Local<'_>, x: &Array, starts: &[usize]) -> Result<Option<Vec<Window>>> {
    if matches!(local, Local::Whole) || x.is_meta() {
        return Ok(None);
    }
    let windows = starts.iter().map(|&d| Window::of(local, 0, x, d)).collect::<Result<Vec<_>>>()?;
    Ok(windows.iter().any(Window::is_cut).then_some(windows))
}

/// Positions in this rank's windows, and which of the broadcast positions lie in all of them.
fn located(windows: &[Window], starts: &[usize], index: &[Array]) -> Result<(Vec<Array>, Array)> {
    let all = picks(index.iter().map(Array::shape))?;
    let device = index.first().map_or(Device::Cpu, Array::device);
    let mut inside = Array::full_on(&all, true, DType::Bool, device)?;
    let mut here = Vec::with_capacity(index.len());
    for (position, (window, array)) in windows.iter().zip(index).enumerate() {
        let (dim, size) = (starts[position], window.size);
        let found = window.locate(array, |index| Error::IndexOutOfRange { index, position, dim, size })?;
        let Located { here: at, inside: fits } = found;
        inside = inside.logical_and(&fits)?;
        here.push(at);
    }
    Ok((here, inside))
}

/// Factors of an indexed tensor: those of its untouched dims, those of its indexed dims by `indexed`, those of the
/// broadcast positions by `picked`; and the positions' dims of each index tensor.
struct Factors {
    x: Vec<Option<FactorId>>,
    index: Vec<Vec<Option<FactorId>>>,
    result: Vec<Option<FactorId>>,
    picks: Vec<Option<FactorId>>,
}

fn factors(
    rule: &mut Rule,
    starts: &[usize],
    x: &Spec,
    index: &[Spec],
    indexed: FactorKind,
    picked: impl Fn(&mut Rule, usize) -> Option<FactorId>,
) -> Result<Factors> {
    let all = picks(index.iter().map(|spec| &spec.shape))?;
    let around = Around::new(x.shape.ndim(), starts.iter().map(|&start| (start, 1)));
    let dims: Vec<Option<FactorId>> = (0..x.shape.ndim())
        .map(|d| {
            let kind =
                if starts.contains(&d) { (indexed, Cuts::Windows) } else { (FactorKind::Free, Cuts::Any) };
            Some(rule.factor(x.shape[d], kind.0, kind.1))
        })
        .collect();
    let picks: Vec<Option<FactorId>> = all.iter().map(|&size| picked(rule, size)).collect();
    let of_index = |spec: &Spec| {
        let skip = all.ndim() - spec.shape.ndim();
        let dim = |(d, &size): (usize, &usize)| if size == all[skip + d] { picks[skip + d] } else { None };
        spec.shape.iter().enumerate().map(dim).collect()
    };
    let index = index.iter().map(of_index).collect();
    let outer = around.outer.iter().map(|&d| dims[d]);
    let result = outer.chain(picks.iter().copied()).chain(around.inner.iter().map(|&d| dims[d])).collect();
    Ok(Factors { index, result, picks, x: dims })
}

impl Op for Take {
    fn name(&self) -> &'static str {
        "index"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new().with("dims", self.starts.as_slice())
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let join = FactorKind::Reduce(joined(inputs[0].dtype));
        let free = |rule: &mut Rule, size| Some(rule.free(size));
        let factors = factors(&mut rule, &self.starts, &inputs[0], &inputs[1..], join, free)?;
        rule.input(&factors.x);
        factors.index.iter().for_each(|dims| rule.input(dims));
        rule.output(&factors.result);
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, index) = (inputs[0], owned(&inputs[1..]));
        let Some(windows) = windows(local, x, &self.starts)? else {
            return Ok(smallvec![read(x, &self.starts, &index)?]);
        };
        let (here, inside) = located(&windows, &self.starts, &index)?;
        let around = around(x.ndim(), &self.starts, &index);
        if windows.iter().any(|w| w.len == 0) {
            return Ok(smallvec![Array::zeros_on(
                &around.extents(x.shape(), inside.shape()),
                x.dtype(),
                x.device()
            )?]);
        }
        let here = windows.iter().zip(&here).map(|(w, at)| w.clamped(at)).collect::<Result<Vec<_>>>()?;
        let out = read(x, &self.starts, &here)?;
        let mut shape = inside.shape().to_vec();
        shape.extend(around.inner.iter().map(|_| 1));
        Ok(smallvec![out.masked_fill(&outside_of(&inside)?.reshape(&shape)?, 0.0)?])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::inputs(&(1..=self.starts.len()).collect::<Vec<_>>())
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let mut all: Grads = (0..at.inputs()).map(|_| None).collect();
        let Some(dy) = &grads[0] else { return Ok(all) };
        let index = (1..at.inputs()).map(|i| at.input(i)).collect::<Result<Vec<_>>>()?;
        // A mask names each element once.
        let is_mask = matches!(&index[..], [one] if one.dtype() == DType::Bool);
        let put = if is_mask { Put::Replace } else { Put::Accumulate };
        let op = IndexPut { starts: self.starts.clone(), put, onto: Onto::Zeros, is_void: false };
        all[0] = Some(op.apply(&zeros_for(at, 0)?, dy, &index)?);
        Ok(all)
    }
}

fn owned(arrays: &[&Array]) -> Vec<Array> {
    arrays.iter().map(|&a| a.clone()).collect()
}

/// Input 0 with input 1, broadcast, written or added at the positions that the other inputs name.
#[derive(Debug, Clone)]
pub(crate) struct IndexPut {
    pub(crate) starts: Dims,
    pub(crate) put: Put,
    pub(crate) onto: Onto,
    /// A mask without dims is false: nothing is written.
    pub(crate) is_void: bool,
}

impl IndexPut {
    pub(crate) fn apply(self, x: &Tensor, value: &Tensor, index: &[Tensor]) -> Result<Tensor> {
        let mut inputs = vec![x, value];
        inputs.extend(index);
        apply1(self, &inputs)
    }

    fn accumulates(&self) -> bool {
        self.put == Put::Accumulate
    }

    /// The positions in this rank's windows with their values, in the same order.
    fn filtered(
        &self,
        windows: &[Window],
        x: &Array,
        value: &Array,
        index: &[Array],
    ) -> Result<(Vec<Array>, Array)> {
        let (here, inside) = located(windows, &self.starts, index)?;
        let around = around(x.ndim(), &self.starts, index);
        let wide = value.broadcast_to(&around.extents(x.shape(), inside.shape()))?;
        let mut kept = vec![Index::all(); around.outer.len()];
        kept.push(Index::Mask(inside.clone()));
        let pick = |at: &Array| at.broadcast_to(inside.shape())?.masked_select(&inside);
        let here = here.iter().map(pick).collect::<planaria_array::Result<Vec<_>>>()?;
        Ok((here, wide.get(&kept)?))
    }
}

impl Op for IndexPut {
    fn name(&self) -> &'static str {
        "index_put"
    }

    fn attributes(&self) -> Attributes {
        Attributes::new()
            .with("dims", self.starts.as_slice())
            .with("accumulate", self.accumulates())
            .with("onto", self.onto.name())
            .with("void", self.is_void)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let summed = |rule: &mut Rule, size| self.accumulates().then(|| rule.reduced(size, Reduce::Sum));
        let factors = factors(&mut rule, &self.starts, &inputs[0], &inputs[2..], FactorKind::Free, summed)?;
        let value = &inputs[1].shape;
        let extra = factors.result.len().saturating_sub(value.ndim());
        let whole = picks(inputs[2..].iter().map(|spec| &spec.shape))?;
        let around = Around::new(inputs[0].shape.ndim(), self.starts.iter().map(|&start| (start, 1)));
        let extents = around.extents(&inputs[0].shape, &whole);
        let dim = |d: usize| if value[d] == extents[extra + d] { factors.result[extra + d] } else { None };
        rule.input(&factors.x);
        rule.input(&(0..value.ndim().min(extents.len())).map(dim).collect::<Vec<_>>());
        factors.index.iter().for_each(|dims| rule.input(dims));
        rule.output(&factors.x);
        if self.onto == Onto::Zeros {
            rule.pass(&[1], LINEAR);
        } else if self.accumulates() {
            factors.picks.iter().flatten().for_each(|&factor| rule.count_once(factor, 0));
        }
        rule.pass(&[0, 1], if self.accumulates() { LINEAR } else { &Reduce::EVERY });
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let (x, value, index) = (inputs[0], inputs[1], owned(&inputs[2..]));
        if self.is_void {
            let all = picks(index.iter().map(Array::shape))?;
            value.broadcast_to(&around(x.ndim(), &self.starts, &index).extents(x.shape(), &all))?;
            return Ok(smallvec![self.onto.of(x)?]);
        }
        let windows = windows(local, x, &self.starts)?;
        let (index, value) = match &windows {
            None => (index, value.clone()),
            Some(windows) => self.filtered(windows, x, value, &index)?,
        };
        let out = self.onto.of(x)?;
        out.index_put_assign(&by_dim(x.ndim(), &self.starts, &index), &value, self.put)?;
        Ok(smallvec![out])
    }

    fn saves(&self, needs: &Places) -> Saves {
        if self.is_void || self.accumulates() && !needs.has(1) {
            return Saves::nothing();
        }
        Saves::inputs(&(2..2 + self.starts.len()).collect::<Vec<_>>())
    }

    /// Of several writes to one element each gets the whole gradient.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let mut all: Grads = (0..at.inputs()).map(|_| None).collect();
        let Some(dy) = &grads[0] else { return Ok(all) };
        if self.is_void {
            all[0] = Some(dy.clone());
            all[1] = Some(at.input_zeros(1)?);
            return Ok(all);
        }
        let index = || (2..at.inputs()).map(|i| at.input(i)).collect::<Result<Vec<_>>>();
        if at.needs(0) {
            let op = IndexPut { onto: Onto::Copy, ..self.clone() };
            all[0] =
                Some(if self.accumulates() { dy.clone() } else { op.apply(dy, &dy.zero()?, &index()?)? });
        }
        if at.needs(1) {
            let index = index()?;
            let mut inputs = vec![dy];
            inputs.extend(&index);
            let read = apply1(Take { starts: self.starts.clone() }, &inputs)?;
            all[1] = Some(read.sum_to(&at.input_spec(1).shape)?);
        }
        Ok(all)
    }
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    match name {
        "index" => found(Take { starts: at.sizes("dims")? }),
        "index_put" => found(IndexPut {
            starts: at.sizes("dims")?,
            put: if at.truth("accumulate")? { Put::Accumulate } else { Put::Replace },
            onto: Onto::of_name(at.text("onto")?)?,
            is_void: at.truth("void")?,
        }),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let mut starts: Dims = (0..shape.len()).filter(|_| draw.coin()).collect();
    if starts.is_empty() {
        starts.push(draw.below(shape.len()));
    }
    let which = draw.below(3);
    // Of two writes to one element the second wins, which has no derivative.
    let first = (which == 2).then(|| draw.positions(shape[starts[0]], 4)).transpose()?;
    let all = first.as_ref().map_or_else(|| draw.shape_of(0, 2), |at| at.shape().to_vec());
    let mut index = Vec::new();
    for (k, &d) in starts.iter().enumerate() {
        let own = if k == 0 { all.clone() } else { draw.broadcastable(&all) };
        let at = draw.integers(2 * shape[d], &own)?;
        index.push(at.sub(&Array::scalar(shape[d] as i64, DType::I64)?)?);
    }
    first.into_iter().for_each(|at| index[0] = at);
    let x = draw.normal(&shape)?;
    if which == 0 {
        return Ok(Sample::new(Take { starts }, [vec![x], index].concat()));
    }
    let covered = starts.iter().map(|&d| (d, 1));
    let extents = Around::new(shape.len(), covered).extents(&shape, &all);
    let value = draw.broadcastable(&extents);
    let put = if which == 1 { Put::Accumulate } else { Put::Replace };
    let op = IndexPut { starts, put, onto: Onto::Copy, is_void: false };
    Ok(Sample::new(op, [vec![x, draw.normal(&value)?], index].concat()))
}
