//! Rules of ops that treat the dims of their tensors one by one.

use super::{FactorId, Rule};
use crate::shape::Shape;

/// Every output element comes from one element of each input, broadcast as in numpy.
pub fn elementwise(inputs: &[&Shape], output: &Shape) -> Rule {
    let mut rule = Rule::default();
    let factors: Vec<FactorId> = output.iter().map(|&n| rule.free(n)).collect();
    for input in inputs {
        let skip = output.ndim().saturating_sub(input.ndim());
        let aligned = input.iter().zip(factors[skip..].iter().zip(&output[skip..]));
        let dims: Vec<_> = aligned.map(|(&n, (&f, &m))| (n == m).then_some(f)).collect();
        rule.input(&dims);
    }
    let all: Vec<_> = factors.into_iter().map(Some).collect();
    rule.output(&all);
    rule
}

/// A tensor repeated to a larger shape, as in numpy.
pub fn expand(from: &Shape, to: &Shape) -> Rule {
    elementwise(&[from], to)
}

/// Dims at equal positions belong together; those in `whole`, those whose extents differ and those that not all
/// tensors have are never cut. For ops along dims: softmax, cumsum, sort, topk, roll, flip, pad.
pub fn along(inputs: &[&Shape], outputs: &[&Shape], whole: &[usize]) -> Rule {
    let mut rule = Rule::default();
    let all = || inputs.iter().chain(outputs);
    let longest = all().map(|shape| shape.ndim()).max().unwrap_or(0);
    let factors: Vec<Option<FactorId>> = (0..longest)
        .map(|dim| {
            let len = *all().next()?.get(dim)?;
            let shared = !whole.contains(&dim) && all().all(|shape| shape.get(dim) == Some(&len));
            shared.then(|| rule.free(len))
        })
        .collect();
    inputs.iter().for_each(|shape| rule.input(&factors[..shape.ndim()]));
    outputs.iter().for_each(|shape| rule.output(&factors[..shape.ndim()]));
    rule
}

/// Output dim `d` is the input's dim `order[d]`.
pub fn permute(shape: &Shape, order: &[usize]) -> Rule {
    let dims: Vec<Option<usize>> = order.iter().copied().map(Some).collect();
    select_dims(shape, &dims)
}

/// Output dim `d` is the input's dim `dims[d]` in full, or one that is never cut: a slice, a new dim. Input dims
/// that are not named are whole: those sliced or indexed.
pub fn select_dims(shape: &Shape, dims: &[Option<usize>]) -> Rule {
    let mut rule = Rule::default();
    let mut factors = vec![None; shape.ndim()];
    let mut output = Vec::with_capacity(dims.len());
    for &dim in dims {
        let factor =
            dim.filter(|&d| d < shape.ndim()).map(|d| *factors[d].get_or_insert_with(|| rule.free(shape[d])));
        output.push(factor);
    }
    rule.input(&factors);
    rule.output(&output);
    rule
}

/// Whole copies side by side along some dims, which are never cut, and new dims in front.
pub fn tile(from: &Shape, to: &Shape) -> Rule {
    let skip = to.ndim().saturating_sub(from.ndim());
    let kept = |dim: usize| Some(dim.checked_sub(skip)?).filter(|&d| from[d] == to[dim]);
    let dims: Vec<Option<usize>> = (0..to.ndim()).map(kept).collect();
    select_dims(from, &dims)
}

/// The gradient of [`tile`]: copies are summed.
pub fn tile_grad(from: &Shape, to: &Shape) -> Rule {
    let rule = tile(to, from);
    Rule { inputs: rule.outputs, outputs: rule.inputs, ..rule }
}
