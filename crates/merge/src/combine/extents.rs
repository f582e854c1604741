//! How large factors are, and which ranks are of use to their modules.

use super::{Combination, Input, Prune};
use crate::error::{Error, Result};
use crate::model::adapter::Parts;
use std::collections::BTreeMap;

/// Rank, inputs and outputs of the factors of a module.
pub(super) fn extents(module: &str, parts: &Parts) -> Result<Option<[usize; 3]>> {
    let (down, up) = match (&parts.down, &parts.up) {
        (None, None) => return Ok(None),
        (Some(down), Some(up)) => (down.shape(), up.shape()),
        _ => return Err(Error::request(format!("'{module}' has one factor without the other"))),
    };
    match (&down[..], &up[..]) {
        (&[rank, inner], &[out, other]) if rank == other => Ok(Some([rank, inner, out])),
        _ => {
            let what = format!("'{module}' has factors of the shapes {down} and {up}");
            Err(Error::request(format!("{what}, and those of matrices are combined; merge that adapter")))
        }
    }
}

/// The ranks of the adapters that have factors, as they name them; where patterns give all modules less, the largest of those.
pub(super) fn ranks(inputs: &[Input], all: &[BTreeMap<String, Parts>]) -> Result<Vec<usize>> {
    let mut ranks = Vec::new();
    for (input, modules) in inputs.iter().zip(all) {
        let mut most = None;
        for (module, parts) in modules {
            most = most.max(extents(module, parts)?.map(|[rank, ..]| rank));
        }
        ranks.extend(most.map(|most| most.min(input.adapter.config().r as usize)));
    }
    if ranks.is_empty() {
        ranks.extend(inputs.first().map(|input| input.adapter.config().r as usize));
    }
    Ok(ranks)
}

/// Of every module the rank in all adapters together, and the lesser of its inputs and outputs.
fn sizes(all: &[BTreeMap<String, Parts>]) -> Result<Vec<(usize, usize)>> {
    let mut sizes: BTreeMap<&String, (usize, usize)> = BTreeMap::new();
    for (module, parts) in all.iter().flatten() {
        if let Some([rank, inner, out]) = extents(module, parts)? {
            let (sum, least) = sizes.entry(module).or_default();
            (*sum, *least) = (*sum + rank, inner.min(out));
        }
    }
    Ok(sizes.into_values().collect())
}

/// The largest rank that any module has in all adapters together: patterns give some more than the adapters say.
pub(super) fn widest(all: &[BTreeMap<String, Parts>]) -> Result<usize> {
    Ok(sizes(all)?.into_iter().map(|(sum, _)| sum).max().unwrap_or(0))
}

/// The largest rank that a sum of products can have in any module: what is beyond it is zeros. Pruning may add to that of the
/// factors.
pub(super) fn useful(all: &[BTreeMap<String, Parts>], how: Combination) -> Result<Option<usize>> {
    let added = how.prune == Prune::Nothing && !how.elect;
    let rank = |(sum, least): (usize, usize)| if added { sum.min(least) } else { least };
    Ok(sizes(all)?.into_iter().map(rank).max())
}
