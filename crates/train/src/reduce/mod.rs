//! Sums of gradients over micro-batches and data ranks, in one order for every way to split a batch.
//!
//! A step has micro-batches `0..M`; with `D` data ranks, rank `r` computes those with `i = k * D + r`. The sum of a
//! parameter is the left fold `((g_0 + g_1) + g_2) + ...` in f32. After round `k` each rank sends every owner its part
//! of the gradients, and the owner adds the `D` contributions to its accumulator in rank order: that is the same fold,
//! whatever `D` is, so the bits are the same.
//!
//! Gradients arrive one by one while backward still runs. They are packed in buckets in a fixed order (last parameter
//! first), and a full bucket is sent at once; what has arrived is added while backward goes on.

mod fold;
mod micro;
#[cfg(test)]
mod tests;

use crate::config::Reduction;
use crate::error::{Error, Result};
use crate::share::Share;
use fold::{Flight, Fold};
use micro::Micro;
use planaria_array::{Array, DType, ops};
use planaria_comm::{AllToAll, Call, Comm, CommExt};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One parameter's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Elements of this rank's piece.
    pub numel: usize,
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
}

/// The sums of one step under way.
#[derive(Debug)]
pub struct Reducer {
    comm: Arc<dyn Comm>,
    lanes: Vec<Lane>,
    shares: Vec<Share>,
    buckets: Vec<Vec<usize>>,
    /// The bucket of each lane.
    home: Vec<usize>,
    mode: Reduction,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Gradients of rounds that are not yet sent in full.
    micros: BTreeMap<usize, Micro>,
    /// The round whose turn it is.
    round: usize,
    /// Buckets of that round already sent.
    sent: usize,
    flying: VecDeque<Flight>,
    sums: Vec<Fold>,
    /// Gradients that arrive now are not wanted: only inputs are differentiated.
    muted: bool,
}

impl Reducer {
    /// Sums over the ranks of `comm`, whose positions are data ranks.
    pub fn new(comm: Arc<dyn Comm>, lanes: &[Lane], options: ReduceOptions) -> Reducer {
        let shares: Vec<Share> = lanes.iter().map(|lane| Share::new(lane.numel, comm.size())).collect();
        let buckets = buckets(lanes, options.bucket_bytes);
        let mut home = vec![0; lanes.len()];
        for (bucket, members) in buckets.iter().enumerate() {
            members.iter().for_each(|&lane| home[lane] = bucket);
        }
        let state = Mutex::new(State::default());
        let reducer =
            Reducer { comm, lanes: lanes.to_vec(), shares, buckets, home, mode: options.mode, state };
        reducer.reset();
        reducer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a lane is shared out.
    pub fn share(&self, lane: usize) -> Share {
        self.shares[lane]
    }

    /// Forgets everything: the next step, or one after a failure.
    pub fn reset(&self) {
        let sums = self.lanes.iter().map(|_| Fold::default()).collect();
        *self.lock() = State { sums, ..State::default() };
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
        let flat = grad.contiguous()?.reshape(&[self.lanes[lane].numel])?;
        let count = self.lanes.len();
        state.micros.entry(round).or_insert_with(|| Micro::new(count)).give(lane, flat)?;
        if round == state.round {
            while state.sent < self.buckets.len() && self.is_complete(state, round) {
                self.send(state)?;
            }
        }
        self.add_arrived(state)
    }

    fn is_complete(&self, state: &State, round: usize) -> bool {
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

    /// The sums of the step: this rank's range of each lane, in f32. Collective; the next step may begin.
    pub fn finish_step(&self, rounds: usize) -> Result<Vec<Array>> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if !self.lanes.is_empty() && (state.round != rounds || !state.micros.is_empty()) {
            let what = format!("{} of {rounds} rounds were summed at the end of the step", state.round);
            return Err(Error::Bug { what });
        }
        if self.mode == Reduction::Step && self.comm.size() > 1 {
            for bucket in 0..self.buckets.len() {
                let whole =
                    self.buckets[bucket].iter().map(|&lane| state.sums[lane].take(self.lanes[lane].numel));
                let whole = whole.collect::<Result<Vec<_>>>()?;
                state.flying.push_back(self.launch(bucket, &whole)?);
            }
        }
        while let Some(flight) = state.flying.pop_front() {
            self.land(state, flight)?;
        }
        let own = |lane: usize| self.shares[lane].range(self.comm.rank()).len();
        let sums = (0..self.lanes.len()).map(|lane| state.sums[lane].take(own(lane))).collect();
        drop(guard);
        self.reset();
        sums
    }

    /// Sends the next bucket of the round whose turn it is, or adds it here where nothing is to be sent.
    fn send(&self, state: &mut State) -> Result<()> {
        let bucket = state.sent;
        state.sent += 1;
        let micro = state.micros.get_mut(&state.round);
        let micro = micro.ok_or_else(|| Error::Bug { what: "a round was sent that never began".into() })?;
        let mut grads = Vec::with_capacity(self.buckets[bucket].len());
        for &lane in &self.buckets[bucket] {
            let Lane { numel, dtype } = self.lanes[lane];
            grads.push(match micro.take(lane) {
                Some(grad) => grad,
                None => Array::zeros(&[numel], dtype)?,
            });
        }
        if self.comm.size() == 1 || self.mode == Reduction::Step {
            for (&lane, grad) in self.buckets[bucket].iter().zip(&grads) {
                state.sums[lane].add(grad)?;
            }
            return Ok(());
        }
        let flight = self.launch(bucket, &grads)?;
        state.flying.push_back(flight);
        Ok(())
    }

    /// Begins to bring every owner its part of a bucket.
    fn launch(&self, bucket: usize, grads: &[Array]) -> Result<Flight> {
        let (members, size, rank) = (&self.buckets[bucket], self.comm.size(), self.comm.rank());
        let (mut parts, mut send_counts) =
            (Vec::with_capacity(members.len() * size), Vec::with_capacity(size));
        for owner in 0..size {
            let mut count = 0;
            for (&lane, grad) in members.iter().zip(grads) {
                let range = self.shares[lane].range(owner);
                count += range.len();
                parts.push(grad.narrow(0, range.start, range.len())?);
            }
            send_counts.push(count);
        }
        let send = ops::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
        let recv = Array::zeros(&[send_counts[rank] * size], send.dtype())?;
        let recv_counts = vec![send_counts[rank]; size];
        let call = AllToAll { send, send_counts, recv: recv.clone(), recv_counts };
        Ok(Flight { bucket, pending: self.comm.start(Call::AllToAll(call))?, recv })
    }

    /// Adds what has arrived in the meantime, in the order it was sent.
    fn add_arrived(&self, state: &mut State) -> Result<()> {
        while state.flying.front().is_some_and(|flight| flight.pending.is_done()) {
            if let Some(flight) = state.flying.pop_front() {
                self.land(state, flight)?;
            }
        }
        Ok(())
    }

    /// Adds the contributions of one bucket in rank order.
    fn land(&self, state: &mut State, flight: Flight) -> Result<()> {
        flight.pending.wait()?;
        let (size, rank) = (self.comm.size(), self.comm.rank());
        let mut at = 0;
        for _ in 0..size {
            for &lane in &self.buckets[flight.bucket] {
                let len = self.shares[lane].range(rank).len();
                state.sums[lane].add(&flight.recv.narrow(0, at, len)?)?;
                at += len;
            }
        }
        Ok(())
    }
}

/// Lanes in buckets of about this many bytes and one dtype, the last lane first: backward reaches it first.
fn buckets(lanes: &[Lane], limit: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::new();
    let (mut bytes, mut dtype) = (0, None);
    for (lane, &Lane { numel, dtype: own }) in lanes.iter().enumerate().rev() {
        let more = numel.saturating_mul(own.size());
        match all.last_mut() {
            Some(bucket) if bytes + more <= limit && dtype == Some(own) => {
                bucket.push(lane);
                bytes += more;
            }
            _ => {
                all.push(vec![lane]);
                (bytes, dtype) = (more, Some(own));
            }
        }
    }
    all
}
