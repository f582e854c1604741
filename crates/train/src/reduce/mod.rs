//! Sums of gradients over micro-batches and data ranks, in one order for every way to split a batch.
//!
//! A step has micro-batches `0..M`; with `D` data ranks, rank `r` computes those with `i = k * D + r`. The sum of a
//! parameter is the left fold `((g_0 + g_1) + g_2) + ...` in f32. After round `k` each rank sends every owner its part
//! of the gradients, and the owner adds the `D` contributions to its accumulator in rank order: that is the same fold,
//! whatever `D` is, so the bits are the same.
//!
//! Gradients arrive one by one while backward still runs. They are packed in buckets in a fixed order (last parameter
//! first), and a full bucket is sent at once; what has arrived is added while backward continues. No more than two
//! buckets are under way: the next one waits until the first has come.

mod fold;
mod micro;
#[cfg(test)]
mod tests;

use crate::config::Reduction;
use crate::error::{Error, Result};
use fold::{Flight, Fold};
use micro::Micro;
use planaria_array::{Array, DType, Device, ops};
use planaria_comm::{AllToAll, Call, Comm, CommExt};
use planaria_layout::Share;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers to receive in that are kept for the next buckets: fresh memory would first be filled with zeros.
const SPARE: usize = 2;

/// Buckets on their way at once. A rank that is ahead of the others waits, or what it has sent would pile up: memory would follow
/// from how far ranks drift apart.
pub(crate) const IN_FLIGHT: usize = 2;

/// One parameter's gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// How this rank's piece is shared out.
    pub share: Share,
    /// Dtype of its gradients.
    pub dtype: DType,
}

/// How gradients are summed.
#[derive(Clone, Copy, Debug)]
pub struct ReduceOptions {
    /// After each micro-batch, or once a step.
    pub mode: Reduction,
    /// Bytes of a bucket; a longer gradient has one to itself.
    pub bucket_bytes: usize,
    /// Where gradients and sums are.
    pub device: Device,
}

/// The sums of one step under way.
#[derive(Debug)]
pub struct Reducer {
    comm: Arc<dyn Comm>,
    lanes: Vec<Lane>,
    buckets: Vec<Vec<usize>>,
    /// The bucket of each lane.
    home: Vec<usize>,
    /// Elements that all buckets within the limit find room in, when they are received.
    room: usize,
    mode: Reduction,
    device: Device,
    state: Mutex<ReduceState>,
}

#[derive(Debug, Default)]
struct ReduceState {
    /// Gradients of rounds that are not yet sent in full.
    micros: BTreeMap<usize, Micro>,
    /// The round whose turn it is.
    round: usize,
    /// Buckets of that round already sent.
    sent: usize,
    flying: VecDeque<Flight>,
    /// Of each lane, where nothing is sent or not yet.
    sums: Vec<Fold>,
    /// This rank's parts of each bucket, end to end.
    parts: Vec<Fold>,
    /// Buffers to receive in.
    spare: Vec<Array>,
    /// Gradients that arrive now are not wanted: only inputs are differentiated.
    muted: bool,
}

impl Reducer {
    /// Sums over the ranks of `comm`, whose positions are data ranks.
    pub fn new(comm: Arc<dyn Comm>, lanes: &[Lane], options: ReduceOptions) -> Reducer {
        let buckets = buckets(lanes, options.bucket_bytes);
        let mut home = vec![0; lanes.len()];
        for (bucket, members) in buckets.iter().enumerate() {
            members.iter().for_each(|&lane| home[lane] = bucket);
        }
        let state = Mutex::new(ReduceState::default());
        let own = |lane: &usize| lanes[*lane].share.range(comm.rank()).len() * comm.size();
        let received = buckets.iter().filter(|members| members.len() > 1).map(|m| m.iter().map(own).sum());
        let room = received.max().unwrap_or(0);
        let lanes = lanes.to_vec();
        let ReduceOptions { mode, device, .. } = options;
        let reducer = Reducer { comm, lanes, buckets, home, room, mode, device, state };
        reducer.reset();
        reducer
    }

    fn lock(&self) -> MutexGuard<'_, ReduceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything: the next step, or one after a failure.
    pub fn reset(&self) {
        let folds = |count: usize| (0..count).map(|_| Fold::default()).collect();
        let (sums, parts) = (folds(self.lanes.len()), folds(self.buckets.len()));
        let state = &mut *self.lock();
        *state =
            ReduceState { sums, parts, spare: std::mem::take(&mut state.spare), ..ReduceState::default() };
    }

    /// While it is set, gradients are not taken.
    pub fn mute(&self, muted: bool) {
        self.lock().muted = muted;
    }

    /// A parameter is used in round `round`, with history: a gradient will come.
    pub fn expect(&self, round: usize, lane: usize) {
        let mut state = self.lock();
        if !state.muted {
            let count = self.lanes.len();
            state.micros.entry(round).or_insert_with(|| Micro::new(count)).expect(lane);
        }
    }

    /// A gradient has come: this rank's piece, in any shape. Buckets that are complete are sent. Collective in effect:
    /// the ranks give the same lanes in the same order.
    pub fn give(&self, round: usize, lane: usize, grad: &Array) -> Result<()> {
        let state = &mut *self.lock();
        if state.muted {
            return Ok(());
        }
        let late = round < state.round || (round == state.round && self.home[lane] < state.sent);
        if late {
            let what =
                format!("a gradient of parameter {lane} came after the sum of its micro-batch was sent");
            return Err(Error::Bug { what });
        }
        let flat = grad.contiguous()?.reshape(&[self.lanes[lane].share.numel()])?;
        let count = self.lanes.len();
        state.micros.entry(round).or_insert_with(|| Micro::new(count)).give(lane, flat)?;
        if round == state.round {
            while state.sent < self.buckets.len() && self.is_complete(state, round) {
                self.send(state)?;
            }
        }
        self.add_arrived(state)
    }

    fn is_complete(&self, state: &ReduceState, round: usize) -> bool {
        state
            .micros
            .get(&round)
            .is_some_and(|m| self.buckets[state.sent].iter().all(|&lane| m.is_complete(lane)))
    }

    /// Backward of a round has ended: what did not come is zero.
    pub fn finish_round(&self, round: usize) -> Result<()> {
        let state = &mut *self.lock();
        let count = self.lanes.len();
        state.micros.entry(round).or_insert_with(|| Micro::new(count)).ended = true;
        while state.micros.get(&state.round).is_some_and(|m| m.ended) {
            while state.sent < self.buckets.len() {
                self.send(state)?;
            }
            let done = state.round;
            state.micros.remove(&done);
            (state.round, state.sent) = (done + 1, 0);
        }
        self.add_arrived(state)
    }

    /// The sums of the step: this rank's range of each lane, in f32, or of one rank's only micro-batch as it came. Collective; the
    /// next step may begin.
    pub fn finish_step(&self, rounds: usize) -> Result<Vec<Array>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if !self.lanes.is_empty() && (state.round != rounds || !state.micros.is_empty()) {
            let what = format!("{} of {rounds} rounds were summed at the end of the step", state.round);
            return Err(Error::Bug { what });
        }
        if self.mode == Reduction::Step && self.comm.size() > 1 {
            for bucket in 0..self.buckets.len() {
                let members = self.buckets[bucket].iter();
                let whole =
                    members.map(|&lane| state.sums[lane].take(self.lanes[lane].share.numel(), self.device));
                let whole = whole.collect::<Result<Vec<_>>>()?;
                let flight = self.launch(state, bucket, &whole)?;
                state.flying.push_back(flight);
            }
        }
        while let Some(flight) = state.flying.pop_front() {
            self.land(state, flight)?;
        }
        let sums = self.take_sums(state);
        drop(guard);
        self.reset();
        sums
    }

    /// This rank's range of each lane.
    fn take_sums(&self, state: &mut ReduceState) -> Result<Vec<Array>> {
        if self.comm.size() == 1 {
            let take = |lane: usize| state.sums[lane].take(self.lanes[lane].share.numel(), self.device);
            return (0..self.lanes.len()).map(take).collect();
        }
        let mut sums: Vec<Option<Array>> = vec![None; self.lanes.len()];
        for (members, part) in self.buckets.iter().zip(&mut state.parts) {
            let part = part.take(members.iter().map(|&lane| self.own(lane)).sum(), self.device)?;
            let mut at = 0;
            for &lane in members {
                sums[lane] = Some(part.narrow(0, at, self.own(lane))?);
                at += self.own(lane);
            }
        }
        let lost = || Error::Bug { what: "a parameter is in no bucket".into() };
        sums.into_iter().map(|sum| sum.ok_or_else(lost)).collect()
    }

    /// Elements of a lane that this rank owns.
    fn own(&self, lane: usize) -> usize {
        self.lanes[lane].share.range(self.comm.rank()).len()
    }

    /// Sends the next bucket of the round whose turn it is, or adds it here where nothing is to be sent.
    fn send(&self, state: &mut ReduceState) -> Result<()> {
        let bucket = state.sent;
        state.sent += 1;
        let micro = state.micros.get_mut(&state.round);
        let micro = micro.ok_or_else(|| Error::Bug { what: "a round was sent that never began".into() })?;
        let mut grads = Vec::with_capacity(self.buckets[bucket].len());
        for &lane in &self.buckets[bucket] {
            let Lane { share, dtype } = &self.lanes[lane];
            grads.push(match micro.take(lane) {
                Some(grad) => grad,
                None => Array::zeros_on(&[share.numel()], *dtype, self.device)?,
            });
        }
        if self.comm.size() == 1 || self.mode == Reduction::Step {
            // A device would read and write every gradient once more to widen it; the optimizer does that as it reads.
            let lazily = self.comm.size() == 1 && self.device != Device::Cpu;
            for (&lane, grad) in self.buckets[bucket].iter().zip(&grads) {
                let sum = &mut state.sums[lane];
                if lazily { sum.add_lazily(grad)? } else { sum.add(grad)? }
            }
            return Ok(());
        }
        let flight = self.launch(state, bucket, &grads)?;
        state.flying.push_back(flight);
        Ok(())
    }

    /// Begins to bring every owner its part of a bucket.
    fn launch(&self, state: &mut ReduceState, bucket: usize, grads: &[Array]) -> Result<Flight> {
        while state.flying.len() >= IN_FLIGHT
            && let Some(first) = state.flying.pop_front()
        {
            self.land(state, first)?;
        }
        let (members, size, rank) = (&self.buckets[bucket], self.comm.size(), self.comm.rank());
        let (mut parts, mut send_counts) =
            (Vec::with_capacity(members.len() * size), Vec::with_capacity(size));
        for owner in 0..size {
            let mut count = 0;
            for (&lane, grad) in members.iter().zip(grads) {
                let range = self.lanes[lane].share.range(owner);
                count += range.len();
                parts.push(grad.narrow(0, range.start, range.len())?);
            }
            send_counts.push(count);
        }
        let send = ops::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
        let (buffer, recv) = self.receiver(state, send_counts[rank] * size, send.dtype())?;
        let recv_counts = vec![send_counts[rank]; size];
        let call = AllToAll { send, send_counts, recv: recv.clone(), recv_counts };
        Ok(Flight { bucket, pending: self.comm.start(Call::AllToAll(call))?, buffer, recv })
    }

    /// A place for this many elements in a buffer, a used one if there is one.
    fn receiver(&self, state: &mut ReduceState, numel: usize, dtype: DType) -> Result<(Array, Array)> {
        let room = self.room.max(numel);
        let fits = |array: &Array| array.numel() == room && array.dtype() == dtype;
        let buffer = match state.spare.iter().position(fits) {
            Some(place) => state.spare.swap_remove(place),
            None => Array::empty_on(&[room], dtype, self.device)?,
        };
        let recv = buffer.narrow(0, 0, numel)?;
        Ok((buffer, recv))
    }

    /// Adds what has arrived in the meantime, in the order it was sent.
    fn add_arrived(&self, state: &mut ReduceState) -> Result<()> {
        while state.flying.front().is_some_and(|flight| flight.pending.is_done()) {
            if let Some(flight) = state.flying.pop_front() {
                self.land(state, flight)?;
            }
        }
        Ok(())
    }

    /// Adds the contributions of one bucket in rank order.
    fn land(&self, state: &mut ReduceState, flight: Flight) -> Result<()> {
        flight.pending.wait()?;
        let own = flight.recv.numel() / self.comm.size();
        let parts = (0..self.comm.size()).map(|rank| flight.recv.narrow(0, rank * own, own));
        state.parts[flight.bucket].add_all(&parts.collect::<planaria_array::Result<Vec<_>>>()?)?;
        if state.spare.len() < SPARE && flight.buffer.numel() == self.room {
            state.spare.push(flight.buffer);
        }
        Ok(())
    }
}

/// Of all gradients, what a bucket has at most: what is in flight stays small beside the rest, also where the model is small.
const SHARE: usize = 32;
/// A bucket may always have as many bytes: smaller messages would cost more than they carry.
const LEAST: usize = 1 << 16;

/// Lanes in buckets of at most this many bytes and one dtype, the last lane first: backward reaches it first. A longer lane has one to
/// itself.
pub(crate) fn buckets(lanes: &[Lane], limit: usize) -> Vec<Vec<usize>> {
    let bytes = |lane: &Lane| lane.share.numel().saturating_mul(lane.dtype.size());
    let total = lanes.iter().map(bytes).fold(0, usize::saturating_add);
    let limit = limit.min((total / SHARE).max(LEAST));
    let mut all: Vec<Vec<usize>> = Vec::new();
    let (mut bytes, mut dtype) = (0, None);
    for (lane, Lane { share, dtype: own }) in lanes.iter().enumerate().rev() {
        let more = share.numel().saturating_mul(own.size());
        match all.last_mut() {
            Some(bucket) if bytes + more <= limit && dtype == Some(*own) => {
                bucket.push(lane);
                bytes += more;
            }
            _ => {
                all.push(vec![lane]);
                (bytes, dtype) = (more, Some(*own));
            }
        }
    }
    all
}
