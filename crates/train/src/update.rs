//! The end of a step: tied sums together, the norm over everything, the optimizer on the own ranges, weights back.

use crate::config::{OptimKind, OptimSection};
use crate::error::{Error, Result};
use crate::replica::Replica;
use crate::weights::{Tie, Weight, WeightState, Zero, gather};
use planaria_array::Array;
use planaria_array::ops::{AdamW, AdamWArrays, Binary, Sgd, SgdArrays};
use planaria_comm::{AllGather, Call, Comm, CommExt, Pending, Recv, Send};
use std::sync::Arc;

/// Tag of the sums that the stages of a tied pair exchange.
const TIE_TAG: u32 = 0x7e1d;

/// Names of the optimizer's arrays, as checkpoints have them.
pub(crate) fn slots(optim: &OptimSection) -> &'static [&'static str] {
    match optim.kind {
        OptimKind::Adamw => &["moment1_0", "moment2_0"],
        OptimKind::Sgd if optim.momentum > 0.0 => &["velocity_0"],
        OptimKind::Sgd => &[],
    }
}

/// Adds the sums of tied pairs, embedding first. Collective over the two stages of a pair.
pub(crate) fn join_tied(replica: &Replica, world: &Arc<dyn Comm>, sums: &mut [Array]) -> Result<()> {
    let lane_of = |weight: usize| replica.lanes.iter().position(|&w| w == weight);
    for lane in 0..sums.len() {
        match replica.weights[replica.lanes[lane]].tie {
            Tie::None => {}
            Tie::Into(twin) => {
                let home = lane_of(twin).ok_or_else(|| Error::Bug { what: "one of two twins is frozen".into() })?;
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
    for decays in [true, false] {
        let group: Vec<&Move<'_>> = moves.iter().filter(|m| m.weight.decays() == decays).collect();
        let weight_decay = if decays { optim.weight_decay } else { 0.0 };
        match optim.kind {
            OptimKind::Adamw => adamw(optim, rates, weight_decay, &group)?,
            OptimKind::Sgd => sgd(optim, rates, weight_decay, &group)?,
        }
    }
    if let Some(decay) = optim.ema {
        moves.iter().try_for_each(|m| average(m, decay))?;
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
    fn slot(&self, name: &str) -> Option<&Array> {
        self.state.slots.iter().find(|(slot, _)| *slot == name).map(|(_, array)| array)
    }
}

fn adamw(optim: &OptimSection, rates: Rates, weight_decay: f64, group: &[&Move<'_>]) -> Result<()> {
    let OptimSection { beta1, beta2, eps, .. } = *optim;
    let options = AdamW { lr: rates.lr, beta1, beta2, eps, weight_decay, grad_scale: rates.scale };
    let arrays = |m: &&Move<'_>| {
        let (exp_avg, exp_avg_sq) = (m.slot("moment1_0")?, m.slot("moment2_0")?);
        // The borrow ends with the list; the arrays are handles.
        Some((m.values.clone(), m.grad.clone(), exp_avg.clone(), exp_avg_sq.clone(), m.state.master.clone()))
    };
    let handles: Option<Vec<_>> = group.iter().map(arrays).collect();
    let handles = handles.ok_or_else(|| Error::Bug { what: "AdamW without its moments".into() })?;
    let list: Vec<AdamWArrays<'_>> = handles
        .iter()
        .map(|(param, grad, exp_avg, exp_avg_sq, master)| AdamWArrays {
            param,
            grad,
            exp_avg,
            exp_avg_sq,
            max_exp_avg_sq: None,
            master: master.as_ref(),
        })
        .collect();
    Ok(options.step(rates.number, &list)?)
}

fn sgd(optim: &OptimSection, rates: Rates, weight_decay: f64, group: &[&Move<'_>]) -> Result<()> {
    let momentum = optim.momentum;
    let options = Sgd { lr: rates.lr, momentum, weight_decay, grad_scale: rates.scale, ..Sgd::default() };
    let arrays = |m: &&Move<'_>| (m.values.clone(), m.grad.clone(), m.slot("velocity_0").cloned(), m.state.master.clone());
    let handles: Vec<_> = group.iter().map(arrays).collect();
    let list: Vec<SgdArrays<'_>> = handles
        .iter()
        .map(|(param, grad, velocity, master)| SgdArrays {
            param,
            grad,
            velocity: velocity.as_ref(),
            master: master.as_ref(),
        })
        .collect();
    Ok(options.step(rates.number, &list)?)
}

/// The running average goes a step towards the weights.
fn average(m: &Move<'_>, decay: f64) -> Result<()> {
    let Some(ema) = &m.state.ema else { return Ok(()) };
    let now = m.state.master.as_ref().unwrap_or(&m.values);
    let decay = Array::scalar(decay as f32, ema.dtype())?;
    let rest = Array::scalar(1.0f32 - decay.item()?.as_f64() as f32, ema.dtype())?;
    let towards = now.cast(ema.dtype())?.mul(&rest)?;
    ema.binary_in_place(Binary::Mul, &decay)?;
    Ok(ema.binary_in_place(Binary::Add, &towards)?)
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
