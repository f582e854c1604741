//! Weights that are divided over data ranks, brought together block by block while they are used.
//!
//! When a block's weights are asked for, the next block's are sent for too and arrive while the first are computed
//! with; all others are let go. What is next follows from the order of the blocks and from the direction of the pass
//! alone, so all data ranks make the same calls in the same order, and they have a communicator of their own for them.

use crate::bundle::{Bundle, Gathering};
use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_comm::Comm;
use planaria_tensor::is_recording;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The direction in which blocks are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pass {
    /// First to last.
    #[default]
    Forward,
    /// Last to first.
    Backward,
}

/// The home of what is in no bundle.
const NOWHERE: [usize; 3] = [usize::MAX; 3];

/// A bundle with this rank's parts of it, end to end.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) bundle: Bundle,
    pub(crate) own: Array,
}

/// Where the weights of a block are needed on the way through a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) part: usize,
    pub(crate) block: usize,
    /// After it comes backward.
    pub(crate) turns: bool,
    /// Backward needs the weights too.
    pub(crate) both_ways: bool,
}

/// The weights of this rank's blocks.
#[derive(Debug)]
pub(crate) struct Gatherer {
    comm: Arc<dyn Comm>,
    stops: Vec<Stop>,
    state: Mutex<GatherState>,
}

#[derive(Debug, Default)]
struct GatherState {
    blocks: Vec<Vec<Held>>,
    /// Block, bundle and member of each weight.
    homes: Vec<[usize; 3]>,
    pass: Pass,
    /// The stop that was asked for last.
    at: Option<usize>,
    /// The direction in which the block after it was sent for.
    sent: Pass,
    near: Vec<Near>,
}

/// A block that is here or on its way.
#[derive(Debug)]
struct Near {
    block: usize,
    coming: Vec<Gathering>,
    /// The members of each bundle, once it is here.
    here: Vec<Vec<Array>>,
}

impl Gatherer {
    /// `homes` are block, bundle and member of each weight, `stops` the blocks in the order of forward.
    pub(crate) fn new(
        comm: Arc<dyn Comm>,
        blocks: Vec<Vec<Held>>,
        homes: Vec<[usize; 3]>,
        stops: Vec<Stop>,
    ) -> Gatherer {
        Gatherer { comm, stops, state: Mutex::new(GatherState { blocks, homes, ..GatherState::default() }) }
    }

    /// The bundles of each block.
    pub(crate) fn blocks(&self) -> Vec<Vec<Held>> {
        self.lock().blocks.clone()
    }

    /// Puts other bundles in the place of those of a block. Their members may be numbers past those of the weights, by which they
    /// are asked for then; a weight that is no member any more is not asked for again. Collective over the data ranks.
    pub(crate) fn replace(&self, block: usize, bundles: Vec<Held>) -> Result<()> {
        let state = &mut *self.lock();
        state.at = None;
        let (gone, near) = std::mem::take(&mut state.near).into_iter().partition(|near| near.block == block);
        state.near = near;
        let gone: Vec<Near> = gone;
        gone.into_iter().try_for_each(Near::leave)?;
        let old = std::mem::replace(&mut state.blocks[block], bundles);
        let mut homes = BTreeMap::new();
        for (place, held) in state.blocks[block].iter().enumerate() {
            let members = held.bundle.members.iter().enumerate();
            homes.extend(members.map(|(member, &weight)| (weight, [block, place, member])));
        }
        // Twins have the home of a member.
        for home in state.homes.iter_mut().filter(|home| home[0] == block) {
            let weight = old[home[1]].bundle.members[home[2]];
            *home = homes.get(&weight).copied().unwrap_or(NOWHERE);
        }
        for (weight, home) in homes {
            if state.homes.len() <= weight {
                state.homes.resize(weight + 1, NOWHERE);
            }
            state.homes[weight] = home;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, GatherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says in which direction blocks will be asked for.
    pub(crate) fn enter(&self, pass: Pass) {
        self.lock().pass = pass;
    }

    /// Lets all weights go: they are about to change.
    pub(crate) fn clear(&self) -> Result<()> {
        let state = &mut *self.lock();
        state.at = None;
        state.near.drain(..).try_for_each(Near::leave)
    }

    /// All elements of a weight, in one row. Collective over the data ranks, which ask in the same order.
    pub(crate) fn get(&self, weight: usize) -> Result<Array> {
        let state = &mut *self.lock();
        let known = state.homes.get(weight).filter(|&&home| home != NOWHERE);
        let missing = || Error::Bug { what: format!("weight {weight} is in no bundle") };
        let &[block, bundle, member] = known.ok_or_else(missing)?;
        let at = self.find(state, block)?;
        if (state.at, state.sent) != (Some(at), state.pass) {
            (state.at, state.sent) = (Some(at), state.pass);
            self.move_to(state, block, self.next(at, state.pass))?;
        }
        let near = state.near.iter_mut().find(|near| near.block == block);
        let near = near.ok_or_else(|| Error::Bug { what: format!("block {block} was let go") })?;
        for (gathering, held) in near.coming.drain(..).zip(&state.blocks[block]) {
            near.here.push(held.bundle.members_of(&gathering.finish()?)?);
        }
        Ok(near.here[bundle][member].clone())
    }

    /// The stop of a block: the one we are at, or the nearest one ahead.
    fn find(&self, state: &GatherState, block: usize) -> Result<usize> {
        let is = |&stop: &usize| self.stops[stop].block == block;
        let (count, at) = (self.stops.len(), state.at);
        if let Some(at) = at.filter(is) {
            return Ok(at);
        }
        let found = match state.pass {
            Pass::Forward => {
                let first = at.map_or(0, |at| at + 1);
                (first..count).chain(0..first).find(is)
            }
            Pass::Backward => {
                let last = at.unwrap_or(count);
                (last..count).chain(0..last).rev().find(is)
            }
        };
        found.ok_or_else(|| Error::Bug { what: format!("block {block} is nowhere on the way") })
    }

    /// The block that will be needed after this stop, where that is known.
    fn next(&self, at: usize, pass: Pass) -> Option<usize> {
        let here = self.stops[at];
        let next = match pass {
            Pass::Forward if !here.turns => *self.stops.get(at + 1)?,
            // Nothing comes after a forward without history.
            Pass::Forward if !is_recording() => return None,
            _ => *self.stops.get(at.checked_sub(1)?).filter(|stop| stop.both_ways)?,
        };
        (next.part == here.part).then_some(next.block)
    }

    /// Sends for a block and the next one and lets all others go.
    fn move_to(&self, state: &mut GatherState, block: usize, next: Option<usize>) -> Result<()> {
        let wanted = |b: usize| b == block || Some(b) == next;
        let (keep, leave) = std::mem::take(&mut state.near).into_iter().partition(|near| wanted(near.block));
        state.near = keep;
        let leave: Vec<Near> = leave;
        leave.into_iter().try_for_each(Near::leave)?;
        for block in std::iter::once(block).chain(next) {
            if state.near.iter().all(|near| near.block != block) {
                let start =
                    |held: &Held| held.bundle.start(&self.comm, std::slice::from_ref(&held.own), None);
                let coming = state.blocks[block].iter().map(start).collect::<Result<Vec<_>>>()?;
                state.near.push(Near { block, coming, here: Vec::new() });
            }
        }
        Ok(())
    }
}

impl Near {
    /// The end of it here; what was sent for in vain must still come.
    fn leave(self) -> Result<()> {
        self.coming.into_iter().try_for_each(|gathering| gathering.finish().map(drop))
    }
}

#[cfg(test)]
mod tests;
