//! Copies of a box held against each other where every rank knows who has them: a checksum goes from each to the next.

use crate::error::{Error, Result};
use crate::known::KnownTensor;
use crate::state::{Piece, TensorKey, TrainState};
use crate::talk;
use planaria_array::{Array, DType};
use planaria_comm::{AllToAll, Comm, CommExt};
use planaria_layout::{Fixed, Rank, RankTiling, Region};
use planaria_store::checksum;
use std::collections::{BTreeMap, HashMap};

/// A tensor, the tiling of it that the sender of a checksum is in, and the box.
type Link = (usize, usize, Region);

/// What this rank sends or compares: by peer and link, so that both sides have one order.
type Sums = BTreeMap<(Rank, Link), u32>;

/// The first and the last holder of a box, and those before and after this rank.
struct Row {
    first: Rank,
    last: Rank,
    before: Option<Rank>,
    after: Option<Rank>,
}

/// Refuses copies whose values differ. Each rank works for its own boxes only. Collective.
pub(crate) fn compare(world: &dyn Comm, tensors: &[KnownTensor], state: &TrainState) -> Result<()> {
    let (send, expect) = talk::agree(world, sums(tensors, state, world.rank()))?;
    let counts = |sums: &Sums| {
        let mut counts = vec![0; world.size()];
        sums.keys().for_each(|(peer, _)| counts[*peer] += 1);
        counts
    };
    let values: Vec<i64> = send.values().map(|&sum| i64::from(sum)).collect();
    let recv = Array::empty(&[expect.len()], DType::I64)?;
    world.all_to_all(AllToAll {
        send: Array::from_slice(&values, &[values.len()])?,
        send_counts: counts(&send),
        recv: recv.clone(),
        recv_counts: counts(&expect),
    })?;
    let told = recv.to_vec::<i64>()?;
    let differs = expect.iter().zip(told).find(|((_, mine), told)| i64::from(**mine) != *told);
    let compared = match differs {
        None => Ok(()),
        Some((((peer, (tensor, _, region)), mine), told)) => Err(Error::RanksDisagree {
            what: format!("the values of {region} of tensor '{}'", tensors[*tensor].key()),
            first_rank: *peer,
            first: format!("checksum {told:08x}"),
            rank: world.rank(),
            second: format!("checksum {mine:08x}"),
        }),
    };
    talk::agree(world, compared)
}

/// The checksums that this rank sends, and those that it expects.
fn sums(tensors: &[KnownTensor], state: &TrainState, me: Rank) -> Result<(Sums, Sums)> {
    let pieces: HashMap<TensorKey, &[Piece]> =
        state.items.iter().map(|item| (item.key(), &item.pieces[..])).collect();
    let (mut send, mut expect) = (Sums::new(), Sums::new());
    for (number, tensor) in tensors.iter().enumerate() {
        let pieces = pieces.get(&tensor.key()).copied().unwrap_or_default();
        for piece in pieces.iter().filter(|piece| !piece.region.is_empty()) {
            let region = &piece.region;
            let rows: Vec<Option<Row>> = tensor.held.iter().map(|tiling| row(tiling, region, me)).collect();
            let mut sum = None;
            for (place, row) in rows.iter().enumerate() {
                let Some(Row { before, after, .. }) = row.as_ref().filter(|row| row.has(me)) else {
                    continue;
                };
                let value = match sum {
                    Some(value) => value,
                    None => *sum.insert(checksum::crc32c(&piece.array.contiguous()?.bytes()?)),
                };
                let other = |place: usize| Some((place, rows[place].as_ref()?));
                // From the last of one tiling to the first of the next that has the box.
                let after =
                    after.or_else(|| (place + 1..rows.len()).find_map(other).map(|(_, row)| row.first));
                let before = match before {
                    Some(rank) => Some((place, *rank)),
                    None => (0..place).rev().find_map(other).map(|(place, row)| (place, row.last)),
                };
                if let Some(rank) = after.filter(|&rank| rank != me) {
                    send.insert((rank, (number, place, region.clone())), value);
                }
                if let Some((place, rank)) = before.filter(|&(_, rank)| rank != me) {
                    expect.insert((rank, (number, place, region.clone())), value);
                }
            }
        }
    }
    Ok((send, expect))
}

impl Row {
    fn has(&self, me: Rank) -> bool {
        self.first == me || self.before.is_some()
    }
}

/// The holders of a box in one tiling; none where it is only a part of a box there.
fn row(tiling: &RankTiling, region: &Region, me: Rank) -> Option<Row> {
    let mut row = None;
    tiling.lookup(region, &Fixed::default(), &mut |part, copies| {
        if part != *region {
            return;
        }
        let count = copies.count();
        let own = copies.find_rank(me);
        row = Some(Row {
            first: copies.get(0),
            last: copies.get(count - 1),
            before: own.filter(|&own| own > 0).map(|own| copies.get(own - 1)),
            after: own.filter(|&own| own + 1 < count).map(|own| copies.get(own + 1)),
        });
    });
    let row = row?;
    let owned = tiling.owned(&row.first, &Fixed::default()).unwrap_or_default();
    owned.iter().any(|owned| owned.region == *region).then_some(row)
}
