//! Rules of convolutions: batch, groups and channels may be cut, space is whole.

use super::{DimFactors, FactorId, Rule};
use crate::placement::Reduce;
use crate::shape::Shape;

/// Which of the three products of a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvPart {
    /// The output, from `x` and the weight.
    Output,
    /// The gradient of `x`, from that of the output and the weight.
    Input,
    /// The gradient of the weight, from `x` and that of the output.
    Weight,
}

/// Where the channels of `x` and of the output stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channels {
    /// Behind the batch.
    First,
    /// At the end.
    Last,
}

/// A convolution of `x` `[n, c, ..]` with a weight `[o, c / groups, ..]`, in any number of spatial dims.
pub fn conv(x: &Shape, weight: &Shape, groups: usize, channels: Channels, part: ConvPart) -> Rule {
    let (ndim, groups) = (x.ndim(), groups.max(1));
    let at = if channels == Channels::First { 1 } else { ndim.saturating_sub(1) };
    let fits =
        ndim > 1 && weight.ndim() == ndim && weight[0].is_multiple_of(groups) && x[at] == weight[1] * groups;
    if !fits {
        return Rule::whole(&[ndim, weight.ndim()], &[ndim]);
    }
    let mut rule = Rule::default();
    let reduced = |part_of: ConvPart| part == part_of;
    let mut add = |size: usize, sums: bool| -> FactorId {
        if sums { rule.reduced(size, Reduce::Sum) } else { rule.free(size) }
    };
    let batch = add(x[0], reduced(ConvPart::Weight));
    let group = (groups > 1).then(|| add(groups, false));
    let taken = add(weight[1], reduced(ConvPart::Output));
    let given = add(weight[0] / groups, reduced(ConvPart::Input));
    let grouped = |factor: FactorId| -> DimFactors { group.into_iter().chain([factor]).collect() };
    let image = |channel: DimFactors| {
        let mut dims = vec![DimFactors::new(); ndim];
        dims[0].push(batch);
        dims[at] = channel;
        dims
    };
    let mut kernel = vec![DimFactors::new(); ndim];
    (kernel[0], kernel[1]) = (grouped(given), DimFactors::from_slice(&[taken]));
    let (x, y) = (image(grouped(taken)), image(grouped(given)));
    (rule.inputs, rule.outputs) = match part {
        ConvPart::Output => (vec![x, kernel], vec![y]),
        ConvPart::Input => (vec![y, kernel], vec![x]),
        ConvPart::Weight => (vec![x, y], vec![kernel]),
    };
    rule
}
