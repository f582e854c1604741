//! Sums over everything, over rows and over columns.

use super::{Built, one};
use crate::inputs::normal;
use planaria_array::ops::Keep;

pub(super) fn build(case: &str) -> Built {
    let (x, dims): (_, &[i64]) = match case {
        "sum16m" => (normal(1, &[1 << 24])?, &[0]),
        "sum_dim0" => (normal(1, &[4096, 4096])?, &[0]),
        "sum_dim1" => (normal(1, &[4096, 4096])?, &[1]),
        _ => return Ok(None),
    };
    one(move || x.sum(dims, Keep::No))
}
