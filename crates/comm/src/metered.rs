//! A communicator that counts the bytes its rank sends, by the ranks that a call connects.

use crate::call::Call;
use crate::comm::{Comm, CommExt, Pending};
use crate::error::Result;
use planaria_array::Array;
use planaria_layout::Rank;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Wraps a communicator, and all made from it, so that what its rank sends is counted.
pub fn metered(comm: Arc<dyn Comm>) -> (Arc<dyn Comm>, Arc<Tally>) {
    let tally = Arc::new(Tally::default());
    (wrap(comm, &tally), tally)
}

/// What one rank has sent.
#[derive(Debug, Default)]
pub struct Tally {
    lanes: Mutex<BTreeMap<Vec<Rank>, Arc<Lane>>>,
}

/// Bytes by call.
type Lane = Mutex<BTreeMap<&'static str, u64>>;

/// Bytes that one rank has sent in one kind of call to one group of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// World ranks of the group, in rank order; of a message its sender and its receiver.
    pub ranks: Vec<Rank>,
    /// The call.
    pub call: &'static str,
    /// Bytes: those that must leave the rank, however an engine carries them.
    pub bytes: u64,
}

impl Tally {
    /// Everything so far.
    pub fn sent(&self) -> Vec<Sent> {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Vec::new();
        for (ranks, lane) in lanes.iter() {
            let calls = lane.lock().unwrap_or_else(PoisonError::into_inner);
            out.extend(calls.iter().map(|(&call, &bytes)| Sent { ranks: ranks.clone(), call, bytes }));
        }
        out
    }

    fn lane(&self, ranks: &[Rank]) -> Arc<Lane> {
        let mut ranks = ranks.to_vec();
        ranks.sort_unstable();
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry(ranks).or_default().clone()
    }
}

#[derive(Debug)]
struct Metered {
    comm: Arc<dyn Comm>,
    tally: Arc<Tally>,
    lane: Arc<Lane>,
}

fn wrap(comm: Arc<dyn Comm>, tally: &Arc<Tally>) -> Arc<dyn Comm> {
    let lane = tally.lane(comm.ranks());
    Arc::new(Metered { comm, tally: tally.clone(), lane })
}

impl Metered {
    fn count(&self, call: &Call) {
        let bytes = sent(call, self.comm.rank(), self.comm.size() as u64);
        if bytes == 0 {
            return;
        }
        let pair = match call {
            Call::Send(c) => self.comm.ranks().get(c.to).map(|&to| [self.comm.world_rank(), to]),
            _ => None,
        };
        let pair = pair.map(|pair| self.tally.lane(&pair));
        let mut lane = pair.as_ref().unwrap_or(&self.lane).lock().unwrap_or_else(PoisonError::into_inner);
        *lane.entry(call.name()).or_default() += bytes;
    }
}

/// Bytes that must leave a rank in a call: those of others' parts, twice where they come back combined.
fn sent(call: &Call, rank: usize, size: u64) -> u64 {
    let bytes = |array: &Array| (array.numel() * array.dtype().size()) as u64;
    let others = |whole: u64| whole / size.max(1) * (size.max(1) - 1);
    match call {
        Call::AllReduce(c) => 2 * others(bytes(&c.send)),
        Call::Reduce(c) => {
            if c.root == rank {
                0
            } else {
                bytes(&c.send)
            }
        }
        Call::Broadcast(c) => {
            if c.root == rank && size > 1 {
                bytes(&c.data)
            } else {
                0
            }
        }
        Call::AllGather(c) => bytes(&c.send) * (size.max(1) - 1),
        Call::ReduceScatter(c) => others(bytes(&c.send)),
        Call::AllToAll(c) => {
            let own = c.send_counts.get(rank).map_or(0, |count| count * c.send.dtype().size());
            bytes(&c.send).saturating_sub(own as u64)
        }
        Call::Send(c) => bytes(&c.data),
        Call::Recv(_) => 0,
    }
}

impl Comm for Metered {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn ranks(&self) -> &[Rank] {
        self.comm.ranks()
    }

    fn start(&self, call: Call) -> Result<Pending> {
        self.count(&call);
        self.comm.start(call)
    }

    fn run(&self, call: Call) -> Result<()> {
        self.count(&call);
        self.comm.run(call)
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        Ok(self.comm.split(groups)?.map(|comm| wrap(comm, &self.tally)))
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        Ok(wrap(self.comm.group(ranks)?, &self.tally))
    }

    fn barrier(&self) -> Result<()> {
        self.comm.barrier()
    }

    fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{AllReduce, Recv, Send};
    use crate::threads;
    use planaria_array::DType;
    use planaria_layout::Reduce;

    #[test]
    fn bytes_are_counted_by_the_ranks_that_a_call_connects() {
        let told = threads::run(4, |comm| {
            let (comm, tally) = metered(comm);
            let row = Array::full(&[8], 1, DType::F32).unwrap();
            let pair = comm.split(&[vec![0, 1], vec![3, 2]]).unwrap().unwrap();
            pair.all_reduce(AllReduce { send: row.clone(), recv: row.clone(), op: Reduce::Sum }).unwrap();
            match comm.rank() {
                0 => comm.run(Call::Send(Send { data: row, to: 3, tag: 0 })).unwrap(),
                3 => comm.run(Call::Recv(Recv { data: row, from: 0, tag: 0 })).unwrap(),
                _ => {}
            }
            tally.sent()
        });
        let all_reduce = |ranks: [Rank; 2]| Sent { ranks: ranks.to_vec(), call: "all_reduce", bytes: 32 };
        let send = Sent { ranks: vec![0, 3], call: "send", bytes: 32 };
        assert_eq!(told[0], [all_reduce([0, 1]), send]);
        assert_eq!(told[3], [all_reduce([2, 3])]);
    }
}
