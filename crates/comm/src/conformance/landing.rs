//! Where received elements land: in a whole array, whose snapshots keep their values, or in part of one, whose rest
//! stays as it was. All of it is long enough that engines which treat short messages apart do not do so here.

use super::{Outcome, Site, input, same_bits};
use crate::call::{AllGather, AllToAll, Broadcast, Recv, Send};
use crate::comm::CommExt;
use planaria_array::{Array, DType, ops};

const COUNT: usize = 30_000;

/// An array that is received into, and what must not change.
struct Landing {
    recv: Array,
    kept: Array,
    around: [Array; 2],
}

/// What is received into.
#[derive(Clone, Copy, Debug)]
enum Room {
    Whole,
    Part,
}

impl Landing {
    fn new(comm: &Site, count: usize, room: Room) -> Result<Landing, super::Failure> {
        let larger = comm.full(&[count + 20], 9, DType::F32)?;
        let recv = match room {
            Room::Whole => comm.full(&[count], 9, DType::F32)?,
            Room::Part => larger.narrow(0, 10, count)?,
        };
        let around = [larger.narrow(0, 0, 10)?, larger.narrow(0, count + 10, 10)?];
        Ok(Landing { kept: recv.snapshot()?, recv, around })
    }

    fn check(&self, what: &str, want: &Array) -> Outcome {
        same_bits(what, &self.recv, want)?;
        same_bits(&format!("{what}: the snapshot"), &self.kept, &Array::full(want.shape(), 9, DType::F32)?)?;
        let nines = Array::full(&[10], 9, DType::F32)?;
        self.around.iter().try_for_each(|part| same_bits(&format!("{what}: what lies around"), part, &nines))
    }
}

pub(super) fn everywhere(comm: &Site) -> Outcome {
    let (size, rank) = (comm.size(), comm.rank());
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    let from = |rank| input(21, rank, COUNT, DType::F32);
    let all = (0..size).map(from).collect::<Result<Vec<_>, _>>()?;
    let joined = ops::concat(&all.iter().collect::<Vec<_>>(), 0)?;
    for room in [Room::Whole, Room::Part] {
        let landing = Landing::new(comm, COUNT * size, room)?;
        let (send, recv_counts) = (comm.there(&all[rank])?, vec![COUNT; size]);
        comm.all_gather(AllGather { send, recv: landing.recv.clone(), recv_counts: recv_counts.clone() })?;
        landing.check("gathered", &joined)?;
        let landing = Landing::new(comm, COUNT * size, room)?;
        // Everyone sends the same part to all.
        let send = comm.there(&ops::concat(&vec![&all[rank]; size], 0)?)?;
        let (recv, send_counts) = (landing.recv.clone(), recv_counts.clone());
        comm.all_to_all(AllToAll { send, send_counts, recv, recv_counts })?;
        landing.check("exchanged", &joined)?;
        let landing = Landing::new(comm, COUNT, room)?;
        let data = if rank == 0 { comm.there(&all[0])? } else { landing.recv.clone() };
        comm.broadcast(Broadcast { data, root: 0 })?;
        if rank != 0 {
            landing.check("broadcast", &all[0])?;
        }
        let landing = Landing::new(comm, COUNT, room)?;
        comm.send(Send { data: comm.there(&all[rank])?, to: next, tag: 5 })?;
        // The message is on its way before anyone expects it.
        comm.barrier()?;
        comm.recv(Recv { data: landing.recv.clone(), from: last, tag: 5 })?;
        landing.check("message", &all[last])?;
    }
    // A message that nobody ever receives does no harm, not even at the end.
    comm.send(Send { data: comm.there(&all[rank])?, to: next, tag: 6 })?;
    comm.barrier()?;
    Ok(())
}
