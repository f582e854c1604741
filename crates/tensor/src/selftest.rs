//! The table of ops on a device beside the host, for `planaria selftest`: results, gradients and gradients of gradients.

use crate::error::{Error, Result};
use crate::grad::{GradOptions, grad};
use crate::ops::TABLE;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;
use planaria_array::random::Key;
use planaria_array::selftest::{Case, Input, Plan, Report, Tolerance, is_large};
use planaria_array::{Array, DType, Device};
use std::time::Instant;

/// Calls of each family on a device, and on an emulated one, which is slow.
const CALLS: [u64; 2] = [24, 4];

/// Dtypes of what the calls compute with.
const DTYPES: [DType; 3] = [DType::F64, DType::F32, DType::BF16];

/// Runs the families `table`, as far as the plan wants them, and adds what they found.
pub fn run(plan: &Plan, report: &mut Report) {
    if !plan.wants("table") {
        return;
    }
    let begun = Instant::now();
    let in_time = || plan.limit.is_none_or(|limit| begun.elapsed() < limit);
    let calls = CALLS[usize::from(!is_large(plan.device))];
    for (entry, seed) in TABLE.iter().flat_map(|entry| (0..calls).map(move |seed| (entry, seed))) {
        for dtype in DTYPES {
            if !in_time() {
                report.skip("table");
                continue;
            }
            match (entry.sample)(&mut Draw::new(seed)) {
                Ok(sample) => case(sample, entry.family, dtype, seed).run(plan.device, report),
                Err(error) => report.fail("table", entry.family, error.to_string()),
            }
        }
    }
    report.seconds += begun.elapsed().as_secs_f64();
}

fn case(sample: Sample, family: &str, dtype: DType, seed: u64) -> Case {
    // Sums in another order, twice over for gradients of gradients.
    let tolerance = match dtype {
        DType::F64 => 1e-11,
        DType::F32 => 2e-5,
        _ => 5e-2,
    };
    let inputs = sample.inputs.iter().cloned().map(Input::plain).collect();
    let name = format!("{family} {dtype} seed {seed}: {}", sample.name);
    let work =
        move |inputs: &[Array], device: Device| computed(&sample, inputs, dtype, device).map_err(plain);
    Case::new("table", name, inputs, Tolerance::Scaled(tolerance), work)
}

/// What an array would have refused with.
fn plain(error: Error) -> planaria_array::Error {
    match error {
        Error::Array(error) => error,
        other => planaria_array::Error::Argument { op: "table", what: other.to_string() },
    }
}

/// The outputs of a call, the gradients of its float inputs, and gradients of those.
fn computed(sample: &Sample, inputs: &[Array], dtype: DType, device: Device) -> Result<Vec<Array>> {
    let leaf = |x: &Array| -> Result<Tensor> {
        Ok(match x.dtype() {
            DType::F64 => Tensor::new(x.cast(dtype)?).requires_grad(),
            _ => Tensor::new(x.clone()),
        })
    };
    let leaves = inputs.iter().map(leaf).collect::<Result<Vec<_>>>()?;
    let outputs = sample.run(&leaves.iter().collect::<Vec<_>>())?;
    let mut found: Vec<Array> = outputs.iter().map(|y| y.local().clone()).collect();
    let varied: Vec<&Tensor> =
        leaves.iter().zip(inputs).filter(|(_, x)| x.dtype() == DType::F64).map(|(leaf, _)| leaf).collect();
    let once = sample.differentiable_once;
    let first = slopes(outputs.iter().collect(), &varied, !once, 1, device)?;
    found.extend(first.iter().map(|slope| slope.local().clone()));
    if !once {
        let second = slopes(first.iter().collect(), &varied, false, 2, device)?;
        found.extend(second.iter().map(|slope| slope.local().clone()));
    }
    Ok(found)
}

/// Gradients of weighted sums of those `values` that have any.
fn slopes(
    values: Vec<&Tensor>,
    of: &[&Tensor],
    differentiable: bool,
    order: u64,
    device: Device,
) -> Result<Vec<Tensor>> {
    let used: Vec<&Tensor> = values.into_iter().filter(|y| y.dtype().is_float() && y.has_history()).collect();
    if used.is_empty() || of.is_empty() {
        return Ok(Vec::new());
    }
    let weight = |(number, y): (usize, &&Tensor)| -> Result<Tensor> {
        let drawn = Array::normal(y.shape(), DType::F64, Key::new(order, number as u64))?;
        Ok(Tensor::new(drawn.cast(y.dtype())?.to(device)?))
    };
    let weights = used.iter().enumerate().map(weight).collect::<Result<Vec<_>>>()?;
    let weights: Vec<Option<&Tensor>> = weights.iter().map(Some).collect();
    let options = GradOptions { keep_history: true, differentiable };
    Ok(grad(&used, &weights, of, options)?.into_iter().flatten().collect())
}
