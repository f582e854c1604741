//! The end of a step: tied sums together, the norm over everything, the optimizer on the own ranges, weights back.

use crate::bundle::{Bundle, Gathering};
use crate::config::{OptimKind, OptimSection};
use crate::error::{Error, Result};
use crate::replica::Replica;
use crate::weights::{Tie, Weight, WeightState, Zero};
use planaria_array::ops::Binary;
use planaria_array::{Array, DType};
use planaria_comm::{Call, Comm, CommExt, Recv, Send};
use planaria_nn::optim::{AdamW, Rule, Sgd, Shard};
use std::collections::VecDeque;
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
    for lane in 0..sums.len() {
        match replica.weights[replica.lanes[lane]].tie {
            Tie::None => {}
            Tie::Into(twin) => {
                let home = replica
                    .lane_of(twin)
                    .ok_or_else(|| Error::Bug { what: "one of two twins is frozen".into() })?;
                sums[home] = wide(&sums[home])?;
                sums[home].binary_in_place(Binary::Add, &wide(&sums[lane])?)?;
            }
            Tie::Across { peer, first } => {
                sums[lane] = wide(&sums[lane])?;
                let place = |rank| world.ranks().iter().position(|&r| r == rank);
                let to = place(peer).ok_or_else(|| Error::Bug { what: format!("no rank {peer}") })?;
                let theirs = Array::empty_on(sums[lane].shape(), sums[lane].dtype(), sums[lane].device())?;
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

/// A sum in f32, where it is narrower.
fn wide(sum: &Array) -> Result<Array> {
    Ok(if sum.dtype() == DType::F32 { sum.clone() } else { sum.cast(DType::F32)? })
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
    pub(crate) first: Rate,
    /// That of a second model beside the first.
    pub(crate) second: Option<Rate>,
}

/// How one model moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) lr: f64,
    /// Factor on the sums: the clip coefficient over count and loss scale.
    pub(crate) scale: f64,
}

/// Bundles that are in flight while another is moved. A rank that is ahead waits, or its messages would pile up.
pub(crate) const AHEAD: usize = 2;

/// Moves the weights. Collective over the data ranks.
pub(crate) fn apply(
    replica: &Replica,
    data: &Arc<dyn Comm>,
    sums: &[Array],
    optims: [&OptimSection; 2],
    rates: Rates,
) -> Result<()> {
    let step = Step { replica, data, sums, optims, rates };
    let bundles = || replica.bundles.iter().filter(|b| replica.weights[b.members[0]].state.is_some());
    if data.size() == 1 || replica.zero == Zero::Weights {
        return step.move_all(bundles().map(|bundle| step.moves(bundle, None)).collect::<Result<Vec<_>>>()?);
    }
    let mut open = VecDeque::new();
    if replica.zero == Zero::Off {
        for bundle in bundles() {
            open.push_back((bundle, bundle.start(data, &step.sums_of(bundle)?, None)?));
            if open.len() > AHEAD {
                step.move_whole(&mut open)?;
            }
        }
        while !open.is_empty() {
            step.move_whole(&mut open)?;
        }
        return Ok(());
    }
    for bundle in bundles() {
        step.move_all(vec![step.moves(bundle, None)?])?;
        open.push_back((bundle, step.spread(bundle)?));
        if open.len() > AHEAD {
            step.settle_first(&mut open)?;
        }
    }
    while !open.is_empty() {
        step.settle_first(&mut open)?;
    }
    Ok(())
}

/// The update of one step.
struct Step<'a> {
    replica: &'a Replica,
    data: &'a Arc<dyn Comm>,
    sums: &'a [Array],
    /// Of the model, and of a second one beside it.
    optims: [&'a OptimSection; 2],
    rates: Rates,
}

impl<'a> Step<'a> {
    /// The sums of a bundle's members: this rank's ranges.
    fn sums_of(&self, bundle: &Bundle) -> Result<Vec<Array>> {
        let sum = |&weight: &usize| self.replica.lane_of(weight).map(|lane| self.sums[lane].clone());
        let none = || Error::Bug { what: "a parameter that is updated has no gradient".into() };
        bundle.members.iter().map(|weight| sum(weight).ok_or_else(none)).collect()
    }

    /// The members of a bundle with their gradients.
    fn moves(&self, bundle: &Bundle, grads: Option<Vec<Array>>) -> Result<Vec<Move<'a>>> {
        let grads = grads.map_or_else(|| self.sums_of(bundle), Ok)?;
        let mut moves = Vec::with_capacity(grads.len());
        for (grad, &weight) in grads.into_iter().zip(&bundle.members) {
            let weight = &self.replica.weights[weight];
            let Some(state) = &weight.state else { continue };
            moves.push(Move { weight, state, grad, values: weight.values(&state.range)? });
        }
        Ok(moves)
    }

    fn move_all(&self, moves: Vec<Vec<Move<'_>>>) -> Result<()> {
        let moves: Vec<Move<'_>> = moves.into_iter().flatten().collect();
        let Rates { number, first, second } = self.rates;
        let (beside, own): (Vec<&Move<'_>>, Vec<&Move<'_>>) =
            moves.iter().partition(|one| second.is_some() && one.weight.is_second());
        let both = [(first, own), (second.unwrap_or(first), beside)];
        for (optim, (Rate { lr, scale }, moves)) in self.optims.into_iter().zip(both) {
            let shards: Vec<Shard<'_>> = moves.into_iter().map(Move::shard).collect();
            rule(optim).step(number, lr, scale, &shards)?;
        }
        Ok(())
    }

    /// Moves the members of the bundle that was sent first, whose whole gradients have come.
    fn move_whole(&self, open: &mut VecDeque<(&Bundle, Gathering)>) -> Result<()> {
        let Some((bundle, gathering)) = open.pop_front() else { return Ok(()) };
        let grads = bundle.members_of(&gathering.finish()?)?;
        self.move_all(vec![self.moves(bundle, Some(grads))?])
    }

    /// Begins to give every data rank the ranges that the others have moved.
    fn spread(&self, bundle: &Bundle) -> Result<Gathering> {
        let parts = || bundle.members.iter().map(|&weight| self.replica.weights[weight].part.clone());
        match &bundle.whole {
            Some(whole) => {
                let own = bundle.own(self.data.rank());
                let own = own.ok_or_else(|| Error::Bug { what: "a straight bundle has gaps".into() })?;
                bundle.start(self.data, &[whole.narrow(0, own.start, own.len())?], Some(whole.clone()))
            }
            None => bundle.start(self.data, &parts().collect::<Vec<_>>(), None),
        }
    }

    /// Waits for the bundle that was sent first and puts what has come packed in its places.
    fn settle_first(&self, open: &mut VecDeque<(&Bundle, Gathering)>) -> Result<()> {
        let Some((bundle, gathering)) = open.pop_front() else { return Ok(()) };
        let recv = gathering.finish()?;
        if bundle.whole.is_some() {
            return Ok(());
        }
        for (member, &weight) in bundle.members.iter().enumerate() {
            let full = self.replica.weights[weight].full.as_ref();
            let full =
                full.ok_or_else(|| Error::Bug { what: "weights that are not here were moved".into() })?;
            for (range, part) in bundle.parts_of(member, &recv)? {
                full.narrow(0, range.start, range.len())?.copy_from(&part)?;
            }
        }
        Ok(())
    }
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
