//! Softmax and cross-entropy, with their gradients.

use super::{Built, one};
use crate::inputs::{integers, normal};
use planaria_array::ops::{CrossEntropyOptions, cross_entropy, cross_entropy_grad, softmax_grad};

pub(super) fn build(case: &str) -> Built {
    match case {
        "softmax" => {
            let x = normal(1, &[4096, 1024])?;
            one(move || x.softmax(-1))
        }
        "softmax_bwd" => {
            let (x, dy) = (normal(1, &[4096, 1024])?, normal(90, &[4096, 1024])?);
            one(move || softmax_grad(&dy, &x.softmax(-1)?, -1))
        }
        "cross_entropy" | "cross_entropy_bwd" => {
            let (x, labels) = (normal(1, &[1024, 32000])?, integers(2, 32000, &[1024])?);
            let options = || CrossEntropyOptions::default();
            if case == "cross_entropy" {
                return one(move || Ok(cross_entropy(&x, &labels, &options())?.loss));
            }
            let dloss = normal(90, &[1])?.reshape(&[])?;
            one(move || {
                let saved = cross_entropy(&x, &labels, &options())?;
                cross_entropy_grad(&dloss, &x, &saved.lse, &labels, &options())
            })
        }
        _ => Ok(None),
    }
}
