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
    let mut rule = Rule::default();
    let factors: Vec<Option<FactorId>> = shape.iter().map(|&n| Some(rule.free(n))).collect();
    rule.input(&factors);
    rule.output(&order.iter().map(|&dim| factors.get(dim).copied().flatten()).collect::<Vec<_>>());
    rule
}
