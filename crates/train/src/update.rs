//! The end of a step: tied sums together, the norm over everything, the optimizer on the own ranges, weights back.

use crate::config::{OptimKind, OptimSection};
use crate::error::{Error, Result};
use crate::replica::Replica;
use crate::weights::{Tie, Weight, WeightState, Zero, gather};
use planaria_array::Array;
use planaria_array::ops::Binary;
use planaria_comm::{AllGather, Call, Comm, CommExt, Pending, Recv, Send};
use planaria_nn::optim::{AdamW, Ema, Rule, Sgd, Shard};
use std::sync::Arc;

/// Tag of the sums that the stages of a tied pair exchange.
const TIE_TAG: u32 = 0x7e1d;

/// The optimizer that `[optim]` asks for.
pub(crate) fn rule(optim: &OptimSection) -> Rule {
    let OptimSection { beta1, beta2, eps, weight_decay, momentum, lr, .. } = *optim;
    match optim.kind {
        OptimKind::Adamw => Rule::AdamW(AdamW { lr, beta1, beta2, eps, weight_decay, ..AdamW::default() }),
        OptimKind::Sgd => Rule::Sgd(Sgd { lr, momentum, weight_decay, ..Sgd::default() }),
    }
}

/// Adds the sums of tied pairs, embedding first. Collective over the two stages of a pair.
pub(crate) fn join_tied(replica: &Replica, world: &Arc<dyn Comm>, sums: &mut [Array]) -> Result<()> {
    let lane_of = |weight: usize| replica.lanes.iter().position(|&w| w == weight);
    for lane in 0..sums.len() {
        match replica.weights[replica.lanes[lane]].tie {
            Tie::None => {}
            Tie::Into(twin) => {
                let home =
                    lane_of(twin).ok_or_else(|| Error::Bug { what: "one of two twins is frozen".into() })?;
                sums[home].binary_in_place(Binary::Add, &sums[lane])?;
            }
            Tie::Across { peer, first } => {
                let place = |rank| world.ranks().iter().position(|&r| r == rank);
                let to = place(peer).ok_or_else(|| Error::Bug { what: format!("no rank {peer}") })?;
                let theirs = sums[lane].zeros_like()?;
                let recv = world.start(Call::Recv(Recv { data: theirs.clone(), from: to, tag: TIE_TAG }))?;
                world.send(Send { data: sums[lane].copy()?, to, tag: TIE_TAG })?;
                recv.wait()?;
                let (a, b) = if first { (&sums[lane], &theirs) } else { (&theirs, &sums[lane]) };
                sums[lane] = a.add(b)?;
            }
        }
    }
    Ok(())
}

/// The lanes whose sums this rank adds to the global norm.
pub(crate) fn counted(replica: &Replica) -> impl Iterator<Item = usize> + '_ {
    let counts = |lane: &usize| {
        let weight = &replica.weights[replica.lanes[*lane]];
        weight.counted && !matches!(weight.tie, Tie::Into(_) | Tie::Across { first: false, .. })
    };
    (0..replica.lanes.len()).filter(counts)
}

/// How the optimizer moves in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    /// Number of the update, from 1.
    pub(crate) number: u64,
    pub(crate) lr: f64,
    /// Factor on the sums: the clip coefficient over count and loss scale.
    pub(crate) scale: f64,
}

/// Moves the weights. Collective over the data ranks.
pub(crate) fn apply(
    replica: &Replica,
    data: &Arc<dyn Comm>,
    zero: Zero,
    sums: &[Array],
    optim: &OptimSection,
    rates: Rates,
) -> Result<()> {
    let mut moves = Vec::with_capacity(sums.len());
    for (sum, &place) in sums.iter().zip(&replica.lanes) {
        let weight = &replica.weights[place];
        let Some(state) = &weight.state else { continue };
        let grad = if zero == Zero::Off { gather(data, weight.share, sum)? } else { sum.clone() };
        moves.push(Move { weight, state, grad, values: weight.values(&state.range)? });
    }
    let shards: Vec<Shard<'_>> = moves.iter().map(Move::shard).collect();
    rule(optim).step(rates.number, rates.lr, rates.scale, &shards)?;
    if let Some(decay) = optim.ema {
        let ema = Ema::new(decay)?;
        for m in &moves {
            let now = m.state.optim.master.as_ref().unwrap_or(&m.values);
            m.state.ema.as_ref().map_or(Ok(()), |mean| ema.update(mean, now))?;
        }
    }
    if matches!(zero, Zero::States | Zero::Gradients) && data.size() > 1 {
        spread(data, &moves)?;
    }
    Ok(())
}

/// One parameter about to move.
struct Move<'a> {
    weight: &'a Weight,
    state: &'a WeightState,
    grad: Array,
    values: Array,
}

impl Move<'_> {
    fn shard(&self) -> Shard<'_> {
        let kind = self.weight.spec.kind;
        Shard { param: &self.values, grad: &self.grad, state: &self.state.optim, kind }
    }
}

/// Every data rank gets the ranges that the others have moved.
fn spread(data: &Arc<dyn Comm>, moves: &[Move<'_>]) -> Result<()> {
    let mut open: Vec<Pending> = Vec::with_capacity(moves.len());
    for m in moves {
        if let Some(full) = &m.weight.full {
            let recv_counts = m.weight.share.counts();
            let call = AllGather { send: m.weight.part.clone(), recv: full.clone(), recv_counts };
            open.push(data.start(Call::AllGather(call))?);
        }
    }
    open.into_iter().try_for_each(|pending| Ok(pending.wait()?))
}
