//! What a rank keeps from step to step: weights, sums of gradients, optimizer state. The same rules as the trainer's.

use super::{Memory, Setting, backward};
use crate::config::Sharding;
use crate::error::{Error, Result};
use crate::trainer::narrow::is_narrow;
use crate::update::AHEAD;
use crate::weights::Zero;
use planaria_array::{Array, allocated};
use planaria_layout::{DType, Layout, Rank, Share};
use planaria_nn::models::Stage;
use planaria_nn::{ParamKind, ParamSpec};
use std::collections::BTreeMap;

/// One parameter on one rank.
pub(super) struct Piece {
    /// Elements of the local piece.
    pub(super) numel: usize,
    /// Elements of the largest range that one data rank owns.
    pub(super) own: usize,
    /// It has the elements of another parameter of this rank: weights and state are there already.
    pub(super) shared: bool,
    /// The other leaf of its value is on another stage.
    pub(super) across: bool,
    /// A gradient is computed for it, and the optimizer keeps state.
    pub(super) trained: bool,
    /// Dtype of its elements.
    pub(super) dtype: DType,
    /// Bytes of its elements, where it is kept in few bits.
    narrow: Option<u64>,
    /// Each rank of `ep` has experts of its own in it.
    pub(super) experts: bool,
    /// The layer it belongs to.
    pub(super) layer: Option<usize>,
    /// Rows of it are looked up.
    pub(super) looked_up: bool,
    /// How often in a step its elements are brought together, where weights are divided.
    pub(super) gathers: u64,
}

/// The pieces of the rank of the inner mesh that has most elements.
pub(super) fn largest_pieces(setting: &Setting<'_>, parts: &[&Stage]) -> Result<Vec<Piece>> {
    let mut specs: Vec<ParamSpec> = Vec::new();
    for part in parts {
        specs.extend(setting.model.parameters(part)?);
    }
    let numels =
        |rank: Rank| -> Result<Vec<usize>> { specs.iter().map(|spec| local(setting, spec, rank)).collect() };
    let mut best: Option<Vec<usize>> = None;
    for rank in setting.inner.ranks() {
        let found = numels(rank)?;
        if best.as_ref().is_none_or(|best| best.iter().sum::<usize>() < found.iter().sum()) {
            best = Some(found);
        }
    }
    let best = best.ok_or_else(|| Error::Bug { what: "a mesh without ranks".into() })?;
    let here = |name: &str| specs.iter().any(|spec| spec.name == name);
    // The other leaf of a tied value, by either name.
    let ties = planaria_nn::models::ties(setting.model)?;
    let twins = |name: &str| {
        let back = ties.iter().filter(|(_, twin)| twin.as_str() == name).map(|(own, _)| own.clone());
        ties.get(name).cloned().into_iter().chain(back).collect::<Vec<_>>()
    };
    let width = setting.config.lora.as_ref().and_then(|lora| lora.base.width());
    let piece = |(spec, numel): (&ParamSpec, usize)| Piece {
        numel,
        own: Share::even(numel, setting.data_ranks).range(0).len(),
        trained: !setting.frozen.contains(&spec.name),
        dtype: spec.dtype.unwrap_or(setting.dtype),
        narrow: width.filter(|_| is_narrow(spec)).map(|width| {
            // Rows may be cut; the scales of whole ones are as many or a few less.
            width.bytes(numel, spec.shape.last().copied().unwrap_or(1).min(numel.max(1))) as u64
        }),
        shared: spec.tied.as_deref().is_some_and(here),
        experts: spec.ep.is_some(),
        layer: spec.block,
        looked_up: spec.kind == ParamKind::Embedding,
        gathers: gathers(setting, parts, spec.block),
        across: twins(&spec.name).iter().any(|twin| !here(twin)),
    };
    Ok(specs.iter().zip(best).map(piece).collect())
}

/// How often in a step the weights of a layer are brought together: forward and backward, less where the direction
/// turns and they are still there.
fn gathers(setting: &Setting<'_>, parts: &[&Stage], layer: Option<usize>) -> u64 {
    let rounds = setting.geometry.accumulation;
    let Some(layer) = layer else { return rounds };
    let turns = |part: &&Stage| {
        // A tied head brings the table of token vectors back in between.
        let stays = !(part.head && part.embed && setting.is_tied);
        part.layers.end == layer + 1 && stays
    };
    let first = parts.len() == 1 && parts[0].layers.start == layer;
    let kept = if parts.iter().any(turns) { rounds } else { 0 };
    (2 * rounds - kept - if first { rounds - 1 } else { 0 }).max(1)
}

impl Piece {
    /// Bytes of its elements, as they are kept and brought together.
    pub(super) fn bytes(&self) -> u64 {
        self.narrow.unwrap_or((self.numel * self.dtype.size()) as u64)
    }
}

/// Bytes of the largest layer.
fn largest_layer(pieces: &[Piece]) -> u64 {
    let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
    for piece in pieces {
        if let Some(layer) = piece.layer {
            *sums.entry(layer).or_default() += piece.bytes();
        }
    }
    sums.into_values().max().unwrap_or(0)
}

/// Elements of a parameter on one rank of the inner mesh.
/// Bytes of the whole model, as the inner mesh cuts it, that a rank has while it makes texts; nothing where its part is the whole. A second
/// model makes none. Adapters that are put into copies of some weights are not counted.
pub(super) fn whole_copy(setting: &Setting<'_>) -> Result<u64> {
    let staged = setting.parts.iter().any(|(_, rank)| *rank > 0);
    let divided = setting.data_ranks > 1 && Zero::from(setting.config.train.zero) == Zero::Weights;
    if !staged && !divided {
        return Ok(0);
    }
    let model = setting.model.first().map_or(setting.model, |first| &**first);
    let specs = model.parameters(&Stage::whole(model))?;
    let mut most = 0;
    for rank in setting.inner.ranks() {
        let mut bytes = 0;
        for spec in specs.iter().filter(|spec| spec.tied.is_none()) {
            bytes += (local(setting, spec, rank)? * spec.dtype.unwrap_or(setting.dtype).size()) as u64;
        }
        most = most.max(bytes);
    }
    Ok(most)
}

fn local(setting: &Setting<'_>, spec: &ParamSpec, rank: Rank) -> Result<usize> {
    if setting.inner.size() == 1 {
        return Ok(spec.shape.numel());
    }
    let layout = Layout::new(&setting.inner, &spec.shape, &spec.placements(&setting.inner))?;
    Ok(layout.piece(rank)?.boxes().iter().map(|region| region.numel()).sum())
}

/// Everything but activations.
pub(super) fn memory(setting: &Setting<'_>, pieces: &[Piece]) -> Result<Memory> {
    let zero = Zero::from(setting.config.train.zero);
    let mut out = Memory::default();
    for piece in pieces {
        let (numel, own) = (piece.numel as u64, piece.own as u64);
        out.gradients += backward::summed(setting, piece);
        if piece.shared {
            continue;
        }
        let divided = zero == Zero::Weights;
        let held = piece.dtype.size() as u64 * if divided { own } else { numel };
        let ranks = if divided { setting.data_ranks as u64 } else { 1 };
        out.weights += piece.narrow.map_or(held, |bytes| bytes.div_ceil(ranks));
        if !piece.trained {
            continue;
        }
        let kept = if zero == Zero::Off { piece.numel } else { piece.own };
        let state = setting.rule.state(&Array::meta(&[kept], stateful(piece.dtype))?)?;
        out.masters += state.master.as_ref().map_or(0, bytes);
        out.moments += state.slots.iter().map(|(_, slot)| bytes(slot)).sum::<u64>();
        out.ema += 4 * kept as u64 * setting.config.optim.averages()?.len() as u64;
    }
    // Weights of few bits are widened one by one.
    let widened = pieces.iter().filter(|piece| piece.narrow.is_some());
    out.exchange += widened.map(|piece| (piece.numel * piece.dtype.size()) as u64).max().unwrap_or(0);
    if setting.data_ranks == 1 {
        return Ok(out);
    }
    let bundles = bundles(setting, pieces);
    let largest = bundles.iter().copied().max().unwrap_or(0);
    // Members of a bundle that is sharded as one lie end to end in memory of their own.
    let joined = |share: u64| {
        bundles.iter().map(|&bytes| allocated((bytes / share) as usize) as u64 - bytes / share).sum::<u64>()
    };
    let flat = setting.config.train.shard == Sharding::Flat;
    match zero {
        // Bundles in flight in f32, whole.
        Zero::Off => out.update = (AHEAD as u64 + 1) * largest / setting.dtype.size().max(1) as u64 * 4,
        // Weights are gathered in fresh memory.
        Zero::States | Zero::Gradients => {
            out.update = (AHEAD as u64 + 1) * largest;
            out.rounding = if flat { joined(1) } else { 0 };
        }
        // The layer that is computed with, and the next one.
        Zero::Weights => {
            out.exchange += 2 * largest_layer(pieces);
            out.rounding = if flat { joined(setting.data_ranks as u64) } else { 0 };
        }
    }
    Ok(out)
}

/// Bytes of each bundle of weights: those of a block, up to the size of a bucket, or one parameter that is larger.
fn bundles(setting: &Setting<'_>, pieces: &[Piece]) -> Vec<u64> {
    let limit = setting.config.train.bucket_bytes as u64;
    let (mut all, mut last): (Vec<u64>, _) = (Vec::new(), None);
    for piece in pieces.iter().filter(|piece| !piece.shared) {
        let bytes = piece.bytes();
        match all.last_mut().filter(|bundle| last == Some(piece.layer) && **bundle + bytes <= limit) {
            Some(bundle) => *bundle += bytes,
            None => all.push(bytes),
        }
        last = Some(piece.layer);
    }
    all
}

/// Weights of one byte have the optimizer state of other narrow ones.
fn stateful(dtype: DType) -> DType {
    if dtype.size() == 1 { DType::BF16 } else { dtype }
}

fn bytes(array: &Array) -> u64 {
    (array.numel() * array.dtype().size()) as u64
}
