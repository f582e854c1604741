//! A random program of calls. Two engines with the same number of ranks must compute the same bits from one seed.

use super::{Failure, Site, input};
use crate::call::{AllGather, AllReduce, AllToAll, Broadcast, Call, ReduceScatter, ReduceTo};
use crate::comm::{Comm, CommExt};
use planaria_array::{Array, DType, Device};
use planaria_layout::Reduce;
use std::sync::Arc;

/// Makes `steps` random collectives and gives a digest of every byte this rank received.
pub fn digest(comm: &Arc<dyn Comm>, seed: u64, steps: usize) -> Result<u64, Failure> {
    digest_on(comm, Device::Cpu, seed, steps)
}

/// The same with arrays of a device.
pub fn digest_on(comm: &Arc<dyn Comm>, device: Device, seed: u64, steps: usize) -> Result<u64, Failure> {
    let comm = &Site::new(comm, device);
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    let mut open = Vec::new();
    for step in 0..steps {
        let (call, recv) = roll(&mut dice, step as u64, comm)?;
        open.push((comm.start(call)?, recv));
        // All ranks throw the same dice, so they keep the same number of calls open.
        while open.len() > dice.below(4) {
            let (pending, recv) = open.remove(0);
            pending.wait()?;
            let bytes = recv.map(|recv| recv.to(Device::Cpu)?.bytes()).transpose()?;
            for byte in bytes.iter().flat_map(|bytes| bytes.iter()) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
            }
        }
    }
    open.into_iter().try_for_each(|(pending, _)| pending.wait())?;
    Ok(hash)
}

/// One random call, and the array it fills on this rank.
fn roll(dice: &mut Dice, step: u64, comm: &Site) -> Result<(Call, Option<Array>), Failure> {
    let (rank, size) = (comm.rank(), comm.size());
    let dtype = DType::ALL[dice.below(DType::ALL.len())];
    let mut op = Reduce::EVERY[dice.below(Reduce::EVERY.len())];
    if dtype == DType::Bool && op == Reduce::Avg {
        op = Reduce::Any;
    }
    let kind = dice.below(6);
    let scale = [1, 40, 5000][dice.below(3)];
    let counts: Vec<usize> = (0..size).map(|_| dice.below(scale + 1)).collect();
    let (total, root) = (counts.iter().sum(), dice.below(size));
    let zeros = |n: usize| comm.zeros(&[n], dtype);
    let mine = |n: usize| comm.there(&input(step, rank, n, dtype)?);
    Ok(match kind {
        0 => {
            let recv = zeros(total)?;
            (Call::AllReduce(AllReduce { send: mine(total)?, recv: recv.clone(), op }), Some(recv))
        }
        1 => {
            let recv = (rank == root).then(|| zeros(total)).transpose()?;
            (Call::Reduce(ReduceTo { send: mine(total)?, recv: recv.clone(), op, root }), recv)
        }
        2 => {
            let data = mine(total)?;
            (Call::Broadcast(Broadcast { data: data.clone(), root }), Some(data))
        }
        3 => {
            let (send, recv) = (mine(counts[rank])?, zeros(total)?);
            (Call::AllGather(AllGather { send, recv: recv.clone(), recv_counts: counts }), Some(recv))
        }
        4 => {
            let (send, recv) = (mine(total)?, zeros(counts[rank])?);
            let call = ReduceScatter { send, recv: recv.clone(), send_counts: counts, op };
            (Call::ReduceScatter(call), Some(recv))
        }
        _ => {
            // Rank i sends counts[(i + j) % size] elements to rank j, which is symmetric.
            let list: Vec<usize> = (0..size).map(|j| counts[(rank + j) % size]).collect();
            let (send, recv) = (mine(total)?, zeros(total)?);
            let call = AllToAll { send, send_counts: list.clone(), recv: recv.clone(), recv_counts: list };
            (Call::AllToAll(call), Some(recv))
        }
    })
}

/// Pseudo-random numbers, the same on all ranks.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n as u64) as usize
    }
}
