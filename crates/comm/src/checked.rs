//! A communicator that compares every collective with the other ranks'.
//!
//! Thread and MPI ranks see enough of each other's calls and need none of this. An engine that only moves bytes
//! shows a mismatch as a hang or as garbage; here it is an error on every rank that names both calls. It costs a
//! small exchange per call.

use crate::call::{AllGather, AllToAll, Call, Signature};
use crate::comm::{Comm, CommExt, Pending, Wait};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};
use planaria_layout::Rank;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a description that every rank sends: a hash of all of it, then as much of its text as there is room.
const RECORD: usize = 256;

/// Wraps a communicator, and all split from it, with the comparison.
pub fn checked(comm: Arc<dyn Comm>) -> Arc<dyn Comm> {
    Arc::new(Checked { comm, calls: AtomicU64::new(0) })
}

#[derive(Debug)]
struct Checked {
    comm: Arc<dyn Comm>,
    calls: AtomicU64,
}

impl Checked {
    /// Begins to compare; the exchange goes ahead of the call itself.
    fn compare(&self, signature: &Signature) -> Result<Comparison> {
        let (comm, sequence) = (self.comm.clone(), self.calls.fetch_add(1, Ordering::Relaxed));
        let (to, expected) = match signature {
            Signature::AllToAll { to, from, .. } => (to.as_slice(), from.to_vec()),
            _ => (&[][..], Vec::new()),
        };
        let size = comm.size();
        let send = Array::from_slice(&record(&signature.common()), &[RECORD])?;
        let records = Array::empty(&[size * RECORD], DType::U8)?;
        let call = AllGather { send, recv: records.clone(), recv_counts: vec![RECORD; size] };
        let mut pending = vec![comm.start(Call::AllGather(call))?];
        let announced = Array::zeros(&[size], DType::U64)?;
        if !to.is_empty() {
            let list: Vec<u64> = to.iter().map(|&n| n as u64).collect();
            let (send, ones) = (Array::from_slice(&list, &[size])?, vec![1; size]);
            let call =
                AllToAll { send, send_counts: ones.clone(), recv: announced.clone(), recv_counts: ones };
            pending.push(comm.start(Call::AllToAll(call))?);
        }
        Ok(Comparison { comm, sequence, pending, records, announced, expected })
    }
}

fn record(text: &str) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let mut record = hasher.finish().to_le_bytes().to_vec();
    record.extend(text.bytes().take(RECORD - record.len()));
    record.resize(RECORD, 0);
    record
}

/// A comparison under way.
#[derive(Debug)]
struct Comparison {
    comm: Arc<dyn Comm>,
    sequence: u64,
    pending: Vec<Pending>,
    records: Array,
    /// Elements that each rank sends here in an all-to-all.
    announced: Array,
    expected: Vec<usize>,
}

impl Comparison {
    fn finish(self) -> Result<()> {
        let (comm, sequence) = (&self.comm, self.sequence);
        self.pending.into_iter().try_for_each(|pending| pending.wait())?;
        let records = self.records.bytes()?;
        let records: Vec<&[u8]> = records.chunks(RECORD).collect();
        if let Some(rank) = records.iter().position(|record| *record != records[0]) {
            let text =
                |record: &[u8]| String::from_utf8_lossy(&record[8..]).trim_end_matches('\0').to_string();
            let (expected, found) = (text(records[0]), text(records[rank]));
            let (first, rank) = (comm.ranks()[0], comm.ranks()[rank]);
            return Err(Error::Mismatch { sequence, first, expected, rank, found });
        }
        let announced = self.announced.to_vec::<u64>()?;
        let Some(i) = (0..self.expected.len()).find(|&i| announced[i] != self.expected[i] as u64) else {
            return Ok(());
        };
        let count = |n: u64| format!("all_to_all with {n} elements from rank {}", comm.ranks()[i]);
        let (first, rank) = (comm.ranks()[comm.rank()], comm.ranks()[i]);
        let (expected, found) = (count(self.expected[i] as u64), count(announced[i]));
        Err(Error::Mismatch { sequence, first, expected, rank, found })
    }
}

/// A started call whose comparison comes first.
#[derive(Debug)]
struct Compared {
    comparison: Comparison,
    call: Pending,
}

impl Wait for Compared {
    fn wait(self: Box<Self>) -> Result<()> {
        let comm = self.comparison.comm.clone();
        // The call itself may never end when ranks differ, so nobody waits for it then.
        self.comparison.finish().inspect_err(|e| comm.abort(&e.to_string()))?;
        self.call.wait()
    }

    fn is_done(&self) -> bool {
        self.comparison.pending.iter().all(Pending::is_done) && self.call.is_done()
    }
}

impl Comm for Checked {
    fn rank(&self) -> usize {
        self.comm.rank()
    }

    fn ranks(&self) -> &[Rank] {
        self.comm.ranks()
    }

    fn start(&self, call: Call) -> Result<Pending> {
        let Some(signature) = call.signature() else { return self.comm.start(call) };
        call.check(self.rank(), self.comm.size())?;
        let comparison = self.compare(&signature)?;
        Ok(Pending::new(Compared { comparison, call: self.comm.start(call)? }))
    }

    fn run(&self, call: Call) -> Result<()> {
        if let Some(signature) = call.signature() {
            call.check(self.rank(), self.comm.size())?;
            self.compare(&signature)?.finish()?;
        }
        self.comm.run(call)
    }

    fn split(&self, groups: &[Vec<Rank>]) -> Result<Option<Arc<dyn Comm>>> {
        self.compare(&Signature::Split { groups: groups.to_vec() })?.finish()?;
        Ok(self.comm.split(groups)?.map(checked))
    }

    fn group(&self, ranks: &[Rank]) -> Result<Arc<dyn Comm>> {
        Ok(checked(self.comm.group(ranks)?))
    }

    fn barrier(&self) -> Result<()> {
        self.compare(&Signature::Barrier)?.finish()?;
        self.comm.barrier()
    }

    fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }
}
