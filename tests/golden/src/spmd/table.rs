//! Which op of ours answers for an op of the reference.

use super::bench::Bench;
use super::call::Call;
use super::{contract, fused, index, norm, pointwise, reduce, shape};
use anyhow::Result;
use planaria_layout::Layout;
use planaria_layout::rule::Rule;

/// The outputs in the reference's order; absent where we have none to compare.
pub(super) type Outputs = Vec<Option<Layout>>;

/// Runs the op that a call names.
pub(super) fn run(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let families =
        [pointwise::run, reduce::run, contract::run, shape::run, index::run, norm::run, fused::run];
    for family in families {
        if let Some(outputs) = family(bench, call)? {
            return Ok(outputs);
        }
    }
    unknown(bench, call)
}

/// An op that we have no rule for gets everything whole.
fn unknown(bench: &mut Bench, call: &Call<'_>) -> Result<Outputs> {
    let inputs: Vec<&Layout> = call.tensors().collect();
    if !inputs.is_empty() {
        let ndims: Vec<usize> = inputs.iter().map(|layout| layout.shape().ndim()).collect();
        bench.run(&Rule::whole(&ndims, &[]), &inputs, &[])?;
    }
    Ok(Vec::new())
}
