//! Basic indexing: positions, ranges and new dims give a view; writing through them changes part of a tensor.

use crate::attributes::{Attr, Attributes};
use crate::dispatch::apply1;
use crate::error::Result;
use crate::grad::Backward;
use crate::index::{Entries, Entry, range};
use crate::op::{Arrays, Grads, Local, Op, Places, Saves, Spec};
use crate::ops::dims::normal_dim;
use crate::ops::in_place::{Onto, zeros_for};
use crate::ops::named::{Found, found};
use crate::ops::sample::{Draw, Sample};
use crate::ops::window::Window;
use crate::tensor::Tensor;
use planaria_array::{Array, Error, Index};
use planaria_layout::rule::{Cuts, DimFactors, FactorId, FactorKind, LINEAR, Rule};
use planaria_layout::{Reduce, Shape};
use smallvec::smallvec;
use std::sync::Arc;

/// The part of a tensor that plain entries show.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    pub(crate) entries: Entries,
}

fn attributes(entries: &Entries) -> Attributes {
    let mut starts = Vec::with_capacity(entries.len());
    for entry in entries {
        starts.push(match *entry {
            Entry::At(at) => Attr::Int(at as i64),
            Entry::Range { start, len, step } => Attr::from(&[start as i64, len as i64, step as i64][..]),
            Entry::New => Attr::List(Vec::new()),
        });
    }
    Attributes::new().with("index", Attr::List(starts))
}

/// The factors of the source's dims and of the view's: whole ranges are shared, what is picked apart is `other`.
type Dims = Vec<Option<FactorId>>;

fn factors(
    rule: &mut Rule,
    entries: &Entries,
    shape: &Shape,
    other: fn(&mut Rule, usize) -> Option<FactorId>,
) -> (Dims, Dims) {
    let (mut source, mut view) = (Dims::new(), Dims::new());
    for entry in entries {
        let size = || shape[source.len()];
        match entry {
            Entry::New => view.push(None),
            Entry::At(_) => source.push(other(rule, size())),
            Entry::Range { .. } if entry.is_whole(size()) => {
                let factor = Some(rule.free(size()));
                source.push(factor);
                view.push(factor);
            }
            Entry::Range { .. } => {
                source.push(other(rule, size()));
                view.push(None);
            }
        }
    }
    (source, view)
}

/// The step of a range that takes one position of every so many, from the first to the last.
fn regular(entry: Entry, size: usize) -> Option<usize> {
    match entry {
        Entry::Range { start, len, step } => {
            let step = usize::try_from(step).ok()?;
            (step > 1 && start < step && len.checked_mul(step) == Some(size)).then_some(step)
        }
        _ => None,
    }
}

fn piece_of(entry: Entry) -> Index {
    match entry {
        Entry::At(at) => at.into(),
        Entry::New => Index::NewAxis,
        Entry::Range { len: 0, .. } => Index::slice(Some(0), Some(0), None),
        Entry::Range { start, len, step } => {
            // Just past the last position, which may be before the dim.
            let stop = start as isize + (len as isize - 1) * step + step.signum();
            Index::slice(Some(start as i64), (stop >= 0).then_some(stop as i64), Some(step as i64))
        }
    }
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn attributes(&self) -> Attributes {
        attributes(&self.entries)
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let (source, view) = factors(&mut rule, &self.entries, &inputs[0].shape, |_, _| None);
        rule.input(&source);
        rule.output(&view);
        let (mut from, mut to) = (0, 0);
        for entry in &self.entries {
            if let Some(step) = inputs[0].shape.get(from).and_then(|&size| regular(*entry, size)) {
                let kept = rule.free(inputs[0].shape[from] / step);
                let between = rule.fixed(step);
                rule.inputs[0][from] = DimFactors::from_slice(&[kept, between]);
                rule.outputs[0][to] = DimFactors::from_slice(&[kept]);
            }
            from += usize::from(*entry != Entry::New);
            to += usize::from(!matches!(entry, Entry::At(_)));
        }
        rule.pass(&[0], &Reduce::EVERY);
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let global = local.input_shape(0, inputs[0]);
        let mut dim = 0;
        let mut expression = Vec::with_capacity(self.entries.len());
        for &entry in &self.entries {
            let is_whole = entry != Entry::New && entry.is_whole(global[dim]);
            expression.push(match entry {
                _ if is_whole => Index::all(),
                // What is cut there is cut between steps.
                Entry::Range { start, step, .. } if regular(entry, global[dim]).is_some() => {
                    Index::slice(Some(start as i64), None, Some(step as i64))
                }
                _ => piece_of(entry),
            });
            dim += usize::from(entry != Entry::New);
        }
        Ok(smallvec![inputs[0].get(&expression)?])
    }

    fn is_view(&self) -> bool {
        true
    }

    fn put_back(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(SetSlice { entries: self.entries.clone(), onto: Onto::Copy }))
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    /// The gradient lands in zeros, each rank keeping what falls into its window.
    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None]) };
        let put = SetSlice { entries: self.entries.clone(), onto: Onto::Zeros };
        Ok(smallvec![Some(apply1(put, &[&zeros_for(at, 0)?, dy])?)])
    }
}

/// Input 0 with input 1, broadcast, in the part that plain entries show.
#[derive(Debug, Clone)]
pub(crate) struct SetSlice {
    pub(crate) entries: Entries,
    pub(crate) onto: Onto,
}

impl SetSlice {
    /// What of the write falls into this rank's windows: where it goes, and the part of the value; absent when
    /// nothing does.
    fn here(&self, x: &Array, value: &Array, local: &Local<'_>) -> Result<Option<(Vec<Index>, Array)>> {
        let ndim = self.entries.iter().filter(|e| !matches!(e, Entry::At(_))).count();
        let extra = ndim.saturating_sub(value.ndim());
        let (mut dim, mut shown) = (0, 0);
        let (mut expression, mut value) = (Vec::with_capacity(self.entries.len()), value.clone());
        for &entry in &self.entries {
            if entry == Entry::New {
                expression.push(Index::NewAxis);
                shown += 1;
                continue;
            }
            let window = Window::of(local, 0, x, dim)?;
            dim += 1;
            match entry {
                Entry::At(at) if (window.start..window.start + window.len).contains(&at) => {
                    expression.push((at - window.start).into());
                }
                Entry::Range { .. } if entry.is_whole(window.size) => expression.push(Index::all()),
                Entry::Range { start, len, step } => {
                    let (first, count) = overlap(&window, start, len, step);
                    let from = start.saturating_add_signed(first as isize * step);
                    let from = from.saturating_sub(window.start);
                    expression.push(piece_of(Entry::Range { start: from, len: count, step }));
                    if shown >= extra && value.shape()[shown - extra] == len && len > 1 {
                        value = value.narrow((shown - extra) as i64, first, count)?;
                    }
                }
                _ => return Ok(None),
            }
            shown += usize::from(!matches!(entry, Entry::At(_)));
        }
        Ok(Some((expression, value)))
    }
}

/// The part of `start, start + step, ...` inside a window: the number of the first, and how many.
fn overlap(window: &Window, start: usize, len: usize, step: isize) -> (usize, usize) {
    if !window.is_cut() {
        return (0, len);
    }
    let (low, high, stride) = (window.start, window.start + window.len, step.unsigned_abs());
    // Positions that the walk passes before it reaches the window, and before it leaves it.
    let below = |bound: usize| bound.saturating_sub(start).div_ceil(stride).min(len);
    let from = |bound: usize| (start + 1).saturating_sub(bound).div_ceil(stride).min(len);
    let (first, end) = if step > 0 { (below(low), below(high)) } else { (from(high), from(low)) };
    (first, end - first)
}

impl Op for SetSlice {
    fn name(&self) -> &'static str {
        "set_value"
    }

    fn attributes(&self) -> Attributes {
        attributes(&self.entries).with("onto", self.onto.name())
    }

    fn rule(&self, inputs: &[Spec], _: &[Spec]) -> Result<Rule> {
        let mut rule = Rule::default();
        let windows = |rule: &mut Rule, size| Some(rule.factor(size, FactorKind::Free, Cuts::Windows));
        let (source, view) = factors(&mut rule, &self.entries, &inputs[0].shape, windows);
        let value = &inputs[1].shape;
        let extra = view.len().saturating_sub(value.ndim());
        let size_of = |d: usize| view[extra + d].map(|f| rule.factors[f].size);
        let dims: Dims = (0..value.ndim().min(view.len()))
            .map(|d| (size_of(d) == Some(value[d])).then_some(view[extra + d]).flatten())
            .collect();
        rule.input(&source);
        rule.input(&dims);
        rule.output(&source);
        rule.pass(&[0, 1], &Reduce::EVERY);
        if self.onto == Onto::Zeros {
            rule.pass(&[1], LINEAR);
        }
        Ok(rule)
    }

    fn forward(&self, inputs: &[&Array], local: &Local<'_>) -> Result<Arrays> {
        let x = inputs[0];
        if x.dtype() != inputs[1].dtype() {
            return Err(Error::DTypeMismatch { op: "set", lhs: x.dtype(), rhs: inputs[1].dtype() }.into());
        }
        let out = self.onto.of(x)?;
        if let Some((expression, value)) = self.here(x, inputs[1], local)? {
            out.get(&expression)?.copy_from(&value)?;
        }
        Ok(smallvec![out])
    }

    fn saves(&self, _: &Places) -> Saves {
        Saves::nothing()
    }

    fn vjp(&self, at: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Grads> {
        let Some(dy) = &grads[0] else { return Ok(smallvec![None, None]) };
        let zeroed = || apply1(SetSlice { onto: Onto::Copy, ..self.clone() }, &[dy, &dy.zero()?]);
        let shown =
            || apply1(Slice { entries: self.entries.clone() }, &[dy])?.sum_to(&at.input_spec(1).shape);
        Ok(smallvec![at.needs(0).then(zeroed).transpose()?, at.needs(1).then(shown).transpose()?])
    }
}

impl Tensor {
    /// The view that plain entries show.
    pub(crate) fn shown(&self, entries: &Entries) -> Result<Tensor> {
        apply1(Slice { entries: entries.clone() }, &[self])
    }

    /// One dim through an entry, the others whole.
    fn along(
        &self,
        op: &'static str,
        dim: i64,
        entry: impl FnOnce(usize, usize) -> Result<Entry>,
    ) -> Result<Tensor> {
        let d = real_dim(op, self.ndim(), dim)?;
        let mut entries: Entries = self.shape().iter().map(|&size| Entry::whole(size)).collect();
        entries[d] = entry(d, self.shape()[d])?;
        self.shown(&entries)
    }

    /// The elements `start`, `start + step`, ... before `stop` along one dim. Bounds are clamped and may count from
    /// the end, as in Python; a negative step walks backwards.
    pub fn slice(&self, dim: i64, start: Option<i64>, stop: Option<i64>, step: i64) -> Result<Tensor> {
        self.along("slice", dim, |_, size| {
            Ok(range(size, start, stop, step).ok_or(Error::Step { position: 0 })?)
        })
    }

    /// `len` elements along one dim from `start`.
    pub fn narrow(&self, dim: i64, start: usize, len: usize) -> Result<Tensor> {
        self.along("narrow", dim, |d, size| match start.checked_add(len) {
            Some(end) if end <= size => Ok(Entry::part(if len == 0 { 0 } else { start }, len)),
            _ => {
                let what = format!("{len} elements from {start} reach past dim {d} of size {size}");
                Err(Error::Argument { op: "narrow", what }.into())
            }
        })
    }

    /// One position along a dim, which disappears; negative counts from the end.
    pub fn select(&self, dim: i64, index: i64) -> Result<Tensor> {
        self.along("select", dim, |d, size| {
            let at = if index < 0 { index.checked_add_unsigned(size as u64) } else { Some(index) };
            let at = at.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < size);
            Ok(Entry::At(at.ok_or(Error::IndexOutOfRange { index, position: 0, dim: d, size })?))
        })
    }
}

/// A dim of a tensor that has some.
pub(crate) fn real_dim(op: &'static str, ndim: usize, dim: i64) -> Result<usize> {
    if ndim == 0 {
        return Err(Error::DimOutOfRange { op, dim, ndim }.into());
    }
    normal_dim(op, ndim, dim)
}

/// Random entries for a shape.
pub(crate) fn any_entries(draw: &mut Draw, shape: &[usize]) -> Entries {
    let mut entries = Entries::new();
    for &size in shape {
        if draw.below(6) == 0 {
            entries.push(Entry::New);
        }
        let (start, step) = (draw.below(size), 1 + draw.below(3) as i64);
        let step = if draw.coin() { -step } else { step };
        entries.push(match draw.below(4) {
            0 => Entry::At(start),
            1 => range(size, Some(start as i64), None, step).unwrap_or(Entry::whole(size)),
            2 => Entry::part(start, draw.below(size - start + 1)),
            _ => Entry::whole(size),
        });
    }
    entries
}

/// The ops of this file by what they are written down with.
pub(crate) fn build(name: &str, at: &Attributes) -> Found {
    let entries = || {
        let entry = |attr: &Attr| match attr {
            Attr::Int(position) => Some(Entry::At(usize::try_from(*position).ok()?)),
            other => match other.ints()?[..] {
                [] => Some(Entry::New),
                [start, len, step] => Some(Entry::Range {
                    start: usize::try_from(start).ok()?,
                    len: usize::try_from(len).ok()?,
                    step: isize::try_from(step).ok()?,
                }),
                _ => None,
            },
        };
        at.list("index")?.iter().map(entry).collect::<Option<Entries>>()
    };
    match name {
        "slice" => found(Slice { entries: entries()? }),
        "set_value" => found(SetSlice { entries: entries()?, onto: Onto::of_name(at.text("onto")?)? }),
        _ => None,
    }
}

/// Random calls for tests.
pub(crate) fn sample(draw: &mut Draw) -> Result<Sample> {
    let shape = draw.shape_of(1, 3);
    let entries = any_entries(draw, &shape);
    let x = draw.normal(&shape)?;
    if draw.coin() {
        return Ok(Sample::new(Slice { entries }, [x]));
    }
    let view: Vec<Index> = entries.iter().map(|&entry| piece_of(entry)).collect();
    let shown = x.get(&view)?;
    let value = draw.broadcastable(shown.shape());
    Ok(Sample::new(SetSlice { entries, onto: Onto::Copy }, [x, draw.normal(&value)?]))
}
