//! Properties of tilings other than layouts: file extents, flat shards, irregular lists.

use crate::common;
use common::{config, iota, mesh, pair, plain, shape};
use planaria_layout::{simulate, *};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SIZE: usize = 8;

/// One tile per distinct box of a layout, laid one after the other into three files.
fn as_files(layout: &Layout) -> Vec<Tile<Extent>> {
    let boxes = layout.mesh().ranks().flat_map(|rank| layout.piece(rank).unwrap().boxes());
    let mut ends = [0u64; 3];
    let mut place = |(i, region): (usize, Region)| {
        let (file, len) = (i % 3, (region.numel() * SIZE) as u64);
        let offset = ends[file];
        ends[file] += len;
        Tile { region, holder: Extent { file, offset, len } }
    };
    boxes.collect::<BTreeSet<_>>().into_iter().enumerate().map(&mut place).collect()
}

fn elements(part: &Region, outer: &Region) -> Vec<usize> {
    part.runs(outer).flat_map(|(at, len)| at..at + len).collect()
}

/// Where the elements of a box stand in a rank's buffer.
fn local_elements(piece: &Piece, region: &Region) -> Vec<usize> {
    let extents = piece.extents();
    let home = Region::new(&vec![0; extents.len()], &extents).unwrap();
    elements(&piece.locate(region).unwrap(), &home)
}

/// Each holder of `to` gets its boxes once, and senders and receivers agree.
fn check_mirror<F: Tiling, T: Tiling>(from: &F, to: &T, senders: &[F::Holder], receivers: &[T::Holder])
where
    F::Holder: std::fmt::Debug,
    T::Holder: std::fmt::Debug,
{
    let mut messages: BTreeMap<_, (Vec<Region>, Vec<Region>)> = BTreeMap::new();
    for me in receivers {
        let tiles = receive(from, to, me).unwrap();
        let owned = to.owned(me, &Fixed::default()).unwrap();
        let want: usize = owned.iter().map(|o| o.region.numel()).sum();
        assert_eq!(tiles.iter().map(|t| t.region.numel()).sum::<usize>(), want);
        for (i, tile) in tiles.iter().enumerate() {
            assert!(owned.iter().any(|o| o.region.contains(&tile.region)));
            assert!(tiles[..i].iter().all(|other| other.region.intersect(&tile.region).is_none()));
            let given = from.owned(&tile.holder, &Fixed::default()).unwrap();
            assert!(given.iter().any(|o| o.region.contains(&tile.region)));
            messages.entry((tile.holder.clone(), me.clone())).or_default().0.push(tile.region.clone());
        }
    }
    for me in senders {
        for tile in deliver(from, to, me).unwrap() {
            messages.entry((me.clone(), tile.holder)).or_default().1.push(tile.region);
        }
    }
    for ((sender, receiver), (received, sent)) in messages {
        assert_eq!(received, sent, "from {sender:?} to {receiver:?}");
    }
}

/// Looking only for what a rank has finds its boxes as they are among all, with the same copies, in the same order.
fn check_own(tiling: &dyn Tiling<Holder = Rank>, want: &Region, rank: Rank) {
    let found = |fixed: &Fixed| {
        let mut boxes = Vec::new();
        tiling.lookup(want, fixed, &mut |region, copies| {
            if copies.find_rank(rank).is_some() {
                let holders: Vec<Rank> = (0..copies.count()).map(|copy| copies.get(copy)).collect();
                boxes.push((region, holders, copies.number()));
            }
        });
        boxes
    };
    let all = found(&Fixed::default());
    match Fixed::at(tiling, rank) {
        Some(own) => assert_eq!(found(&own), all),
        None => assert_eq!(all, []),
    }
}

/// A layout, perhaps with sections of the first dim, and the name of an axis it leaves free.
fn flat_base() -> impl Strategy<Value = (Layout, &'static str)> {
    let free = (mesh(3).prop_filter("needs an axis", |m| m.naxes() > 0), shape(), 0usize..3);
    free.prop_flat_map(|(mesh, shape, pick)| {
        let axis = pick % mesh.naxes();
        plain(mesh, shape).prop_map(move |layout| {
            let first_only = |p: &Placement| match *p {
                Placement::Shard(shard) if shard.dim > 0 => Placement::Shard(Shard { sections: 1, ..shard }),
                other => other,
            };
            let placements: Vec<Placement> = layout.placements().iter().map(first_only).collect();
            let layout = Layout::new(layout.mesh(), layout.shape(), &placements).unwrap();
            (layout.with(axis, Placement::Replicate).unwrap(), ["dp", "pp", "tp"][axis])
        })
    })
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn saved_under_one_layout_loads_under_another((a, b) in pair(false), like_b in any::<bool>()) {
        let tiles = as_files(if like_b { &b } else { &a });
        let files = Listed::new(a.shape(), tiles.clone()).unwrap();
        let value = iota(a.shape());
        let mut disk: BTreeMap<(usize, u64), f64> = BTreeMap::new();
        for (rank, local) in a.mesh().ranks().zip(simulate::scatter(&a, &value, |_| 1.0).unwrap()) {
            let piece = a.piece(rank).unwrap();
            for part in deliver(&a, &files, &rank).unwrap() {
                let tile = tiles.iter().find(|t| t.holder == part.holder && t.region.contains(&part.region)).unwrap();
                let bytes = tile.byte_runs(&part.region, SIZE).flat_map(|(at, len)| (at..at + len).step_by(SIZE));
                for (byte, at) in bytes.zip(local_elements(&piece, &part.region)) {
                    prop_assert!(disk.insert((tile.holder.file, byte), local[at]).is_none(), "written twice");
                }
            }
        }
        prop_assert_eq!(disk.len(), a.shape().numel());
        for (rank, want) in b.mesh().ranks().zip(simulate::scatter(&b, &value, |_| 1.0).unwrap()) {
            let piece = b.piece(rank).unwrap();
            let mut local = vec![f64::NAN; piece.numel()];
            for part in receive(&files, &b, &rank).unwrap() {
                let tile = tiles.iter().find(|t| t.holder == part.holder && t.region.contains(&part.region)).unwrap();
                let bytes = tile.byte_runs(&part.region, SIZE).flat_map(|(at, len)| (at..at + len).step_by(SIZE));
                for (byte, at) in bytes.zip(local_elements(&piece, &part.region)) {
                    local[at] = disk[&(tile.holder.file, byte)];
                }
            }
            prop_assert_eq!(local, want);
        }
    }

    #[test]
    fn any_tilings_of_one_tensor_agree((a, b) in pair(false)) {
        let files = as_files(&b);
        let extents: Vec<Extent> = files.iter().map(|t| t.holder).collect::<BTreeSet<_>>().into_iter().collect();
        let files = Listed::new(b.shape(), files).unwrap();
        let ranks_a: Vec<Rank> = a.mesh().ranks().collect();
        let ranks_b: Vec<Rank> = b.mesh().ranks().collect();
        let tiles = ranks_a.iter().flat_map(|&holder| {
            a.piece(holder).unwrap().boxes().into_iter().map(move |region| Tile { region, holder })
        });
        let listed = Listed::new(a.shape(), tiles).unwrap();
        check_mirror(&a, &files, &ranks_a, &extents);
        check_mirror(&files, &a, &extents, &ranks_a);
        check_mirror(&listed, &b, &ranks_a, &ranks_b);
        check_mirror(&b, &listed, &ranks_b, &ranks_a);
    }

    #[test]
    fn flat_shards_go_anywhere((base, axis) in flat_base(), beside in 0usize..3, place in 0usize..3, other in mesh(2)) {
        // Alone, or end to end with others.
        let members = vec![base.clone(); beside + 1];
        let flat = FlatShards::bundle(&members, axis).unwrap().swap_remove(place.min(beside));
        let ranks: Vec<Rank> = base.mesh().ranks().collect();
        for &rank in &ranks {
            let held: usize = flat.owned(&rank, &Fixed::default()).unwrap().iter().map(|o| o.region.numel()).sum();
            prop_assert_eq!(held, flat.range(rank).unwrap().len());
        }
        check_mirror(&flat, &base, &ranks, &ranks);
        check_mirror(&base, &flat, &ranks, &ranks);
        let elsewhere = Layout::replicated(&other, base.shape());
        let others: Vec<Rank> = other.ranks().collect();
        check_mirror(&flat, &elsewhere, &ranks, &others);
        check_mirror(&elsewhere, &flat, &others, &ranks);
        for index in 0..base.shape().first().copied().unwrap_or(0) {
            let slice = Slice::new(flat.clone(), index).unwrap();
            let whole = Layout::replicated(&other, slice.shape());
            check_mirror(&slice, &whole, &ranks, &others);
            check_mirror(&whole, &slice, &others, &ranks);
        }
    }

    #[test]
    fn a_rank_may_look_for_its_own_boxes_alone(
        (base, axis) in flat_base(), (a, b) in pair(false), index in any::<prop::sample::Index>(),
    ) {
        let flat = FlatShards::even(&base, axis).unwrap();
        let last = base.mesh().size();
        for rank in (0..=last).chain(base.mesh().ranks()) {
            check_own(&base, &Region::whole(base.shape()), rank);
            check_own(&flat, &Region::whole(base.shape()), rank);
            if let Some(&len) = base.shape().first().filter(|len| **len > 0) {
                let slice = Slice::new(flat.clone(), index.index(len)).unwrap();
                check_own(&slice, &Region::whole(slice.shape()), rank);
            }
        }
        for rank in a.mesh().ranks() {
            for want in b.mesh().ranks().flat_map(|other| b.piece(other).unwrap().boxes()) {
                check_own(&a, &want, rank);
            }
            let tiles = a.mesh().ranks().flat_map(|rank| {
                let boxes = a.piece(rank).unwrap().boxes();
                boxes.into_iter().map(move |region| Tile { region, holder: rank })
            });
            check_own(&Listed::new(a.shape(), tiles.collect::<Vec<_>>()).unwrap(), &Region::whole(a.shape()), rank);
        }
    }

    /// An edge between stages of a pipeline: one layout on two meshes alike.
    #[test]
    fn an_edge_between_stages_is_one_message_between_equal_coordinates((from, _) in pair(false)) {
        let axes: Vec<(&str, usize)> = from.mesh().axes().iter().map(|a| (a.name.as_str(), a.size)).collect();
        let next = Mesh::starting_at(&axes, 1000).unwrap();
        let to = Layout::new(&next, from.shape(), from.placements()).unwrap();
        for (here, there) in from.mesh().ranks().zip(next.ranks()) {
            let mut boxes = from.piece(here).unwrap().boxes();
            boxes.sort();
            let edge = |holder: Rank| boxes.iter().cloned().map(|region| Tile { region, holder }).collect::<Vec<_>>();
            prop_assert_eq!(deliver(&from, &to, &here).unwrap(), edge(there));
            prop_assert_eq!(receive(&from, &to, &there).unwrap(), edge(here));
        }
    }

    #[test]
    fn overlapping_wishes_are_cut_apart_and_lose_nothing(
        (a, b) in pair(false), some in prop::collection::vec(any::<bool>(), 16),
    ) {
        let of = |layout: &Layout, first: Rank| -> Vec<Tile<Rank>> {
            let ranks = layout.mesh().ranks().filter(|rank| some[rank % some.len()]);
            let boxes = ranks.flat_map(|rank| layout.piece(rank).unwrap().boxes().into_iter().map(move |region| (rank, region)));
            boxes.map(|(rank, region)| Tile { region, holder: first + rank }).collect()
        };
        let mut tiles = of(&a, 0);
        tiles.extend(of(&b, 1000));
        let wanted = Listed::wanted(a.shape(), tiles.clone()).unwrap();
        let boxes: Vec<_> = wanted.boxes().collect();
        let whole = Region::whole(a.shape());
        let mut seen = BTreeMap::new();
        for (region, holders) in boxes {
            for element in elements(region, &whole) {
                prop_assert!(seen.insert(element, holders.to_vec()).is_none(), "in two boxes");
            }
        }
        let mut want: BTreeMap<usize, BTreeSet<Rank>> = BTreeMap::new();
        for tile in &tiles {
            for element in elements(&tile.region, &whole) {
                want.entry(element).or_default().insert(tile.holder);
            }
        }
        let seen: BTreeMap<usize, BTreeSet<Rank>> = seen.into_iter().map(|(e, h)| (e, h.into_iter().collect())).collect();
        prop_assert_eq!(seen, want);
    }

    #[test]
    fn flat_ranges_are_few_boxes_in_order(shape in shape(), a in 0usize..1000, b in 0usize..1000) {
        let (start, end) = (a.min(b), a.max(b));
        let boxes = flat_boxes(&shape, start..end);
        prop_assert!(boxes.len() < (2 * shape.ndim()).max(2), "2n - 1 at most");
        let whole = Region::whole(&shape);
        let covered: Vec<usize> = boxes.iter().flat_map(|b| elements(b, &whole)).collect();
        let want: Vec<usize> = (start.min(shape.numel())..end.min(shape.numel())).collect();
        prop_assert_eq!(covered, want);
    }
}

#[test]
fn listed_tiles_must_cover_exactly() {
    let shape = Shape::new(&[4, 4]).unwrap();
    let list = |texts: &[&str]| {
        let tile = |(holder, text): (usize, &&str)| Tile { region: text.parse().unwrap(), holder };
        Listed::<Rank>::new(&shape, texts.iter().enumerate().map(tile)).map(|l| l.boxes().count())
    };
    assert_eq!(list(&["[0..4, 0..2]", "[0..4, 2..4]", "[0..4, 0..2]", "[0..0, 0..4]"]), Ok(2));
    assert!(matches!(list(&["[0..4, 0..3]", "[0..4, 2..4]"]), Err(Error::Overlap { .. })));
    assert_eq!(list(&["[0..4, 0..3]"]), Err(Error::Hole { covered: 12, total: 16 }));
    assert!(matches!(list(&["[0..5, 0..4]"]), Err(Error::TileOutside { .. })));
    assert!(matches!(list(&["[0..4]"]), Err(Error::TileOutside { .. })));
}

#[test]
fn pending_reductions_cannot_be_stored() {
    let partial: Layout = "[4] @ dp:P(sum) on dp=2".parse().unwrap();
    let whole =
        Tile { region: Region::whole(partial.shape()), holder: Extent { file: 0, offset: 0, len: 32 } };
    let files = Listed::new(partial.shape(), [whole]).unwrap();
    assert!(matches!(deliver(&partial, &files, &0), Err(Error::PartialNotAllowed { .. })));
    assert!(matches!(FlatShards::even(&partial, "dp"), Err(Error::PartialNotAllowed { .. })));
}

#[test]
fn elements_of_sections_have_their_places_in_the_whole() {
    // Rows 2, 3 and 6, 7 of 8: the second half of both halves.
    let layout: Layout = "[8,3] @ tp:S0x2 on tp=2".parse().unwrap();
    let piece = layout.piece(1).unwrap();
    let found: Vec<usize> =
        (0..12).map(|at| piece.element(at).unwrap()).map(|(i, _)| i[0] * 3 + i[1]).collect();
    assert_eq!(found, [6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23]);
    assert_eq!((piece.element(4).unwrap().1, piece.element(12)), (2, None));
    let rows = Region::new(&[1, 0], &[3, 3]).unwrap();
    let texts: Vec<String> =
        piece.boxes_of(&rows).iter().map(|(inner, outer)| format!("{inner} {outer}")).collect();
    assert_eq!(texts, ["[1..2, 0..3] [3..4, 0..3]", "[2..3, 0..3] [6..7, 0..3]"]);
}
