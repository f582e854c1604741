//! A thousand tiny operations: what a call costs before any element is touched.

use super::{Built, one};
use crate::inputs::normal;
use planaria_array::{Array, Error};

pub(super) fn build(case: &str) -> Built {
    match case {
        "small_add_overhead" => {
            let (x, y) = (normal(1, &[8])?, normal(2, &[8])?);
            one(move || thousand(|| x.add(&y)))
        }
        "small_getitem_overhead" => {
            let x = normal(1, &[8, 8])?;
            one(move || thousand(|| x.slice(0, Some(1), Some(3), 1)?.slice(1, None, None, 2)))
        }
        _ => Ok(None),
    }
}

/// Runs `work` a thousand times and answers the last result.
fn thousand(work: impl Fn() -> Result<Array, Error>) -> Result<Array, Error> {
    for _ in 1..1000 {
        std::hint::black_box(work()?);
    }
    work()
}
