//! The matrices of a block of the model side by side in one memory of a device, so that products with several of them read
//! one matrix without joining copies first.

use crate::error::Result;
use crate::weights::{Tie, Weight};
use planaria_array::{Array, Device, ops};
use planaria_nn::ParamKind;

/// Matrices begin at multiples of this, as kernels want it.
const ALIGNED: usize = 256;

/// Moves the trained matrices of each block next to each other, in the order of the model. Weights of the host stay where
/// they are: there nothing is joined.
pub(crate) fn settle(weights: &mut [Weight]) -> Result<()> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, weight) in weights.iter().enumerate().filter(|(_, weight)| fits(weight)) {
        let same = |last: &Weight| last.spec.block == weight.spec.block && last.dtype == weight.dtype;
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(|&last| same(&weights[last])) => group.push(at),
            _ => groups.push(vec![at]),
        }
    }
    for group in groups.iter().filter(|group| group.len() > 1) {
        let rows: Vec<&Array> = group.iter().filter_map(|&at| weights[at].full.as_ref()).collect();
        let all = ops::concat(&rows, 0)?;
        let mut from = 0;
        for &at in group {
            let weight = &mut weights[at];
            let full = all.narrow(0, from, weight.share.numel())?;
            from += weight.share.numel();
            weight.part = full.narrow(0, weight.own.start, weight.own.len())?;
            weight.full = Some(full);
        }
    }
    Ok(())
}

fn fits(weight: &Weight) -> bool {
    let Some(full) = &weight.full else { return false };
    let in_place =
        weight.spec.kind == ParamKind::Matrix && weight.spec.block.is_some() && weight.tie == Tie::None;
    let aligned = (full.numel() * full.dtype().size()).is_multiple_of(ALIGNED);
    in_place && weight.trainable && aligned && full.numel() > 0 && matches!(full.device(), Device::Cuda(_))
}
