//! Bytes that one rank sends in a step, by what they are.

use super::Setting;
use super::state::Piece;
use crate::config::Reduction;
use crate::weights::Zero;
use planaria_nn::models::{Cost, Stage};
use serde::Serialize;

/// One kind of communication.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// What is sent.
    pub what: &'static str,
    /// The axis of the mesh.
    pub axis: &'static str,
    /// The collective.
    pub call: &'static str,
    /// How often in a step.
    pub times: u64,
    /// Bytes one rank sends in a step.
    pub bytes: u64,
    /// The only place along the axis that they go to; absent where all the others get a share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<usize>,
}

/// `bytes` as all ranks hold them together; every one sends what the others have not.
fn sent(bytes: u64, ranks: u64) -> u64 {
    bytes / ranks.max(1) * (ranks.max(1) - 1)
}

/// Everything a rank of a pipeline stage sends; what sends nothing is left out.
pub(super) fn of_rank(
    setting: &Setting<'_>,
    stage: usize,
    parts: &[&Stage],
    pieces: &[Piece],
) -> Vec<Traffic> {
    let mut out = data(setting, pieces);
    out.extend(pipeline(setting, stage));
    out.extend(tensor(setting, parts));
    out.extend(experts(setting, parts));
    out.push(divided_batch(setting, pieces));
    let tied: u64 =
        pieces.iter().filter(|piece| piece.across && piece.trained).map(|piece| 4 * piece.own as u64).sum();
    // The table of token vectors is where the model begins, its other leaf where it ends.
    let ends = [setting.parts.first(), setting.parts.last()].map(|part| part.map(|(_, rank)| *rank));
    let to = ends.into_iter().flatten().find(|&end| end != stage);
    out.push(Traffic { what: "tied sums", axis: "pp", call: "send", times: 1, bytes: tied, to });
    out.retain(|traffic| traffic.bytes > 0);
    out
}

fn data(setting: &Setting<'_>, pieces: &[Piece]) -> Vec<Traffic> {
    let ranks = setting.data_ranks as u64;
    let size = setting.dtype.size() as u64;
    let (rounds, train) = (setting.geometry.accumulation, &setting.config.train);
    let trained = || pieces.iter().filter(|piece| piece.trained);
    let all: u64 = trained().map(|piece| piece.numel as u64).sum();
    let held: u64 = trained().filter(|piece| !piece.shared).map(|piece| piece.numel as u64).sum();
    let (times, each) = match train.reduce {
        Reduction::Step if Zero::from(train.zero) < Zero::Gradients => (1, all * 4),
        _ => (rounds, all * setting.computed()),
    };
    let line = |what, call, times, bytes| Traffic { what, axis: "dp", call, times, bytes, to: None };
    let mut out = vec![line("gradients", "all-to-all", times, times * sent(each, ranks))];
    out.push(match Zero::from(train.zero) {
        Zero::Off => line("gradients", "all-gather", 1, sent(held * 4, ranks)),
        Zero::States | Zero::Gradients => line("weights", "all-gather", 1, sent(held * size, ranks)),
        Zero::Weights => {
            let gathered: u64 = pieces.iter().map(|piece| piece.bytes() * piece.gathers).sum();
            line("weights", "all-gather", rounds, sent(gathered, ranks))
        }
    });
    out
}

fn pipeline(setting: &Setting<'_>, stage: usize) -> Vec<Traffic> {
    let owners: Vec<usize> = setting.parts.iter().map(|(_, rank)| *rank).collect();
    let last = owners.len() - 1;
    let bytes = setting.costs.embed.output;
    let rounds = setting.geometry.accumulation;
    let mut out = Vec::new();
    for to in (0..setting.stages()).filter(|&to| to != stage) {
        let edges = |from: usize, next: usize| owners[from] == stage && owners[next] == to;
        let onward = (0..last).filter(|&i| edges(i, i + 1)).count() as u64;
        let back = (0..last).filter(|&i| edges(i + 1, i)).count() as u64;
        for (what, edges) in [("activations", onward), ("their gradients", back)] {
            let times = edges * rounds;
            out.push(Traffic { what, axis: "pp", call: "send", times, bytes: times * bytes, to: Some(to) });
        }
    }
    out
}

/// Sums over the slices of a product; where the sequence is divided, their two halves.
fn tensor(setting: &Setting<'_>, parts: &[&Stage]) -> Vec<Traffic> {
    let both = |cost: &Cost| cost.crossings[0] + cost.crossings[1];
    // In each direction, and forward again where a block is computed again.
    let of_part = |part: &&Stage| {
        let again: u64 = setting.recomputed(part).map(|cost| cost.crossings[0]).sum();
        setting.costs.of(part).map(both).sum::<u64>() + again
    };
    let times = parts.iter().map(of_part).sum::<u64>() * setting.geometry.accumulation;
    let half = times * sent(setting.costs.embed.crossed, setting.sizes.tp);
    let line = |call, bytes| Traffic { what: "activations", axis: "tp", call, times, bytes, to: None };
    match setting.config.train.sequence_parallel {
        true => vec![line("all-gather", half), line("reduce-scatter", half)],
        false => vec![line("all-reduce", 2 * half)],
    }
}

/// Ranks of `ep` see different samples: gradients of what they all have are summed over them after each micro-batch.
fn divided_batch(setting: &Setting<'_>, pieces: &[Piece]) -> Traffic {
    let common: u64 =
        pieces.iter().filter(|piece| !piece.experts && piece.trained).map(|piece| piece.numel as u64).sum();
    let times = setting.geometry.accumulation;
    let bytes = times * 2 * sent(common * setting.computed(), setting.inner.axis_size(0) as u64);
    Traffic { what: "gradients", axis: "ep", call: "all-reduce", times, bytes, to: None }
}

/// Tokens to the ranks of their experts and back, forward and backward.
fn experts(setting: &Setting<'_>, parts: &[&Stage]) -> Vec<Traffic> {
    let (ranks, rounds) = (setting.inner.axis_size(0) as u64, setting.geometry.accumulation);
    let (mut times, mut bytes) = (0, 0);
    let mut add = |cost: &Cost, each: u64| {
        if cost.routed > 0 {
            times += each * rounds;
            bytes += each * rounds * sent(cost.routed, ranks);
        }
    };
    for part in parts {
        setting.costs.of(part).for_each(|cost| add(cost, 4));
        setting.recomputed(part).for_each(|cost| add(cost, 2));
    }
    vec![Traffic { what: "tokens", axis: "ep", call: "all-to-all", times, bytes, to: None }]
}
