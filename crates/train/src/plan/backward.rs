//! Moments of backward: what is there while gradients arrive, are sent and are summed, and activations go.
//!
//! Gradients of a micro-batch come segment by segment, the last one first. Where there is one data rank they become sums at once; else
//! a full bucket is packed to be sent, with room to receive, and no more than a window of buckets is in flight.

use super::Setting;
use super::state::{self, Piece};
use crate::config::{Reduction, Sharding};
use crate::error::Result;
use crate::reduce::{IN_FLIGHT, Lane, buckets};
use crate::weights::Zero;
use planaria_layout::{DType, Share};
use planaria_nn::models::Stage;

/// Gradients of one part of the model on one rank.
pub(super) struct Gradients {
    /// Bytes of the sums.
    pub(super) sums: u64,
    /// Buffers to receive in, which stay for the next buckets.
    pub(super) spare: u64,
    /// By segment, the last one first.
    arrivals: Vec<Arrival>,
}

/// What one segment's gradients do.
#[derive(Clone, Copy, Debug, Default)]
struct Arrival {
    /// Bytes of its sums.
    sums: u64,
    /// Bytes of its largest bucket.
    bucket: u64,
}

/// What one segment keeps, and needs besides in backward.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    pub(super) saved: u64,
    pub(super) besides: u64,
}

/// The most that backward needs above what is there when it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Peaks {
    /// Of the first micro-batch of a step, its sums included.
    pub(super) first: u64,
    /// Of the others, whose sums are there already.
    pub(super) later: u64,
}

impl Gradients {
    pub(super) fn of(setting: &Setting<'_>, part: &Stage) -> Result<Gradients> {
        let mut pieces = state::largest_pieces(setting, &[part])?;
        pieces.retain(|piece| piece.trained);
        let dtype = if setting.computed() == 2 { DType::BF16 } else { DType::F32 };
        let lane = |piece: &Piece| Lane { share: Share::even(piece.numel, setting.data_ranks), dtype };
        let lanes: Vec<Lane> = pieces.iter().map(lane).collect();
        let made = buckets(&lanes, setting.config.train.bucket_bytes);
        let bytes = |members: &Vec<usize>| {
            members.iter().map(|&lane| pieces[lane].numel as u64 * setting.computed()).sum::<u64>()
        };
        let shared: Vec<u64> = made.iter().filter(|members| members.len() > 1).map(bytes).collect();
        // Where a block is sharded as one, a whole bucket may be one rank's, which receives it from every other.
        let flat = setting.config.train.shard == Sharding::Flat;
        let received = if flat { setting.data_ranks as u64 } else { 1 };
        let spare = match setting.data_ranks {
            1 => 0,
            _ => received * shared.iter().max().unwrap_or(&0) * shared.len().min(IN_FLIGHT) as u64,
        };
        let segments = segments(part, &pieces);
        let count = part.layers.len() + 2;
        let mut arrivals = vec![Arrival::default(); count];
        for (piece, &segment) in pieces.iter().zip(&segments) {
            arrivals[segment].sums += summed(setting, piece);
        }
        for members in &made {
            // A bucket goes with the last of its members.
            if let Some(last) = members.iter().map(|&lane| segments[lane]).max() {
                arrivals[last].bucket = arrivals[last].bucket.max(bytes(members));
            }
        }
        Ok(Gradients { sums: arrivals.iter().map(|arrival| arrival.sums).sum(), spare, arrivals })
    }

    /// What backward needs where segments keep so much, the last one first.
    pub(super) fn peaks(&self, setting: &Setting<'_>, kept: &[Kept]) -> Peaks {
        let saved: u64 = kept.iter().map(|kept| kept.saved).sum();
        let (mut left, mut sums, mut found) = (saved, 0, Peaks::default());
        for (kept, arrival) in kept.iter().zip(&self.arrivals) {
            let flight = arrival.bucket * copies(setting);
            let inside = left + kept.besides + flight / 2;
            left -= kept.saved;
            let after = left + flight / 2;
            let first = (inside + sums).max(after + sums + arrival.sums);
            found.first = found.first.max(first.saturating_sub(saved));
            found.later = found.later.max(inside.max(after).saturating_sub(saved));
            sums += arrival.sums;
        }
        found
    }
}

/// Halves of a bucket that are there while it is under way: its gradients, what is packed to be sent, what is received in; the one
/// before it may still be on its way.
fn copies(setting: &Setting<'_>) -> u64 {
    if setting.data_ranks == 1 || sums_whole(setting) { 2 } else { 7 }
}

/// True where a rank sums its own micro-batches first.
fn sums_whole(setting: &Setting<'_>) -> bool {
    let train = &setting.config.train;
    train.reduce == Reduction::Step && Zero::from(train.zero) < Zero::Gradients
}

/// Bytes of the sum of a parameter's gradients. Each use of a value has sums of its own, also where the value is shared.
pub(super) fn summed(setting: &Setting<'_>, piece: &Piece) -> u64 {
    if !piece.trained {
        return 0;
    }
    4 * if sums_whole(setting) { piece.numel } else { piece.own } as u64
}

/// The segment of each parameter: 0 for what stands after the blocks, then the blocks from the last to the first, then what stands
/// before them.
fn segments(part: &Stage, pieces: &[Piece]) -> Vec<usize> {
    let before = part.layers.len() + 1;
    let first = pieces.iter().position(|piece| piece.layer.is_some());
    let place = |(i, piece): (usize, &Piece)| match piece.layer {
        Some(layer) => part.layers.end.saturating_sub(layer).clamp(1, before),
        None if first.map_or(piece.looked_up, |first| i < first) => before,
        None => 0,
    };
    pieces.iter().enumerate().map(place).collect()
}
