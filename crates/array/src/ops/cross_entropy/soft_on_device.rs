//! Cross-entropy on a device with a target for every class, or with weights of classes: from simpler operations.

use super::{CrossEntropy, CrossEntropyOptions, Problem, Reduction};
use crate::array::Array;
use crate::error::Result;
use crate::ops::{Keep, where_};
use planaria_layout::DType;

/// What is learned, in the computing type, the classes last.
pub(super) struct Targets {
    /// Weight times target of every class.
    weighted: Array,
    /// What a mean divides by, 0-d f64.
    count: Array,
}

impl Targets {
    /// A probability for every class.
    pub(super) fn soft(
        problem: &Problem,
        targets: &Array,
        options: &CrossEntropyOptions<'_>,
    ) -> Result<Targets> {
        let count = Array::scalar(problem.rows.numel() as f64, DType::F64)?.to(targets.device())?;
        let weighted = weigh(problem, smooth(problem, &targets.cast(problem.real)?, options)?, options)?;
        Ok(Targets { weighted, count })
    }

    /// One label for each row, below zero those that do not count.
    pub(super) fn hard(
        problem: &Problem,
        labels: &Array,
        options: &CrossEntropyOptions<'_>,
    ) -> Result<Targets> {
        let counts = labels.ge(&Array::scalar(0, DType::I64)?)?;
        let known = where_(&counts, labels, &Array::scalar(0, DType::I64)?)?;
        let one = known.one_hot(problem.classes, problem.real)?;
        let rows = counts.unsqueeze(-1)?.cast(problem.real)?;
        let of_labels = weigh(problem, one.clone(), options)?.mul(&rows)?;
        let weighted = weigh(problem, smooth(problem, &one, options)?, options)?.mul(&rows)?;
        Ok(Targets { weighted, count: of_labels.cast(DType::F64)?.sum(&[], Keep::No)? })
    }

    pub(super) fn losses(
        &self,
        problem: &Problem,
        options: &CrossEntropyOptions<'_>,
    ) -> Result<CrossEntropy> {
        let (real, dtype) = (problem.real, problem.logits.dtype());
        let x = problem.logits.cast(real)?;
        let lse = x.logsumexp(&[-1], Keep::No)?;
        let away = lse.unsqueeze(-1)?.sub(&x)?;
        // What does not count adds nothing, also where a score is infinite.
        let nothing = self.weighted.eq(&Array::scalar(0.0, real)?)?;
        let terms = where_(&nothing, &Array::scalar(0.0, real)?, &away.mul(&self.weighted)?)?;
        let losses = terms.sum(&[-1], Keep::No)?;
        let sum = || losses.cast(DType::F64)?.sum(&[], Keep::No);
        let loss = match options.reduction {
            Reduction::None => losses.cast(dtype)?,
            Reduction::Sum => sum()?.cast(real)?.cast(dtype)?,
            Reduction::Mean => sum()?.div(&self.count)?.cast(real)?.cast(dtype)?,
        };
        Ok(CrossEntropy { loss, lse })
    }

    /// `(softmax(logits) * sum(w * t) - w * t) * dloss`, the classes last.
    pub(super) fn grad(
        &self,
        problem: &Problem,
        dloss: &Array,
        lse: &Array,
        options: &CrossEntropyOptions<'_>,
    ) -> Result<Array> {
        let real = problem.real;
        let dloss = dloss.to(problem.logits.device())?;
        let scale = match options.reduction {
            Reduction::None => dloss.cast(real)?.unsqueeze(-1)?,
            Reduction::Sum => dloss.cast(real)?,
            Reduction::Mean => dloss.cast(DType::F64)?.div(&self.count)?.cast(real)?,
        };
        let shares = problem.logits.cast(real)?.sub(&lse.unsqueeze(-1)?)?.exp()?;
        let all = self.weighted.sum(&[-1], Keep::Yes)?;
        shares.mul(&all)?.sub(&self.weighted)?.mul(&scale)?.cast(problem.logits.dtype())
    }
}

/// Some of each target spread evenly over the classes.
fn smooth(problem: &Problem, targets: &Array, options: &CrossEntropyOptions<'_>) -> Result<Array> {
    let share = options.label_smoothing;
    if share == 0.0 {
        return Ok(targets.clone());
    }
    let even = Array::scalar(share / problem.classes as f64, problem.real)?;
    targets.mul(&Array::scalar(1.0 - share, problem.real)?)?.add(&even)
}

fn weigh(problem: &Problem, targets: Array, options: &CrossEntropyOptions<'_>) -> Result<Array> {
    match options.weight {
        Some(weight) => targets.mul(&weight.cast(problem.real)?),
        None => Ok(targets),
    }
}
