//! Rules of ops that treat the dims of their tensors one by one.

use super::{DimFactors, FactorId, Rule};
use crate::placement::Reduce;
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

/// One dim of a [`slice()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    /// The input dim.
    pub dim: usize,
    /// The first index.
    pub start: usize,
    /// How many indices are taken.
    pub len: usize,
    /// From one to the next; negative or 0 keeps the dim whole.
    pub step: i64,
    /// True when the output has the dim.
    pub kept: bool,
}

/// Ranges of dims; dims that are not named are taken in full. A dim may be cut where all of it is taken, or one
/// index of every so many from the first to the last.
pub fn slice(shape: &Shape, ranges: &[Range]) -> Rule {
    let mut rule = Rule::default();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    for (dim, &size) in shape.iter().enumerate() {
        let full = Range { dim, start: 0, len: size, step: 1, kept: true };
        let range = ranges.iter().find(|range| range.dim == dim).unwrap_or(&full);
        let step = usize::try_from(range.step).unwrap_or(0);
        let regular = step > 0 && range.start < step && range.len.checked_mul(step) == Some(size);
        let (mut of_input, mut of_output) = (DimFactors::new(), DimFactors::new());
        if regular && range.kept {
            of_output.push(rule.free(range.len));
            of_input.clone_from(&of_output);
            if step > 1 {
                of_input.push(rule.fixed(step));
            }
        }
        input.push(of_input);
        if range.kept {
            output.push(of_output);
        }
    }
    rule.inputs.push(input);
    rule.outputs.push(output);
    rule
}

/// The gradients of an op that works element by element: sums over the dims along which an input was repeated.
/// Inputs: that of the output, then the values that are needed. Outputs: one for each of `wanted`.
pub fn elementwise_grad(output: &Shape, needed: &[&Shape], wanted: &[&Shape]) -> Rule {
    let inputs: Vec<&Shape> = std::iter::once(output).chain(needed.iter().copied()).collect();
    let mut rule = elementwise(&inputs, output);
    rule.asked = 1;
    rule.outputs.clear();
    for shape in wanted {
        let skip = output.ndim().saturating_sub(shape.ndim());
        let dims: Vec<_> = shape
            .iter()
            .enumerate()
            .map(|(d, &n)| (output.get(skip + d) == Some(&n)).then_some(skip + d))
            .collect();
        rule.output(&dims);
    }
    for factor in 0..rule.factors.len() {
        let everywhere = rule.outputs.iter().all(|dims| dims.iter().any(|d| d.contains(&factor)));
        if !everywhere {
            rule.factors[factor].kind = super::Kind::Reduce(Reduce::Sum);
        }
    }
    rule
}
