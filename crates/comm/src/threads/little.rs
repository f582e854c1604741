//! A collective of few bytes: they were copied when they were sent, and every rank takes what it receives by itself, without waiting for
//! the others to have done so.

use super::op::Post;
use crate::call::Signature;
use crate::error::Result;
use crate::held::Held;
use crate::sync::{Mutex, lock};
use planaria_array::Array;
use planaria_array::ops::fold_bytes;
use planaria_layout::{Combine, Reduce};

/// Bytes sent by one rank, and received by all, up to which waking a thread would take longer than the work.
pub(super) const LITTLE: usize = 1 << 16;

/// What was sent, and where it goes.
#[derive(Debug)]
pub(super) struct Little {
    signatures: Vec<Signature>,
    sends: Vec<Option<Held>>,
    /// Each until its rank has it.
    recvs: Vec<Mutex<Option<Array>>>,
    /// The bytes of all ranks combined, where all get the same: at the beginning of these words.
    combined: Vec<u64>,
}

impl Little {
    /// Whether a call by which so many bytes are received is one.
    pub(super) fn suits(posts: &[Post], bytes: usize) -> bool {
        let copied = |post: &Post| matches!(post.send, None | Some(Held::Copied { .. })) && !post.is_away();
        bytes <= LITTLE && posts.iter().all(copied)
    }

    /// Prepares it, and delivers to the ranks that do not wait.
    pub(super) fn new(posts: Vec<Post>) -> Result<Little> {
        let size = posts.len();
        let mut little = Little {
            signatures: Vec::with_capacity(size),
            sends: Vec::with_capacity(size),
            recvs: Vec::with_capacity(size),
            combined: Vec::new(),
        };
        let mut elsewhere = Vec::new();
        for (rank, post) in posts.into_iter().enumerate() {
            little.signatures.push(post.signature);
            little.sends.push(post.send);
            little.recvs.push(Mutex::new(post.recv));
            if !post.waits {
                elsewhere.push(rank);
            }
        }
        if let Signature::AllReduce { op, count, .. } | Signature::Reduce { op, count, .. } =
            little.signatures[0]
        {
            let bytes = count * little.unit();
            let mut combined = vec![0u64; bytes.div_ceil(8)];
            little.fold(op, 0, &mut bytemuck::cast_slice_mut(&mut combined)[..bytes])?;
            little.combined = combined;
        }
        elsewhere.into_iter().try_for_each(|rank| little.deliver(rank))?;
        Ok(little)
    }

    /// Writes what a rank receives, once.
    pub(super) fn deliver(&self, rank: usize) -> Result<()> {
        let Some(recv) = lock(&self.recvs[rank]).take() else { return Ok(()) };
        let all = 0..recv.numel() * self.unit();
        recv.write_bytes(all, |out| self.receive(rank, out))?
    }

    fn receive(&self, rank: usize, out: &mut [u8]) -> Result<()> {
        match &self.signatures[rank] {
            Signature::AllReduce { .. } | Signature::Reduce { .. } => {
                out.copy_from_slice(&bytemuck::cast_slice(&self.combined)[..out.len()]);
            }
            Signature::Broadcast { root, .. } => out.copy_from_slice(self.sent(*root)),
            Signature::ReduceScatter { op, counts, .. } => {
                let before = counts[..rank].iter().sum::<usize>();
                self.fold(*op, before * self.unit(), out)?;
            }
            Signature::AllGather { .. } => self.append(out, |src| self.sent(src)),
            Signature::AllToAll { .. } => self.append(out, |src| {
                // All ranks were found to have made the same call.
                let Signature::AllToAll { to, .. } = &self.signatures[src] else { return &[] };
                let before = to[..rank].iter().sum::<usize>() * self.unit();
                &self.sent(src)[before..before + to[rank] * self.unit()]
            }),
            Signature::Split { .. } | Signature::Barrier => {}
        }
        Ok(())
    }

    /// Bytes of an element.
    fn unit(&self) -> usize {
        self.signatures[0].dtype().size()
    }

    /// One rank's part after the other's.
    fn append<'a>(&self, out: &mut [u8], part: impl Fn(usize) -> &'a [u8]) {
        let mut rest = out;
        for src in 0..self.sends.len() {
            let bytes = part(src);
            let (room, behind) = rest.split_at_mut(bytes.len());
            room.copy_from_slice(bytes);
            rest = behind;
        }
    }

    /// Combines what all ranks sent, from an offset on.
    fn fold(&self, op: Reduce, from: usize, out: &mut [u8]) -> Result<()> {
        let size = self.sends.len();
        let inputs: Vec<&[u8]> = (0..size).map(|src| &self.sent(src)[from..from + out.len()]).collect();
        Ok(fold_bytes(Combine::of(op, size), self.signatures[0].dtype(), &inputs, out)?)
    }

    fn sent(&self, src: usize) -> &[u8] {
        self.sends[src].as_ref().and_then(Held::host).unwrap_or_default()
    }
}
