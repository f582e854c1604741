//! Parameters that travel together: those of one block of the model, up to the size of a bucket.
//!
//! The members of a bundle are thought to lie end to end. Where each data rank has one contiguous range of that (a
//! bundle that is shared out as one, or a single parameter), ranges go straight to their places; else they are packed
//! rank by rank and put in order after they have come.

use crate::config::Sharding;
use crate::error::{Error, Result};
use planaria_array::{Array, DType, ops};
use planaria_comm::{AllGather, Call, Comm, Pending};
use planaria_layout::{FlatShards, Layout, Rank, Share};
use std::ops::Range;
use std::sync::Arc;

/// Parameters at least this long travel alone where each is shared out by itself: packing them would cost more than
/// the call it saves.
const ALONE: usize = 1 << 18;

/// What decides with whom a parameter travels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row<'a> {
    /// The block it belongs to.
    pub(crate) block: Option<usize>,
    /// How it lies on the mesh of its stage; the data ranks hold copies.
    pub(crate) layout: &'a Layout,
    pub(crate) dtype: DType,
    pub(crate) trainable: bool,
    /// Its ranges must not depend on what lies beside it.
    pub(crate) alone: bool,
}

/// How parameters are put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BundleOptions {
    pub(crate) sharding: Sharding,
    /// Bytes of a bundle; a longer parameter has one to itself.
    pub(crate) bytes: usize,
}

/// The axis of the mesh that data ranks stand along.
pub(crate) const DATA: &str = "dp";

/// Parameters that travel together.
#[derive(Clone, Debug)]
pub(crate) struct Bundle {
    /// Positions in the list of weights.
    pub(crate) members: Vec<usize>,
    /// Who has which boxes of each, where they are divided.
    shards: Vec<FlatShards>,
    /// How the local piece of each is shared out.
    shares: Vec<Share>,
    /// Where each begins, and the end.
    bounds: Vec<usize>,
    /// The elements of all members, where they are kept here end to end.
    pub(crate) whole: Option<Array>,
}

impl Row<'_> {
    /// Bytes of the largest piece, so that all ranks of a stage put the same parameters together.
    fn bytes(&self) -> usize {
        let first = self.layout.mesh().ranks().next();
        let numel = first.and_then(|rank| self.layout.piece(rank).ok()).map_or(0, |piece| piece.numel());
        numel.saturating_mul(self.dtype.size())
    }
}

/// The parameters of each bundle of each block: one of the model's, or what stands before or after them. `None` rows
/// travel with another.
pub(crate) fn groups(rows: &[Option<Row<'_>>], options: BundleOptions) -> Vec<Vec<Vec<usize>>> {
    let mut blocks: Vec<Vec<Vec<usize>>> = Vec::new();
    let (mut last, mut bytes): (Option<&Row<'_>>, usize) = (None, 0);
    let single =
        |row: &Row<'_>| row.alone || (options.sharding == Sharding::Parameter && row.bytes() >= ALONE);
    for (i, row) in rows.iter().enumerate().filter_map(|(i, row)| Some((i, row.as_ref()?))) {
        let size = row.bytes();
        let same_block = last.is_some_and(|last| last.block == row.block);
        let alike = last.is_some_and(|last| {
            (last.dtype, last.trainable) == (row.dtype, row.trainable) && !single(last) && !single(row)
        });
        if !same_block {
            blocks.push(Vec::new());
        }
        last = Some(row);
        let Some(block) = blocks.last_mut() else { continue };
        match block.last_mut() {
            Some(bundle) if alike && bytes.saturating_add(size) <= options.bytes => {
                bundle.push(i);
                bytes += size;
            }
            _ => {
                block.push(vec![i]);
                bytes = size;
            }
        }
    }
    blocks
}

/// Who has which boxes of the members of a bundle.
pub(crate) fn shards(
    rows: &[Option<Row<'_>>],
    members: &[usize],
    sharding: Sharding,
) -> planaria_layout::Result<Vec<FlatShards>> {
    let layouts: Vec<Layout> =
        members.iter().filter_map(|&i| Some(rows[i].as_ref()?.layout.clone())).collect();
    match sharding {
        Sharding::Flat => FlatShards::bundle(&layouts, DATA),
        Sharding::Parameter => layouts.iter().map(|layout| FlatShards::even(layout, DATA)).collect(),
    }
}

/// The bundles of each block, as one rank has them.
pub(crate) fn blocks(
    rows: &[Option<Row<'_>>],
    options: BundleOptions,
    rank: Rank,
) -> Result<Vec<Vec<Bundle>>> {
    let made = |members: Vec<usize>| Bundle::new(shards(rows, &members, options.sharding)?, members, rank);
    let blocks = groups(rows, options).into_iter();
    blocks.map(|bundles| bundles.into_iter().map(made).collect()).collect()
}

/// Where each member begins, and the end.
fn bounds(shares: &[Share]) -> Vec<usize> {
    let ends = shares.iter().scan(0, |at, share| {
        *at += share.numel();
        Some(*at)
    });
    std::iter::once(0).chain(ends).collect()
}

impl Bundle {
    fn new(shards: Vec<FlatShards>, members: Vec<usize>, rank: Rank) -> Result<Bundle> {
        let shares = shards.iter().map(|s| s.share(rank)).collect::<planaria_layout::Result<Vec<_>>>()?;
        let bounds = bounds(&shares);
        Ok(Bundle { members, shards, shares, bounds, whole: None })
    }

    /// Some of its members by themselves, each shared out as it is now; nothing where there are none.
    pub(crate) fn only(&self, keep: impl Fn(usize) -> bool) -> Option<Bundle> {
        let kept: Vec<usize> = (0..self.members.len()).filter(|&k| keep(self.members[k])).collect();
        let shares: Vec<Share> = kept.iter().map(|&k| self.shares[k].clone()).collect();
        let bounds = bounds(&shares);
        let members = kept.iter().map(|&k| self.members[k]).collect();
        let shards = kept.iter().map(|&k| self.shards[k].clone()).collect();
        (!kept.is_empty()).then_some(Bundle { members, shards, shares, bounds, whole: None })
    }

    /// Who has which boxes of a member.
    pub(crate) fn shards(&self, member: usize) -> &FlatShards {
        &self.shards[member]
    }

    pub(crate) fn share(&self, member: usize) -> &Share {
        &self.shares[member]
    }

    fn numel(&self) -> usize {
        self.bounds[self.members.len()]
    }

    /// Where a member lies, end to end.
    pub(crate) fn range(&self, member: usize) -> Range<usize> {
        self.bounds[member]..self.bounds[member + 1]
    }

    /// Where a member's part lies among those of one rank.
    pub(crate) fn part(&self, member: usize, rank: usize) -> Range<usize> {
        let of = |share: &Share| share.range(rank).len();
        let start = self.shares[..member].iter().map(of).sum();
        start..start + of(&self.shares[member])
    }

    /// What one rank has, in places end to end, where that is one range.
    pub(crate) fn own(&self, rank: usize) -> Option<Range<usize>> {
        let mut own: Option<Range<usize>> = None;
        for (member, share) in self.shares.iter().enumerate() {
            let part = share.range(rank);
            let (start, end) = (self.bounds[member] + part.start, self.bounds[member] + part.end);
            own = match own {
                _ if part.is_empty() => own,
                None => Some(start..end),
                Some(before) if before.end == start => Some(before.start..end),
                Some(_) => return None,
            };
        }
        Some(own.unwrap_or(0..0))
    }

    /// True where the ranges of the ranks, one after the other, are the members end to end.
    pub(crate) fn is_straight(&self) -> bool {
        let ranks = self.shares.first().map_or(0, Share::ranks);
        let mut at = 0;
        (0..ranks).all(|rank| match self.own(rank) {
            Some(own) if own.is_empty() => true,
            Some(own) => std::mem::replace(&mut at, own.end) == own.start,
            None => false,
        })
    }

    fn counts(&self) -> Vec<usize> {
        let ranks = self.shares.first().map_or(0, Share::ranks);
        let of = |rank| self.shares.iter().map(|share: &Share| share.range(rank).len()).sum();
        (0..ranks).map(of).collect()
    }

    /// Begins to bring the parts of all ranks together: `send` are this rank's, in the order of the members. A
    /// straight bundle may be received into an array of all members. Collective.
    pub(crate) fn start(
        &self,
        comm: &Arc<dyn Comm>,
        send: &[Array],
        into: Option<Array>,
    ) -> Result<Gathering> {
        let send = match send {
            [one] => one.contiguous()?,
            [] => return Err(Error::Bug { what: "a bundle of nothing is sent".into() }),
            many => ops::concat(&many.iter().collect::<Vec<_>>(), 0)?,
        };
        let recv = match into {
            Some(into) => into,
            None => Array::empty_on(&[self.numel()], send.dtype(), send.device())?,
        };
        let call = AllGather { send, recv: recv.clone(), recv_counts: self.counts() };
        Ok(Gathering { pending: comm.start(Call::AllGather(call))?, recv })
    }

    /// The members of what has come.
    pub(crate) fn members_of(&self, recv: &Array) -> Result<Vec<Array>> {
        let straight = self.is_straight();
        let member = |member: usize| {
            if straight {
                let range = self.range(member);
                return Ok(recv.narrow(0, range.start, range.len())?);
            }
            let parts = self.parts_of(member, recv)?;
            Ok(ops::concat(&parts.iter().map(|(_, part)| part).collect::<Vec<_>>(), 0)?)
        };
        (0..self.members.len()).map(member).collect()
    }

    /// The parts of a member in what has come packed, each with its range of the member.
    pub(crate) fn parts_of(&self, member: usize, recv: &Array) -> Result<Vec<(Range<usize>, Array)>> {
        let share = &self.shares[member];
        let mut before = 0;
        let mut parts = Vec::with_capacity(share.ranks());
        for (rank, count) in self.counts().into_iter().enumerate() {
            let place = self.part(member, rank);
            parts.push((share.range(rank), recv.narrow(0, before + place.start, place.len())?));
            before += count;
        }
        Ok(parts)
    }
}

/// A bundle on its way.
#[derive(Debug)]
pub(crate) struct Gathering {
    pending: Pending,
    recv: Array,
}

impl Gathering {
    /// What has come, when all has.
    pub(crate) fn finish(self) -> Result<Array> {
        self.pending.wait()?;
        Ok(self.recv)
    }
}

#[cfg(test)]
mod tests;
