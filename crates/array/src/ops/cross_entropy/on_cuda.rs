//! Cross-entropy on a device: labels are checked there and reported late, counts and sums stay there.

use super::soft_on_device::Targets;
use super::{CrossEntropy, CrossEntropyOptions, Problem, Reduction};
use crate::array::Array;
use crate::cuda::Scores;
use crate::error::Result;
use crate::ops::fused::check_ids_late;
use crate::ops::{Keep, where_};
use planaria_layout::DType;

struct Inputs {
    x: Array,
    /// I64, those to be ignored as -1.
    labels: Array,
}

impl Inputs {
    fn new(problem: &Problem, labels: &Array, options: &CrossEntropyOptions<'_>) -> Result<Inputs> {
        check_ids_late(problem.op, labels, problem.classes, options.ignore_index)?;
        let mut labels = labels.cast(DType::I64)?.contiguous()?;
        if let Some(ignored) = options.ignore_index.filter(|&ignored| ignored >= 0) {
            let none = labels.eq(&Array::scalar(ignored, DType::I64)?)?;
            labels = where_(&none, &Array::scalar(-1, DType::I64)?, &labels)?;
        }
        Ok(Inputs { x: problem.logits.contiguous()?, labels })
    }

    fn scores<'a>(&'a self, problem: &Problem, options: &CrossEntropyOptions<'_>) -> Scores<'a> {
        let (op, cols, smoothing) = (problem.op, problem.classes, options.label_smoothing);
        Scores { op, x: &self.x, labels: &self.labels, cols, smoothing }
    }

    /// How many rows count, as a 0-d f64.
    fn count(&self) -> Result<Array> {
        let counts = self.labels.ge(&Array::scalar(0, DType::I64)?)?;
        counts.count_nonzero(&[], Keep::No)?.cast(DType::F64)
    }
}

pub(super) fn losses(
    problem: &Problem,
    labels: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<CrossEntropy> {
    let inputs = Inputs::new(problem, labels, options)?;
    if options.weight.is_some() {
        return Targets::hard(problem, &inputs.labels, options)?.losses(problem, options);
    }
    let (losses, lse) = inputs.scores(problem, options).losses(&problem.rows)?;
    let dtype = problem.logits.dtype();
    let sum = || losses.cast(DType::F64)?.sum(&[], Keep::No);
    let loss = match options.reduction {
        Reduction::None => losses.cast(dtype)?,
        Reduction::Sum => sum()?.cast(problem.real)?.cast(dtype)?,
        Reduction::Mean => sum()?.div(&inputs.count()?)?.cast(problem.real)?.cast(dtype)?,
    };
    Ok(CrossEntropy { loss, lse })
}

/// Losses of rows; the scores of the problem become their gradient.
pub(super) fn losses_into_grad(
    problem: &Problem,
    labels: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<(Array, Array)> {
    let inputs = Inputs::new(problem, labels, options)?;
    let losses = inputs.scores(problem, options).losses_into_grad(&problem.rows)?;
    Ok((losses, inputs.x))
}

pub(super) fn grad(
    problem: &Problem,
    dloss: &Array,
    lse: &Array,
    labels: &Array,
    options: &CrossEntropyOptions<'_>,
) -> Result<Array> {
    let inputs = Inputs::new(problem, labels, options)?;
    if options.weight.is_some() {
        return Targets::hard(problem, &inputs.labels, options)?.grad(problem, dloss, lse, options);
    }
    let dloss = dloss.to(inputs.x.device())?;
    let scale = match options.reduction {
        Reduction::None | Reduction::Sum => dloss.cast(problem.real)?,
        Reduction::Mean => dloss.cast(DType::F64)?.div(&inputs.count()?)?.cast(problem.real)?,
    };
    inputs.scores(problem, options).grad(lse, &scale)
}
