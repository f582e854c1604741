//! Optimizer steps over one large parameter and over many small ones.

use super::{Built, Run};
use crate::inputs::{constant, normal};
use planaria_array::ops::{AdamW, AdamWArrays};
use planaria_array::{Array, Error, Scalar};

pub(super) fn build(case: &str) -> Built {
    let (count, len) = match case {
        "adamw_10m" => (1, 10_000_000),
        "adamw_10m_40t" => (40, 250_000),
        _ => return Ok(None),
    };
    let params: Vec<[Array; 4]> = (0..count).map(|i| parameter(i, len)).collect::<Result<_, _>>()?;
    let mut step = 0;
    let run: Run = Box::new(move || {
        step += 1;
        let list: Vec<AdamWArrays<'_>> = params.iter().map(arrays).collect();
        AdamW::default().step(step, &list)?;
        Ok(params.iter().map(|[param, ..]| param.clone()).collect())
    });
    Ok(Some(run))
}

/// A parameter, its gradient and its two moments.
fn parameter(seed: u32, len: usize) -> Result<[Array; 4], Error> {
    let hundredth = Array::scalar(Scalar::from(0.01), planaria_array::DType::F32)?;
    let grad = normal(100 + seed, &[len])?.mul(&hundredth)?;
    Ok([normal(1 + seed, &[len])?, grad, constant(0.0, &[len])?, constant(0.0, &[len])?])
}

fn arrays([param, grad, exp_avg, exp_avg_sq]: &[Array; 4]) -> AdamWArrays<'_> {
    AdamWArrays { param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq: None, master: None }
}
