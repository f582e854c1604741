//! Operations that a device makes of simpler ones: batch and group norms, gradients of reductions, medians, weighted losses.

use super::case::{Case, Input};
use super::compare::Tolerance;
use super::indexing::positions;
use super::moves::some;
use super::training::looser;
use crate::array::Array;
use crate::error::Result;
use crate::ops::{
    self, BatchMode, BatchStats, CrossEntropyOptions, Keep, Reduction, RunningStats, amax_grad, amin_grad,
    logsumexp_grad, norm_grad, prod_grad, std_grad, var_grad,
};
use planaria_layout::DType;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64] {
        norms(dtype, &mut all);
        reductions(dtype, &mut all);
        losses(dtype, &mut all);
    }
    all
}

fn norms(dtype: DType, all: &mut Vec<Case>) {
    for shape in [&[5usize, 12, 7, 3][..], &[9, 12]] {
        let inputs = vec![
            Input::plain(some(shape, dtype, 201)),
            Input::plain(some(shape, dtype, 202)),
            Input::plain(some(&[12], dtype, 203)),
            Input::plain(some(&[12], DType::F32, 204)),
            Input::plain(some(&[12], DType::F32, 205)),
            Input::plain(
                some(&[12], DType::F32, 206).square().unwrap_or_else(|_| some(&[12], DType::F32, 1)),
            ),
        ];
        let name = format!("batch norm {shape:?} {dtype}");
        all.push(Case::new("norm", name, inputs.clone(), looser(dtype), batch));
        let name = format!("group norm {shape:?} {dtype}");
        all.push(Case::new("norm", name, inputs, looser(dtype), |x, _| {
            let mut found = Vec::new();
            // Groups of one or two elements have no gradient but rounding.
            for groups in if x[0].ndim() > 2 { &[1, 3, 12][..] } else { &[1, 3] } {
                let groups = *groups;
                let done = ops::group_norm(&x[0], groups, Some(&x[2]), Some(&x[3]), 1e-5)?;
                let grad = ops::group_norm_grad(&x[1], &x[0], groups, &done.mean, &done.rstd, Some(&x[2]))?;
                found.extend([done.y, done.mean, done.rstd, grad.x, grad.weight, grad.bias]);
            }
            if x[0].ndim() > 2 {
                found.push(ops::instance_norm(&x[0], None, None, 1e-5)?.y);
            }
            Ok(found)
        }));
    }
}

fn batch(x: &[Array], _: crate::device::Device) -> Result<Vec<Array>> {
    let (mean, var) = (x[4].copy()?, x[5].copy()?);
    let running = RunningStats { mean: &mean, var: &var };
    let stats = BatchStats::Batch { running: Some(running), momentum: 0.1 };
    let done = ops::batch_norm(&x[0], Some(&x[2]), Some(&x[3]), stats, 1e-5)?;
    let fixed = ops::batch_norm(&x[0], Some(&x[2]), None, BatchStats::Running(running), 1e-5)?;
    let grad =
        |mode, of: &ops::BatchNorm| ops::batch_norm_grad(&x[1], &x[0], &of.mean, &of.rstd, Some(&x[2]), mode);
    let (a, b) = (grad(BatchMode::Training, &done)?, grad(BatchMode::Evaluation, &fixed)?);
    Ok(vec![done.y, done.mean, done.rstd, mean, var, fixed.y, a.x, a.weight, a.bias, b.x, b.weight, b.bias])
}

type Gradient = fn(&Array, &Array, &[i64]) -> Result<Array>;

fn reductions(dtype: DType, all: &mut Vec<Case>) {
    let table: [(&str, Gradient); 9] = [
        ("amax", |dy, x, dims| amax_grad(dy, x, &x.amax(dims, Keep::Yes)?, dims)),
        ("amin", |dy, x, dims| amin_grad(dy, x, &x.amin(dims, Keep::Yes)?, dims)),
        ("logsumexp", |dy, x, dims| logsumexp_grad(dy, x, &x.logsumexp(dims, Keep::Yes)?, dims)),
        ("prod", prod_grad),
        ("norm 1", |dy, x, dims| norm_grad(dy, x, &x.norm(1.0, dims, Keep::Yes)?, 1.0, dims)),
        ("norm 3", |dy, x, dims| norm_grad(dy, x, &x.norm(3.0, dims, Keep::Yes)?, 3.0, dims)),
        ("norm inf", |dy, x, dims| {
            norm_grad(dy, x, &x.norm(f64::INFINITY, dims, Keep::Yes)?, f64::INFINITY, dims)
        }),
        ("var", |dy, x, dims| var_grad(dy, x, dims, 1.0)),
        ("std", |dy, x, dims| std_grad(dy, x, &x.std(dims, 1.0, Keep::Yes)?, dims, 1.0)),
    ];
    for (name, gradient) in table {
        for dims in [&[1i64][..], &[0, 2], &[0, 1, 2]] {
            let kept: Vec<usize> = [4usize, 9, 5]
                .iter()
                .enumerate()
                .map(|(d, &n)| if dims.contains(&(d as i64)) { 1 } else { n })
                .collect();
            // Few values, so that several are the largest.
            let x = some(&[4, 9, 5], dtype, 211).round();
            let inputs = vec![
                Input::plain(x.unwrap_or_else(|_| some(&[4, 9, 5], dtype, 212))),
                Input::plain(some(&kept, dtype, 213)),
            ];
            let name = format!("gradient of {name} over {dims:?} {dtype}");
            all.push(Case::new("reduce", name, inputs, looser(dtype), move |x, _| {
                Ok(vec![gradient(&x[1], &x[0], dims)?])
            }));
        }
    }
    let inputs = vec![Input::plain(some(&[7, 12, 5], dtype, 214))];
    all.push(Case::new("order", format!("median {dtype}"), inputs, Tolerance::Values, |x, _| {
        let (odd, place) = x[0].median(0, Keep::No)?;
        let (even, _) = x[0].median(1, Keep::Yes)?;
        let root = x[0].sqrt()?; // NaN for some
        Ok(vec![odd, place, even, root.median(2, Keep::No)?.0, root.median(2, Keep::No)?.1])
    }));
}

fn losses(dtype: DType, all: &mut Vec<Case>) {
    for (reduction, smoothing) in [(Reduction::Mean, 0.0), (Reduction::Sum, 0.1), (Reduction::None, 0.2)] {
        let labels = positions(&[37], 50, 221)
            .rem(&Array::scalar(50, DType::I64).unwrap_or_else(|_| positions(&[1], 1, 1)));
        let weight = some(&[50], dtype, 222).abs();
        let inputs = vec![
            Input::plain(some(&[37, 50], dtype, 223)),
            Input::plain(labels.unwrap_or_else(|_| positions(&[37], 50, 221))),
            Input::plain(weight.unwrap_or_else(|_| some(&[50], dtype, 222))),
            Input::plain(
                some(&[37, 50], dtype, 224).softmax(-1).unwrap_or_else(|_| some(&[37, 50], dtype, 224)),
            ),
        ];
        let name = format!("weighted cross_entropy {reduction:?} smoothing {smoothing} {dtype}");
        all.push(Case::new("training", name, inputs, looser(dtype), move |x, device| {
            let label_smoothing = smoothing;
            let plain = CrossEntropyOptions {
                reduction,
                label_smoothing,
                ignore_index: Some(3),
                ..Default::default()
            };
            let options = CrossEntropyOptions { weight: Some(&x[2]), ..plain };
            let hard = ops::cross_entropy(&x[0], &x[1], &options)?;
            let dloss = Array::full_on(hard.loss.shape(), 0.5, x[0].dtype(), device)?;
            let hard_grad = ops::cross_entropy_grad(&dloss, &x[0], &hard.lse, &x[1], &options)?;
            let mut found = vec![hard.loss, hard.lse, hard_grad];
            for options in [plain, options] {
                let soft = ops::soft_cross_entropy(&x[0], &x[3], &options)?;
                found.push(ops::soft_cross_entropy_grad(&dloss, &x[0], &soft.lse, &x[3], &options)?);
                found.push(ops::soft_cross_entropy_target_grad(&dloss, &x[0], &soft.lse, &options)?);
                found.push(soft.loss);
            }
            Ok(found)
        }));
    }
}
