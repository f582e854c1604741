//! Matrix products: `gemm_DTYPE_BATCH_M_K_N`, and the linear layer with its gradients.

use super::{Built, Run, one};
use crate::inputs::normal;
use planaria_array::DType;
use planaria_array::ops::{Keep, linear, matmul};

pub(super) fn build(case: &str) -> Built {
    if case == "linear_bwd" {
        return linear_bwd();
    }
    let Some(rest) = case.strip_prefix("gemm_") else { return Ok(None) };
    let (dtype, sizes) = match rest.split_once('_') {
        Some(("f32", sizes)) => (DType::F32, sizes),
        Some(("bf16", sizes)) => (DType::BF16, sizes),
        _ => return Ok(None),
    };
    let sizes: Vec<usize> = sizes.split('_').filter_map(|size| size.parse().ok()).collect();
    let &[batch, m, k, n] = sizes.as_slice() else { return Ok(None) };
    let (a, b) = (normal(1, &[batch, m, k])?.cast(dtype)?, normal(2, &[batch, k, n])?.cast(dtype)?);
    let (a, b) = if batch == 1 { (a.squeeze(&[0])?, b.squeeze(&[0])?) } else { (a, b) };
    one(move || matmul(&a, &b))
}

fn linear_bwd() -> Built {
    let (x, w, b) = (normal(1, &[1024, 768])?, normal(2, &[3072, 768])?, normal(3, &[3072])?);
    let dy = normal(90, &[1024, 3072])?;
    let run: Run = Box::new(move || {
        drop(linear(&x, &w, Some(&b))?);
        Ok(vec![matmul(&dy, &w)?, matmul(&dy.transpose(0, 1)?, &x)?, dy.sum(&[0], Keep::No)?])
    });
    Ok(Some(run))
}
