//! The work of one collective once all ranks have come: lanes of pieces that any thread may take.

use super::op::Post;
use crate::call::Signature;
use crate::error::Result;
use crate::held::{Held, flat};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};
use planaria_array::ops::fold_bytes;
use planaria_array::{Array, ArrayPart, Device};
use planaria_layout::{Combine, DType, Reduce};
use std::ops::Range;
use std::sync::OnceLock;

/// Pieces of a call whose arrays are written in parts: some for every processor that may help, so that none waits long for another.
const PARTS: usize = 8;

/// Bytes of one piece elsewhere, and the least: small enough to stay in the nearer caches while it is written to every rank.
const PIECE: usize = 1 << 17;

/// Bytes that are combined before they are written to every rank: they stay in the nearest cache meanwhile.
const NEAR: usize = 1 << 14;

/// Lanes to do, and the bytes and arrays they are about.
#[derive(Debug)]
pub(super) struct Work {
    sends: Vec<Option<Held>>,
    recvs: Vec<Option<Array>>,
    /// Pieces that one thread does one after the other. Where arrays cannot be written in parts, a lane of copies has all that goes to
    /// one rank, so that threads do not wait for each other at its array; else a lane is one piece.
    lanes: Vec<Vec<Piece>>,
    /// Which lanes somebody has taken.
    claims: Vec<AtomicBool>,
    /// Whether arrays are to be written in parts.
    apart: bool,
    /// The parts that each lane writes, by rank; made by whoever begins, so that arrays are closed to others only while somebody works.
    rooms: OnceLock<Option<Vec<Mutex<Vec<ArrayPart>>>>>,
    how: Combine,
    dtype: DType,
    /// Some of it is memory of a device.
    away: bool,
}

/// One step, independent of all others. Offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// Bytes of one rank to another.
    Copy { src: usize, from: usize, dst: usize, to: usize, len: usize },
    /// The combined bytes of all ranks to one.
    Combine { from: usize, dst: usize, to: usize, len: usize },
    /// The combined bytes of all ranks to all that receive.
    CombineAll { at: usize, len: usize },
}

impl Piece {
    /// The bytes of a rank's array that it writes.
    fn written_at(&self, rank: usize) -> Option<Range<usize>> {
        match *self {
            Piece::Copy { dst, to, len, .. } | Piece::Combine { dst, to, len, .. } => {
                (dst == rank).then_some(to..to + len)
            }
            Piece::CombineAll { at, len } => Some(at..at + len),
        }
    }
}

impl Work {
    /// Cuts a collective into pieces. The posts have been checked to fit each other.
    pub(super) fn new(posts: Vec<Post>) -> Work {
        let away = posts.iter().any(Post::is_away);
        let apart = !away && are_apart(&posts);
        let lanes = if apart {
            // What is combined once and written to many is one piece.
            let most = (written(&cut(&posts, usize::MAX)) / PARTS).max(1).next_multiple_of(PIECE);
            cut(&posts, most).into_iter().flatten().map(|piece| vec![piece]).collect()
        } else {
            // A device does one large piece faster than many small ones.
            cut(&posts, if away { usize::MAX } else { PIECE })
        };
        let dtype = posts[0].signature.dtype();
        let how = match posts[0].signature {
            Signature::AllReduce { op, .. }
            | Signature::Reduce { op, .. }
            | Signature::ReduceScatter { op, .. } => Combine::of(op, posts.len()),
            _ => Combine::of(Reduce::Sum, 1),
        };
        let (sends, recvs): (Vec<_>, Vec<_>) = posts.into_iter().map(|p| (p.send, p.recv)).unzip();
        let claims = lanes.iter().map(|_| AtomicBool::new(false)).collect();
        Work { sends, recvs, lanes, claims, apart, rooms: OnceLock::new(), how, dtype, away }
    }

    /// True when no lane is left to take; some may still be in hand.
    pub(super) fn is_taken(&self) -> bool {
        self.claims.iter().all(|claim| claim.load(Ordering::SeqCst))
    }

    /// Takes and does lanes until none are left, beginning with those of a position: from call to call a thread has the same bytes in
    /// its cache. Where ranks outnumber processors it is any thread that comes, and the bytes are in the cache of its processor.
    pub(super) fn run(&self, position: usize, processors: usize) -> Result<()> {
        let (mut scratch, count) = (Vec::new(), self.lanes.len());
        let rooms = self.open();
        let (place, places) = match self.recvs.len() > processors {
            true => (rustix::thread::sched_getcpu() % processors, processors),
            false => (position % self.recvs.len(), self.recvs.len()),
        };
        let first = place * count / places;
        for lane in (first..count).chain(0..first).filter(|&lane| self.claim(lane)) {
            let done = match rooms {
                Some(rooms) => self.fill(&self.lanes[lane], std::mem::take(&mut *lock(&rooms[lane]))),
                None => self.run_lane(&self.lanes[lane], position, &mut scratch),
            };
            if let Err(error) = done {
                // Nobody begins another.
                (0..count).for_each(|lane| {
                    self.claim(lane);
                });
                return Err(error);
            }
        }
        Ok(())
    }

    /// The parts of arrays, where they are written in parts.
    pub(super) fn open(&self) -> Option<&Vec<Mutex<Vec<ArrayPart>>>> {
        if self.apart { self.rooms.get_or_init(|| self.rooms()).as_ref() } else { None }
    }

    /// Opens all arrays and cuts them; `None` where one cannot be opened now, and is written under its lock then.
    fn rooms(&self) -> Option<Vec<Mutex<Vec<ArrayPart>>>> {
        let mut rooms: Vec<Vec<ArrayPart>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for (rank, recv) in self.recvs.iter().enumerate() {
            let Some(recv) = recv else { continue };
            let pieces = self
                .lanes
                .iter()
                .enumerate()
                .flat_map(|(lane, pieces)| pieces.iter().map(move |p| (lane, p)));
            let mut ranges: Vec<(Range<usize>, usize)> =
                pieces.filter_map(|(lane, piece)| Some((piece.written_at(rank)?, lane))).collect();
            ranges.sort_unstable_by_key(|(range, _)| range.start);
            let (ranges, lanes): (Vec<_>, Vec<_>) = ranges.into_iter().unzip();
            let parts = recv.parts(&ranges).ok()??;
            lanes.into_iter().zip(parts).for_each(|(lane, part)| rooms[lane].push(part));
        }
        Some(rooms.into_iter().map(Mutex::new).collect())
    }

    /// Does the piece of a lane in its parts of all arrays that it writes.
    fn fill(&self, lane: &[Piece], mut parts: Vec<ArrayPart>) -> Result<()> {
        let (Some(piece), Some((first, others))) = (lane.first(), parts.split_first_mut()) else {
            return Ok(());
        };
        match *piece {
            Piece::Copy { src, from, len, .. } => first.copy_from_slice(&self.sent(src)[from..from + len]),
            Piece::Combine { from, len, .. } => {
                fold_bytes(self.how, self.dtype, &self.inputs(from..from + len), first)?;
            }
            Piece::CombineAll { at, len } => {
                let all = self.inputs(at..at + len);
                let mut inputs = Vec::with_capacity(all.len());
                for (start, len) in blocks(len, NEAR) {
                    let inside = start..start + len;
                    inputs.clear();
                    inputs.extend(all.iter().map(|input| &input[inside.clone()]));
                    fold_bytes(self.how, self.dtype, &inputs, &mut first[inside.clone()])?;
                    others
                        .iter_mut()
                        .for_each(|other| other[inside.clone()].copy_from_slice(&first[inside.clone()]));
                }
            }
        }
        Ok(())
    }

    /// True for the first who asks.
    fn claim(&self, lane: usize) -> bool {
        !self.claims[lane].swap(true, Ordering::SeqCst)
    }

    fn run_lane(&self, lane: &[Piece], position: usize, scratch: &mut Vec<u64>) -> Result<()> {
        match lane {
            [Piece::Copy { dst, to: start, .. }, ..] if !self.away => self.copy_all(*dst, *start, lane),
            _ => lane.iter().try_for_each(|piece| self.step(position, piece, scratch)),
        }
    }

    /// Copies a lane to its rank, which is asked for its memory once.
    fn copy_all(&self, dst: usize, start: usize, lane: &[Piece]) -> Result<()> {
        let ends = lane.iter().map(|piece| match *piece {
            Piece::Copy { to, len, .. } => (to, to + len),
            _ => (start, start),
        });
        let (start, end) = ends.fold((start, start), |(a, b), (from, to)| (a.min(from), b.max(to)));
        self.write(dst, start..end, |out| {
            for piece in lane {
                if let Piece::Copy { src, from, to, len, .. } = *piece {
                    out[to - start..to - start + len].copy_from_slice(&self.sent(src)[from..from + len]);
                }
            }
            Ok(())
        })
    }

    fn step(&self, position: usize, piece: &Piece, scratch: &mut Vec<u64>) -> Result<()> {
        if self.away {
            return self.queue(piece);
        }
        match *piece {
            Piece::Copy { dst, to, .. } => self.copy_all(dst, to, std::slice::from_ref(piece)),
            Piece::Combine { from, dst, to, len } => {
                let inputs = self.inputs(from..from + len);
                self.write(dst, to..to + len, |out| Ok(fold_bytes(self.how, self.dtype, &inputs, out)?))
            }
            Piece::CombineAll { at, len } => blocks(len, NEAR).try_for_each(|(within, len)| {
                let range = at + within..at + within + len;
                scratch.resize(scratch.len().max(len.div_ceil(8)), 0);
                let result = &mut bytemuck::cast_slice_mut::<u64, u8>(scratch)[..len];
                fold_bytes(self.how, self.dtype, &self.inputs(range.clone()), result)?;
                // Everyone begins with another rank, so that threads rarely meet at one array.
                let size = self.recvs.len();
                (0..size).try_for_each(|k| {
                    self.write((position + k) % size, range.clone(), |out| copied(result, out))
                })
            }),
        }
    }

    /// The same with memory of devices, in the order of their streams: what is sent was queued before, and who uses the result queues
    /// that later. What another device or the host has comes by way of the host.
    fn queue(&self, piece: &Piece) -> Result<()> {
        let recv = |dst: usize, range: Range<usize>| {
            self.recvs[dst].as_ref().map(|recv| part(&flat(recv)?, self.dtype, range)).transpose()
        };
        let inputs = |range: Range<usize>, device: Device| -> Result<Vec<Array>> {
            let sends = self.sends.iter().flatten();
            sends.map(|sent| sent.part(self.dtype, range.clone(), device)).collect()
        };
        match *piece {
            Piece::Copy { src, from, dst, to, len } => match (&self.sends[src], recv(dst, to..to + len)?) {
                (Some(sent), Some(recv)) => {
                    Ok(recv.copy_from(&sent.part(self.dtype, from..from + len, recv.device())?)?)
                }
                _ => Ok(()),
            },
            Piece::Combine { from, dst, to, len } => match recv(dst, to..to + len)? {
                Some(recv) => Ok(recv.fold_from(self.how, &inputs(from..from + len, recv.device())?)?),
                None => Ok(()),
            },
            Piece::CombineAll { at, len } => {
                let Some(device) = self.recvs.iter().flatten().next().map(Array::device) else {
                    return Ok(());
                };
                let result = Array::empty_on(&[len / self.dtype.size()], self.dtype, device)?;
                result.fold_from(self.how, &inputs(at..at + len, device)?)?;
                (0..self.recvs.len()).try_for_each(|dst| match recv(dst, at..at + len)? {
                    Some(recv) => Ok(recv.copy_from(&result.to(recv.device())?)?),
                    None => Ok(()),
                })
            }
        }
    }

    fn sent(&self, src: usize) -> &[u8] {
        self.sends[src].as_ref().and_then(Held::host).unwrap_or_default()
    }

    fn inputs(&self, range: Range<usize>) -> Vec<&[u8]> {
        (0..self.sends.len()).map(|src| &self.sent(src)[range.clone()]).collect()
    }

    fn write(
        &self,
        dst: usize,
        range: Range<usize>,
        write: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        match &self.recvs[dst] {
            Some(recv) => recv.write_bytes(range, write)?,
            None => Ok(()),
        }
    }
}

/// Bytes that lanes write, or combine once and write to many.
fn written(lanes: &[Vec<Piece>]) -> usize {
    let bytes = |piece: &Piece| match *piece {
        Piece::Copy { len, .. } | Piece::Combine { len, .. } | Piece::CombineAll { len, .. } => len,
    };
    lanes.iter().flatten().map(bytes).sum()
}

/// Whether each receiving array is a storage of its own, so that all can be open at once.
fn are_apart(posts: &[Post]) -> bool {
    let all: Vec<&Array> = posts.iter().filter_map(|post| post.recv.as_ref()).collect();
    let alone =
        |at: usize| all[at].is_whole() && !all[..at].iter().any(|other| other.shares_storage(all[at]));
    (0..all.len()).all(alone)
}

/// The elements at some bytes of a row.
fn part(row: &Array, dtype: DType, range: Range<usize>) -> Result<Array> {
    Ok(row.narrow(0, range.start / dtype.size(), range.len() / dtype.size())?)
}

fn copied(from: &[u8], to: &mut [u8]) -> Result<()> {
    to.copy_from_slice(from);
    Ok(())
}

/// The lanes of a collective, in pieces of at most `most` bytes.
fn cut(posts: &[Post], most: usize) -> Vec<Vec<Piece>> {
    let size = posts.len();
    let bytes = |elements: usize| elements * posts[0].signature.dtype().size();
    match &posts[0].signature {
        // Combining takes longer than writing, so every piece is a lane of its own.
        &Signature::AllReduce { count, .. } | &Signature::Reduce { count, .. } => {
            blocks(bytes(count), most).map(|(at, len)| vec![Piece::CombineAll { at, len }]).collect()
        }
        &Signature::Broadcast { count, root, .. } => {
            let piece = |dst| move |(at, len)| Piece::Copy { src: root, from: at, dst, to: at, len };
            let receivers = (0..size).filter(|&dst| dst != root);
            receivers.map(|dst| blocks(bytes(count), most).map(piece(dst)).collect()).collect()
        }
        Signature::ReduceScatter { counts, .. } => {
            let parts = counts.iter().zip(offsets(counts)).enumerate();
            let lane = |(dst, (&count, from)): (usize, (&usize, usize))| {
                let from = bytes(from);
                let piece = |(at, len)| Piece::Combine { from: from + at, dst, to: at, len };
                blocks(bytes(count), most).map(piece).collect()
            };
            parts.map(lane).collect()
        }
        Signature::AllGather { counts, .. } => {
            let offsets = offsets(counts);
            let part = |src: usize, _| (0, bytes(offsets[src]), bytes(counts[src]));
            (0..size).map(|dst| copies(size, dst, most, part)).collect()
        }
        Signature::AllToAll { .. } => {
            let lists = posts.iter().map(|post| match &post.signature {
                Signature::AllToAll { to, from, .. } => (to.as_slice(), offsets(to), offsets(from)),
                // All ranks were found to have made the same call.
                _ => (&[][..], Vec::new(), Vec::new()),
            });
            let lists: Vec<(&[usize], Vec<usize>, Vec<usize>)> = lists.collect();
            let part = |src: usize, dst: usize| {
                (bytes(lists[src].1[dst]), bytes(lists[dst].2[src]), bytes(lists[src].0[dst]))
            };
            (0..size).map(|dst| copies(size, dst, most, part)).collect()
        }
        Signature::Split { .. } | Signature::Barrier => Vec::new(),
    }
}

/// What one rank receives by copying, beginning with its right neighbour: `part` tells where in the sender's
/// array, where in the receiver's, and how many bytes.
fn copies(
    size: usize,
    dst: usize,
    most: usize,
    part: impl Fn(usize, usize) -> (usize, usize, usize),
) -> Vec<Piece> {
    let sources = (0..size).map(|k| (dst + k) % size);
    let piece = |src| {
        let (from, to, len) = part(src, dst);
        blocks(len, most).map(move |(at, len)| Piece::Copy { src, from: from + at, dst, to: to + at, len })
    };
    sources.flat_map(piece).collect()
}

/// Offsets and lengths of the blocks of `len` bytes, of at most `most` each.
fn blocks(len: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(most).map(move |at| (at, most.min(len - at)))
}

/// Where each part begins when parts lie one after the other.
fn offsets(counts: &[usize]) -> Vec<usize> {
    counts.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect()
}
