//! Rules of ops that pick or write elements by index.
//!
//! Index dims and the dims that no index touches may be cut. A dim that is indexed is whole, unless the kernel can
//! work on a window of it and leave out what lies elsewhere.

use super::{Cuts, FactorId, Kind, Rule};
use crate::placement::Reduce;
use crate::shape::Shape;

/// How an indexed dim may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// Not at all.
    Whole,
    /// In windows: the kernel gives zeros for indices outside its own, and the sum of all is the result.
    Windows,
}

/// What becomes of the values that an indexed write meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// They are replaced; the order of writes matters, so indices are whole.
    Replace,
    /// They are added to; ranks may add their own part.
    Add,
}

type Dims = Vec<Option<FactorId>>;

fn free(rule: &mut Rule, extents: &[usize]) -> Dims {
    extents.iter().map(|&n| Some(rule.free(n))).collect()
}

fn summed(rule: &mut Rule, extents: &[usize]) -> Dims {
    extents.iter().map(|&n| Some(rule.reduced(n, Reduce::Sum))).collect()
}

/// `x` at the entries of `index` along `dim`: embedding, index_select. The index dims stand in the place of `dim`.
/// Inputs: `x`, `index`.
pub fn take(x: &Shape, index: &Shape, dim: usize, rows: Rows) -> Rule {
    let Some(&len) = x.get(dim) else { return Rule::whole(&[x.ndim(), index.ndim()], &[x.ndim()]) };
    let mut rule = Rule::default();
    let picked = free(&mut rule, index);
    let (before, after) = (free(&mut rule, &x[..dim]), free(&mut rule, &x[dim + 1..]));
    let row = match rows {
        Rows::Whole => None,
        Rows::Windows => Some(rule.factor(len, Kind::Reduce(Reduce::Sum), Cuts::Windows)),
    };
    rule.input(&[&before[..], &[row], &after].concat());
    rule.input(&picked);
    rule.output(&[before, picked, after].concat());
    rule
}

/// The gradient of [`take`] for `x`. Inputs: `index`, that of the output.
pub fn take_grad(x: &Shape, index: &Shape, dim: usize) -> Rule {
    if dim >= x.ndim() {
        return Rule::whole(&[x.ndim(), index.ndim()], &[x.ndim()]);
    }
    let mut rule = Rule::default();
    let (before, after) = (free(&mut rule, &x[..dim]), free(&mut rule, &x[dim + 1..]));
    let picked = summed(&mut rule, index);
    rule.input(&picked);
    rule.input(&[&before[..], &picked, &after].concat());
    rule.output(&[&before[..], &[None], &after].concat());
    rule
}

/// The leading dims of an index whose last dim holds coordinates, and how many there are.
fn coordinates(index: &Shape) -> (&[usize], usize) {
    index.split_last().map_or((&[], 0), |(&depth, lead)| (lead, depth))
}

/// `x` at coordinates that stand in the last dim of `index`. Inputs: `x`, `index`.
pub fn gather_nd(x: &Shape, index: &Shape) -> Rule {
    let (lead, depth) = coordinates(index);
    let mut rule = Rule::default();
    let picked = free(&mut rule, lead);
    let tail = free(&mut rule, x.get(depth..).unwrap_or(&[]));
    rule.input(&[&vec![None; x.ndim() - tail.len()][..], &tail].concat());
    rule.input(&[&picked[..], &[None]].concat());
    rule.output(&[picked, tail].concat());
    rule
}

/// The gradient of [`gather_nd`] for `x`. Inputs: that of the output, `index`.
pub fn gather_nd_grad(x: &Shape, index: &Shape) -> Rule {
    let (lead, depth) = coordinates(index);
    let mut rule = Rule::default();
    let picked = summed(&mut rule, lead);
    let tail = free(&mut rule, x.get(depth..).unwrap_or(&[]));
    rule.input(&[&picked[..], &tail].concat());
    rule.input(&[&picked[..], &[None]].concat());
    rule.output(&[&vec![None; x.ndim() - tail.len()][..], &tail].concat());
    rule
}

/// `updates` written into `x` at coordinates of its first `depth` dims. Inputs: `x`, `index`, `updates`.
pub fn scatter(x: &Shape, index: &Shape, updates: &Shape, depth: usize, write: Write) -> Rule {
    let mut rule = Rule::default();
    let tail = free(&mut rule, x.get(depth..).unwrap_or(&[]));
    let head = vec![None; x.ndim() - tail.len()];
    let lead = updates.ndim().saturating_sub(tail.len()).min(index.ndim());
    let picked = match write {
        Write::Add => summed(&mut rule, &index[..lead]),
        Write::Replace => vec![None; lead],
    };
    rule.input(&[&head[..], &tail].concat());
    rule.input(&[&picked[..], &vec![None; index.ndim() - lead]].concat());
    rule.input(&[&picked[..], &tail].concat());
    rule.output(&[&head[..], &tail].concat());
    picked.into_iter().flatten().for_each(|factor| rule.count_once(factor, 0));
    rule
}

/// `value`, broadcast, written into `x` at indices of its first dims, which broadcast together. Inputs: `x`, the
/// indices, `value`.
pub fn index_put(x: &Shape, indices: &[&Shape], value: &Shape, write: Write) -> Rule {
    let mut rule = Rule { asked: 1, ..Rule::default() };
    let depth = indices.len().min(x.ndim());
    let tail = free(&mut rule, &x[depth..]);
    let ndim = indices.iter().map(|index| index.ndim()).max().unwrap_or(0);
    let extent = |dim: usize| indices.iter().filter_map(|s| s.get((dim + s.ndim()).checked_sub(ndim)?)).max();
    let extents: Vec<usize> = (0..ndim).map(|dim| extent(dim).copied().unwrap_or(1)).collect();
    let picked = match write {
        Write::Add => summed(&mut rule, &extents),
        Write::Replace => vec![None; ndim],
    };
    let head = vec![None; depth];
    rule.input(&[&head[..], &tail].concat());
    let all = [&picked[..], &tail].concat();
    let sizes = [&extents[..], &x[depth..]].concat();
    indices.iter().for_each(|index| rule.input(&aligned(index, &extents, &picked)));
    rule.input(&aligned(value, &sizes, &all));
    rule.output(&[&head[..], &tail].concat());
    picked.into_iter().flatten().for_each(|factor| rule.count_once(factor, 0));
    rule
}

/// The factors of a shape that broadcasts to `extents`, counted from the end.
fn aligned(shape: &Shape, extents: &[usize], factors: &[Option<FactorId>]) -> Dims {
    let one = |(dim, &len): (usize, &usize)| {
        let at = (dim + extents.len()).checked_sub(shape.ndim())?;
        factors[at].filter(|_| extents[at] == len)
    };
    shape.iter().enumerate().map(one).collect()
}

/// `x` at `index` along one dim, the other dims side by side: take_along. Inputs: `x`, `index`.
pub fn take_along(x: &Shape, index: &Shape, dim: usize) -> Rule {
    let mut rule = Rule::default();
    let shared = beside(&mut rule, x, index, dim);
    let mut picked = shared.clone();
    if let Some(&len) = index.get(dim) {
        picked[dim] = Some(rule.free(len));
    }
    rule.input(&shared[..x.ndim()]);
    rule.input(&picked[..index.ndim()]);
    rule.output(&picked[..index.ndim()]);
    rule
}

/// The gradient of [`take_along`] for `x`. Inputs: that of the output, `index`.
pub fn take_along_grad(x: &Shape, index: &Shape, dim: usize) -> Rule {
    let mut rule = Rule::default();
    let shared = beside(&mut rule, x, index, dim);
    let mut picked = shared.clone();
    if let Some(&len) = index.get(dim) {
        picked[dim] = Some(rule.reduced(len, Reduce::Sum));
    }
    rule.input(&picked[..index.ndim()]);
    rule.input(&picked[..index.ndim()]);
    rule.output(&shared[..x.ndim()]);
    rule
}

/// The dims but `dim` in which two shapes are alike.
fn beside(rule: &mut Rule, x: &Shape, index: &Shape, dim: usize) -> Dims {
    let ndim = x.ndim().max(index.ndim());
    let one = |d: usize| {
        let len = *x.get(d)?;
        (d != dim && index.get(d) == Some(&len)).then(|| rule.free(len))
    };
    (0..ndim).map(one).collect()
}
