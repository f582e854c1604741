//! Normalisations and their gradients.

use super::{Built, Run, one};
use crate::inputs::{constant, normal};
use planaria_array::ops::{
    BatchMode, BatchNorm, BatchStats, NormGrad, RunningStats, batch_norm, batch_norm_grad, group_norm,
    group_norm_grad, layer_norm, layer_norm_grad, rms_norm, rms_norm_grad,
};
use planaria_array::{Array, Error};

pub(super) fn build(case: &str) -> Built {
    let rows = || normal(1, &[4096, 1024]);
    let images = || normal(1, &[32, 64, 56, 56]);
    match case {
        "layer_norm" => {
            let (x, [w, b]) = (rows()?, parameters(1024)?);
            one(move || Ok(layer_norm(&x, &[1024], Some(&w), Some(&b), 1e-5)?.y))
        }
        "layer_norm_bwd" => {
            let (x, [w, b], dy) = (rows()?, parameters(1024)?, normal(90, &[4096, 1024])?);
            three(move || {
                let saved = layer_norm(&x, &[1024], Some(&w), Some(&b), 1e-5)?;
                layer_norm_grad(&dy, &x, &[1024], &saved.mean, &saved.rstd, Some(&w), None)
            })
        }
        "rms_norm" => {
            let (x, [w, _]) = (rows()?, parameters(1024)?);
            one(move || Ok(rms_norm(&x, &[1024], Some(&w), 1e-6)?.y))
        }
        "rms_norm_bwd" => {
            let (x, [w, _], dy) = (rows()?, parameters(1024)?, normal(90, &[4096, 1024])?);
            let run: Run = Box::new(move || {
                let saved = rms_norm(&x, &[1024], Some(&w), 1e-6)?;
                let grad = rms_norm_grad(&dy, &x, &[1024], &saved.rstd, Some(&w), None)?;
                Ok(vec![grad.x, grad.weight])
            });
            Ok(Some(run))
        }
        "batch_norm" | "batch_norm_bwd" => batch(case, images()?),
        "group_norm" => {
            let (x, [w, b]) = (images()?, parameters(64)?);
            one(move || Ok(group_norm(&x, 32, Some(&w), Some(&b), 1e-5)?.y))
        }
        "group_norm_bwd" => {
            let (x, [w, b], dy) = (images()?, parameters(64)?, normal(90, &[32, 64, 56, 56])?);
            three(move || {
                let saved = group_norm(&x, 32, Some(&w), Some(&b), 1e-5)?;
                group_norm_grad(&dy, &x, 32, &saved.mean, &saved.rstd, Some(&w))
            })
        }
        _ => Ok(None),
    }
}

/// A weight of ones and a bias of zeros.
fn parameters(len: usize) -> Result<[Array; 2], Error> {
    Ok([constant(1.0, &[len])?, constant(0.0, &[len])?])
}

fn batch(case: &str, x: Array) -> Built {
    let ([w, b], [var, mean]) = (parameters(64)?, parameters(64)?);
    let forward = move |x: &Array| -> Result<BatchNorm, Error> {
        let running = Some(RunningStats { mean: &mean, var: &var });
        batch_norm(x, Some(&w), Some(&b), BatchStats::Batch { running, momentum: 0.1 }, 1e-5)
    };
    if case == "batch_norm" {
        return one(move || Ok(forward(&x)?.y));
    }
    let (w, dy) = (constant(1.0, &[64])?, normal(90, &[32, 64, 56, 56])?);
    three(move || {
        let saved = forward(&x)?;
        batch_norm_grad(&dy, &x, &saved.mean, &saved.rstd, Some(&w), BatchMode::Training)
    })
}

/// Boxes a case whose run gives the gradients of input, weight and bias.
fn three(mut run: impl FnMut() -> Result<NormGrad, Error> + Send + 'static) -> Built {
    Ok(Some(Box::new(move || {
        let grad = run()?;
        Ok(vec![grad.x, grad.weight, grad.bias])
    })))
}
