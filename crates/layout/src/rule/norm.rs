//! Rules of norms: rows are independent, what is normalised is whole.

use super::{FactorId, Rule};
use crate::placement::Reduce;
use crate::shape::Shape;

/// The leading dims are rows, the others whole.
fn of_rows(rows: &[FactorId], shape: &Shape) -> Vec<Option<FactorId>> {
    (0..shape.ndim()).map(|dim| rows.get(dim).copied()).collect()
}

fn rows(rule: &mut Rule, x: &Shape, lead: usize) -> Vec<FactorId> {
    x.iter().take(lead).map(|&n| rule.reduced(n, Reduce::Sum)).collect()
}

/// A norm over all dims but the first `lead`: layer norm, RMS norm, softmax with its statistics. Inputs: `x`, the
/// parameters. Outputs: one like `x`, the statistics of each row.
pub fn norm(x: &Shape, lead: usize, params: &[&Shape], stats: &[&Shape]) -> Rule {
    let mut rule = Rule { asked: 1, ..Rule::default() };
    let rows = rows(&mut rule, x, lead);
    rule.input(&of_rows(&rows, x));
    params.iter().for_each(|param| rule.input(&vec![None; param.ndim()]));
    rule.output(&of_rows(&rows, x));
    stats.iter().for_each(|stat| rule.output(&of_rows(&rows, stat)));
    rule
}

/// The gradient of [`norm`]: those of the parameters are summed over rows. Inputs: `x`, that of the output, the
/// statistics, and the parameters that it needs. Outputs: one like `x`, one for each of `params`.
pub fn norm_grad(x: &Shape, lead: usize, stats: &[&Shape], needed: &[&Shape], params: &[&Shape]) -> Rule {
    let mut rule = Rule { asked: 2 + stats.len(), ..Rule::default() };
    let rows = rows(&mut rule, x, lead);
    rule.input(&of_rows(&rows, x));
    rule.input(&of_rows(&rows, x));
    stats.iter().for_each(|stat| rule.input(&of_rows(&rows, stat)));
    needed.iter().for_each(|param| rule.input(&vec![None; param.ndim()]));
    rule.output(&of_rows(&rows, x));
    params.iter().for_each(|param| rule.output(&vec![None; param.ndim()]));
    rule
}
