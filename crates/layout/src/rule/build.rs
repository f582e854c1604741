//! The rules of common shapes of ops. None of them lets pending reductions pass; the op says that itself.

use super::{Cuts, DimFactors, FactorId, Kind, Rule};
use crate::placement::Reduce;
use crate::shape::Shape;

/// Inputs broadcast to the output, element by element.
pub fn elementwise(inputs: &[&Shape], output: &Shape) -> Rule {
    let mut rule = Rule::default();
    let factors: Vec<FactorId> = output.iter().map(|&size| rule.free(size)).collect();
    for shape in inputs {
        let skip = output.ndim().saturating_sub(shape.ndim());
        let dim = |(d, &size): (usize, &usize)| (size == output[skip + d]).then(|| factors[skip + d]);
        rule.input(&shape.iter().enumerate().map(dim).collect::<Vec<_>>());
    }
    rule.output(&factors.iter().map(|&f| Some(f)).collect::<Vec<_>>());
    rule
}

/// Dims of the input reduced; in the output they are absent or have one element.
pub fn reduction(input: &Shape, dims: &[usize], output: &Shape, reduce: Reduce) -> Rule {
    let mut rule = Rule::default();
    let keeps = output.ndim() == input.ndim();
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for (dim, &size) in input.iter().enumerate() {
        if dims.contains(&dim) {
            from.push(Some(rule.factor(size, Kind::Reduce(reduce), Cuts::Any)));
            to.extend(keeps.then_some(None));
        } else {
            let factor = Some(rule.free(size));
            from.push(factor);
            to.push(factor);
        }
    }
    rule.input(&from);
    rule.output(&to);
    rule
}

/// Tensors that share their dims by position, counted from the front; dims in `whole`, and those whose sizes
/// differ, are never cut.
pub fn along(inputs: &[&Shape], outputs: &[&Shape], whole: &[usize]) -> Rule {
    let mut rule = Rule::default();
    let all = || inputs.iter().chain(outputs);
    let ndim = all().map(|shape| shape.ndim()).max().unwrap_or(0);
    let mut factors = Vec::with_capacity(ndim);
    for dim in 0..ndim {
        let mut sizes = all().filter_map(|shape| shape.get(dim).copied());
        let size = sizes.next().unwrap_or(1);
        let alike = sizes.all(|other| other == size) && all().all(|shape| dim < shape.ndim());
        factors.push((alike && !whole.contains(&dim)).then(|| rule.free(size)));
    }
    inputs.iter().for_each(|shape| rule.input(&factors[..shape.ndim()]));
    outputs.iter().for_each(|shape| rule.output(&factors[..shape.ndim()]));
    rule
}

/// `x @ y` with NumPy's rules: batches broadcast, a vector on the left is a row, on the right a column.
pub fn matmul(x: &Shape, y: &Shape, output: &Shape) -> Rule {
    let mut rule = Rule::default();
    let rows = usize::from(x.ndim() > 1);
    let columns = usize::from(y.ndim() > 1);
    let nbatch = output.ndim() - rows - columns;
    let batch: Vec<FactorId> = output[..nbatch].iter().map(|&size| rule.free(size)).collect();
    let row = (rows == 1).then(|| rule.free(x[x.ndim() - 2]));
    let column = (columns == 1).then(|| rule.free(y[y.ndim() - 1]));
    let inner = rule.reduced(x[x.ndim() - 1], Reduce::Sum);
    let of_batch = |shape: &Shape| -> Vec<Option<FactorId>> {
        let own = shape.ndim().saturating_sub(2);
        let skip = nbatch - own;
        (0..own).map(|d| (shape[d] == output[skip + d]).then(|| batch[skip + d])).collect()
    };
    let mut left = of_batch(x);
    left.extend(row.map(Some));
    left.push(Some(inner));
    let mut right = of_batch(y);
    right.push(Some(inner));
    right.extend(column.map(Some));
    rule.input(&left);
    rule.input(&right);
    let result = batch.iter().map(|&f| Some(f)).chain(row.map(Some)).chain(column.map(Some));
    rule.output(&result.collect::<Vec<_>>());
    rule
}

/// The same elements in row-major order under another shape: both shapes are written with common factors.
pub fn reshape(from: &Shape, to: &Shape) -> Rule {
    let mut rule = Rule::default();
    let mut dims = (vec![DimFactors::new(); from.ndim()], vec![DimFactors::new(); to.ndim()]);
    if from.numel() > 0 {
        common_factors(from, to, &mut rule, &mut dims);
    }
    rule.inputs.push(dims.0);
    rule.outputs.push(dims.1);
    rule
}

/// Goes through both shapes from the back and cuts off the common part of what is left of the two dims at hand.
fn common_factors(
    from: &Shape,
    to: &Shape,
    rule: &mut Rule,
    (inputs, outputs): &mut (Vec<DimFactors>, Vec<DimFactors>),
) {
    let (mut i, mut j) = (from.ndim(), to.ndim());
    let (mut left, mut right) = (1, 1);
    loop {
        while left == 1 && i > 0 {
            i -= 1;
            left = from[i];
        }
        while right == 1 && j > 0 {
            j -= 1;
            right = to[j];
        }
        if left == 1 && right == 1 {
            return;
        }
        let common = gcd(left, right);
        if common == 1 {
            // No cut of one falls on a cut of the other: these dims stay whole up to their next common boundary.
            inputs[i].clear();
            outputs[j].clear();
            let (mut a, mut b) = (left, right);
            while a != b {
                if a < b {
                    i -= 1;
                    a *= from[i];
                    inputs[i].clear();
                } else {
                    j -= 1;
                    b *= to[j];
                    outputs[j].clear();
                }
            }
            (left, right) = (1, 1);
            continue;
        }
        let factor = rule.free(common);
        inputs[i].insert(0, factor);
        outputs[j].insert(0, factor);
        left /= common;
        right /= common;
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The dims in another order.
pub fn permute(shape: &Shape, order: &[usize]) -> Rule {
    let mut rule = Rule::default();
    let factors: Vec<Option<FactorId>> = shape.iter().map(|&size| Some(rule.free(size))).collect();
    rule.input(&factors);
    rule.output(&order.iter().map(|&d| factors[d]).collect::<Vec<_>>());
    rule
}

/// Dims of one element repeated, and new dims in front; what is repeated is never cut.
pub fn expand(from: &Shape, to: &Shape) -> Rule {
    let mut rule = Rule::default();
    let skip = to.ndim().saturating_sub(from.ndim());
    let kept = |(d, &size): (usize, &usize)| (size == to[skip + d]).then(|| rule.free(size));
    let dims: Vec<Option<FactorId>> = from.iter().enumerate().map(kept).collect();
    rule.input(&dims);
    let front = std::iter::repeat_n(None, skip);
    rule.output(&front.chain(dims.iter().copied()).collect::<Vec<_>>());
    rule
}

/// Inputs side by side along a dim, which is never cut.
pub fn concat(inputs: &[&Shape], output: &Shape, dim: usize) -> Rule {
    along(inputs, &[output], &[dim])
}

/// Parts of the input along a dim, which is never cut.
pub fn split(input: &Shape, outputs: &[&Shape], dim: usize) -> Rule {
    along(&[input], outputs, &[dim])
}

/// Inputs of one shape along a new dim, which is never cut.
pub fn stack(inputs: &[&Shape], output: &Shape, dim: usize) -> Rule {
    let mut rule = Rule::default();
    let factors: Vec<Option<FactorId>> =
        output.iter().enumerate().map(|(d, &size)| (d != dim).then(|| rule.free(size))).collect();
    let kept: Vec<_> = (0..output.ndim()).filter(|&d| d != dim).map(|d| factors[d]).collect();
    inputs.iter().for_each(|_| rule.input(&kept));
    rule.output(&factors);
    rule
}

/// The slices of a dim, which is never cut.
pub fn unbind(input: &Shape, outputs: &[&Shape], dim: usize) -> Rule {
    let stacked = stack(outputs, input, dim);
    Rule { inputs: stacked.outputs, outputs: stacked.inputs, ..stacked }
}
