//! The work of one collective once all ranks have come: pieces that any thread may take.

use super::op::Post;
use crate::call::Signature;
use crate::combine::combine;
use crate::error::Result;
use crate::sync::atomic::{AtomicUsize, Ordering};
use planaria_array::{Array, Bytes};
use planaria_layout::{DType, Reduce};
use std::ops::Range;

/// Bytes of one piece: small enough to stay in the nearer caches while it is written to every rank.
const PIECE: usize = 1 << 17;

/// Pieces to do, and the bytes and arrays they are about.
#[derive(Debug)]
pub(super) struct Work {
    sends: Vec<Option<Bytes>>,
    recvs: Vec<Option<Array>>,
    pieces: Vec<Piece>,
    taken: AtomicUsize,
    op: Reduce,
    dtype: DType,
}

/// One step, independent of all others. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// Bytes of one rank to another.
    Copy { src: usize, from: usize, dst: usize, to: usize, len: usize },
    /// The combined bytes of all ranks to one.
    Combine { from: usize, dst: usize, to: usize, len: usize },
    /// The combined bytes of all ranks to all.
    CombineAll { at: usize, len: usize },
}

impl Work {
    /// Cuts a collective into pieces. The posts have been checked to fit each other.
    pub(super) fn new(posts: Vec<Post>) -> Result<Work> {
        let pieces = cut(&posts);
        let signature = &posts[0].signature;
        let (op, dtype) = (signature.op.unwrap_or(Reduce::Sum), signature.dtype.unwrap_or(DType::U8));
        let (sends, recvs): (Vec<_>, Vec<_>) = posts.into_iter().map(|p| (p.send, p.recv)).unzip();
        if !pieces.is_empty() {
            // Where someone holds the old bytes of a receiving array, as an in-place call itself does, it gets
            // fresh ones now: later, each write would have to keep what it does not overwrite.
            for recv in recvs.iter().flatten() {
                recv.renew()?;
            }
        }
        Ok(Work { sends, recvs, pieces, taken: AtomicUsize::new(0), op, dtype })
    }

    /// Bytes that will be written.
    pub(super) fn bytes(&self) -> usize {
        let written = |piece: &Piece| match *piece {
            Piece::Copy { len, .. } | Piece::Combine { len, .. } => len,
            Piece::CombineAll { len, .. } => len * self.recvs.len(),
        };
        self.pieces.iter().map(written).sum()
    }

    /// True when no piece is left to take; some may still be in hand.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst) >= self.pieces.len()
    }

    /// Takes and does pieces until none are left.
    pub(super) fn run(&self) -> Result<()> {
        let mut scratch = Vec::new();
        loop {
            let i = self.taken.fetch_add(1, Ordering::SeqCst);
            let Some(piece) = self.pieces.get(i) else { return Ok(()) };
            if let Err(error) = self.step(i, piece, &mut scratch) {
                self.taken.store(self.pieces.len(), Ordering::SeqCst);
                return Err(error);
            }
        }
    }

    fn step(&self, turn: usize, piece: &Piece, scratch: &mut Vec<u64>) -> Result<()> {
        match *piece {
            Piece::Copy { src, from, dst, to, len } => {
                let bytes = &self.sent(src)[from..from + len];
                self.write(dst, to..to + len, |out| out.copy_from_slice(bytes))
            }
            Piece::Combine { from, dst, to, len } => {
                let inputs = self.inputs(from..from + len);
                self.write(dst, to..to + len, |out| combine(self.op, self.dtype, &inputs, out))
            }
            Piece::CombineAll { at, len } => {
                scratch.resize(PIECE.max(len).div_ceil(8), 0);
                let result = &mut bytemuck::cast_slice_mut::<u64, u8>(scratch)[..len];
                combine(self.op, self.dtype, &self.inputs(at..at + len), result);
                // Neighbouring pieces begin with different ranks, so that threads rarely meet at one array.
                let size = self.recvs.len();
                (0..size).try_for_each(|k| {
                    self.write((turn + k) % size, at..at + len, |out| out.copy_from_slice(result))
                })
            }
        }
    }

    fn sent(&self, src: usize) -> &[u8] {
        self.sends[src].as_deref().unwrap_or(&[])
    }

    fn inputs(&self, range: Range<usize>) -> Vec<&[u8]> {
        (0..self.sends.len()).map(|src| &self.sent(src)[range.clone()]).collect()
    }

    fn write(&self, dst: usize, range: Range<usize>, write: impl FnOnce(&mut [u8])) -> Result<()> {
        match &self.recvs[dst] {
            Some(recv) => Ok(recv.write_bytes(range, write)?),
            None => Ok(()),
        }
    }
}

/// All pieces of a collective, ordered so that neighbours write to different ranks.
fn cut(posts: &[Post]) -> Vec<Piece> {
    let size = posts.len();
    let signature = &posts[0].signature;
    let bytes = |elements: usize| elements * signature.dtype.map_or(1, DType::size);
    let mut lanes: Vec<Vec<Piece>> = Vec::new();
    match signature.name {
        "all_reduce" => {
            return blocks(bytes(signature.counts[0]))
                .map(|(at, len)| Piece::CombineAll { at, len })
                .collect();
        }
        "reduce" => {
            let dst = signature.root.unwrap_or(0);
            let piece = |(at, len)| Piece::Combine { from: at, dst, to: at, len };
            return blocks(bytes(signature.counts[0])).map(piece).collect();
        }
        "broadcast" => {
            let src = signature.root.unwrap_or(0);
            let piece = |dst| move |(at, len)| Piece::Copy { src, from: at, dst, to: at, len };
            let receivers = (0..size).filter(|&dst| dst != src);
            lanes.extend(receivers.map(|dst| blocks(bytes(signature.counts[0])).map(piece(dst)).collect()));
        }
        "reduce_scatter" => {
            let offsets = offsets(&signature.counts);
            for (dst, &count) in signature.counts.iter().enumerate() {
                let from = bytes(offsets[dst]);
                let piece = |(at, len)| Piece::Combine { from: from + at, dst, to: at, len };
                lanes.push(blocks(bytes(count)).map(piece).collect());
            }
        }
        "all_gather" => {
            let offsets = offsets(&signature.counts);
            let part = |src: usize, _| (0, bytes(offsets[src]), bytes(signature.counts[src]));
            lanes.extend((0..size).map(|dst| copies(size, dst, part)));
        }
        "all_to_all" => {
            let to: Vec<_> = posts.iter().map(|p| offsets(&p.signature.to)).collect();
            let from: Vec<_> = posts.iter().map(|p| offsets(&p.signature.from)).collect();
            let count = |p: &Signature, dst: usize| bytes(p.to[dst]);
            let part = |src: usize, dst: usize| {
                (bytes(to[src][dst]), bytes(from[dst][src]), count(&posts[src].signature, dst))
            };
            lanes.extend((0..size).map(|dst| copies(size, dst, part)));
        }
        _ => {}
    }
    deal(lanes)
}

/// What one rank receives by copying, beginning with its right neighbour: `part` tells where in the sender's
/// array, where in the receiver's, and how many bytes.
fn copies(size: usize, dst: usize, part: impl Fn(usize, usize) -> (usize, usize, usize)) -> Vec<Piece> {
    let sources = (0..size).map(|k| (dst + k) % size);
    let piece = |src| {
        let (from, to, len) = part(src, dst);
        blocks(len).map(move |(at, len)| Piece::Copy { src, from: from + at, dst, to: to + at, len })
    };
    sources.flat_map(piece).collect()
}

/// Offsets and lengths of the blocks of `len` bytes.
fn blocks(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(PIECE).map(move |at| (at, PIECE.min(len - at)))
}

/// Where each part begins when parts lie one after the other.
fn offsets(counts: &[usize]) -> Vec<usize> {
    counts.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect()
}

/// One of each lane in turn.
fn deal(lanes: Vec<Vec<Piece>>) -> Vec<Piece> {
    let longest = lanes.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|i| lanes.iter().filter_map(move |lane| lane.get(i).copied())).collect()
}
