//! Rules of ops that put tensors side by side and take them apart.

use super::{DimFactors, Prefer, Rule};
use crate::shape::Shape;

/// The inputs one after the other along `dim`. Inputs of equal extent may be cut there: the output is then cut in
/// as many sections.
pub fn concat(inputs: &[&Shape], output: &Shape, dim: usize) -> Rule {
    let (mut rule, parts, whole) = joined(inputs, output, dim);
    rule.prefer = Prefer::Cheapest;
    rule.inputs = inputs.iter().map(|_| parts.clone()).collect();
    rule.outputs = vec![whole];
    rule
}

/// The inverse of [`concat()`]: parts of one or more extents along `dim`.
pub fn split(input: &Shape, outputs: &[&Shape], dim: usize) -> Rule {
    let (mut rule, parts, whole) = joined(outputs, input, dim);
    rule.inputs = vec![whole];
    rule.outputs = outputs.iter().map(|_| parts.clone()).collect();
    rule
}

/// The factors of one part and of the whole.
fn joined(parts: &[&Shape], whole: &Shape, dim: usize) -> (Rule, Vec<DimFactors>, Vec<DimFactors>) {
    let mut rule = Rule::default();
    let one = parts.first().and_then(|part| part.get(dim)).copied();
    let alike = parts.iter().all(|part| part.get(dim).copied() == one);
    let (mut of_part, mut of_whole) = (Vec::new(), Vec::new());
    for (d, &len) in whole.iter().enumerate() {
        let mut part = DimFactors::new();
        let mut all = DimFactors::new();
        match one {
            _ if d != dim => part.push(rule.free(len)),
            Some(one) if alike && parts.len() > 1 => {
                all.push(rule.fixed(parts.len()));
                part.push(rule.free(one));
            }
            Some(one) if alike => part.push(rule.free(one)),
            _ => {}
        }
        all.extend_from_slice(&part);
        of_part.push(part);
        of_whole.push(all);
    }
    (rule, of_part, of_whole)
}
