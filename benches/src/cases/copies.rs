//! Copies of strided views, and writes through them.

use super::{Built, one};
use crate::inputs::normal;

pub(super) fn build(case: &str) -> Built {
    match case {
        "slice_copy" => {
            let x = normal(1, &[4096, 4096])?;
            one(move || x.slice(0, None, None, 2)?.slice(1, Some(1), Some(-1), 1)?.contiguous())
        }
        "slice_set" => {
            let (x, v) = (normal(1, &[4096, 4096])?, normal(2, &[2048, 4094])?);
            one(move || {
                x.slice(0, None, None, 2)?.slice(1, Some(1), Some(-1), 1)?.copy_from(&v)?;
                Ok(x.clone())
            })
        }
        "transpose_copy" => {
            let x = normal(1, &[4096, 4096])?;
            one(move || x.transpose(0, 1)?.contiguous())
        }
        "permute_copy" => {
            let x = normal(1, &[8, 512, 16, 64])?;
            one(move || x.permute(&[0, 2, 1, 3])?.contiguous())
        }
        "copy16m" => {
            let x = normal(1, &[1 << 24])?;
            one(move || x.copy())
        }
        _ => Ok(None),
    }
}
