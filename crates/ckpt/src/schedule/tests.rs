//! Plans of all ranks put together: every byte and every element once, the same whether layouts are known or told.

use super::*;
use crate::files::FileMap;
use crate::naming;
use crate::state::{TensorKey, TensorKind};
use crate::union::Together;
use planaria_layout::{DType, FlatShards, Layout, Listed, Mesh, Placement, Shape, Slice, Tile, Tiling};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Random choices from one number.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }
}

fn mesh(dice: &mut Dice) -> Mesh {
    let sizes = [1 + dice.below(3), 1 + dice.below(4), 1 + dice.below(3)];
    Mesh::new(&[("a", sizes[0]), ("b", sizes[1]), ("c", sizes[2])]).unwrap()
}

/// A random tiling of a random tensor, from a few elements to many units.
fn tiling(dice: &mut Dice, mesh: &Mesh) -> RankTiling {
    let lens = [1, 3, 64, 700, 3000];
    let shape: Vec<usize> = (0..dice.below(3)).map(|_| lens[dice.below(5)] + dice.below(5)).collect();
    let shape = Shape::new(&shape).unwrap();
    // Sometimes on a part of the ranks only, as a pipeline stage is.
    let on = if dice.below(2) == 0 {
        mesh.clone()
    } else {
        mesh.fix(&[("a", dice.below(mesh.axis_size(0)))]).unwrap()
    };
    let place = |dice: &mut Dice, axis: &planaria_layout::Axis| match dice.below(3) {
        _ if shape.ndim() == 0 || axis.name == "b" => Placement::Replicate,
        0 => Placement::Replicate,
        _ => Placement::shard(dice.below(shape.ndim())),
    };
    let placements: Vec<Placement> = on.axes().iter().map(|axis| place(dice, axis)).collect();
    let base = Layout::new(&on, &shape, &placements).unwrap();
    match dice.below(4) {
        0 => Arc::new(base),
        1 => {
            let b = on.axis("b").unwrap();
            let dim = dice.below(shape.ndim().max(1));
            Arc::new(if shape.ndim() > 0 { base.with(b, Placement::shard(dim)).unwrap() } else { base })
        }
        2 if shape.ndim() > 1 => {
            Arc::new(Slice::new(FlatShards::even(&base, "b").unwrap(), dice.below(shape[0])).unwrap())
        }
        _ => {
            let beside = vec![base; 1 + dice.below(3)];
            let place = dice.below(beside.len());
            Arc::new(FlatShards::bundle(&beside, "b").unwrap().swap_remove(place))
        }
    }
}

/// The same as every rank would tell it.
fn told(tiling: &RankTiling, ranks: usize) -> RankTiling {
    let mut tiles = Vec::new();
    for rank in 0..ranks {
        if tiling.copies().is_some_and(|(mesh, _)| mesh.coords(rank).is_some()) {
            let owned = tiling.owned(&rank, &Fixed::default()).unwrap();
            tiles.extend(owned.into_iter().map(|owned| Tile { region: owned.region, holder: rank }));
        }
    }
    Arc::new(Listed::new(tiling.shape(), tiles).unwrap())
}

struct Case {
    ranks: usize,
    shapes: Vec<Shape>,
    held: Vec<Vec<RankTiling>>,
    files: FileMap,
}

fn case(seed: u64) -> Case {
    let dice = &mut Dice(seed);
    let mesh = mesh(dice);
    let tilings: Vec<RankTiling> = (0..1 + dice.below(6)).map(|_| tiling(dice, &mesh)).collect();
    let together = |(number, tiling): (usize, &RankTiling)| Together {
        key: TensorKey { kind: TensorKind::Parameter, name: format!("t{number}") },
        dtype: [DType::F32, DType::BF16][number % 2],
        shape: tiling.shape().clone(),
        held: vec![tiling.clone()],
    };
    let tensors: Vec<Together> = tilings.iter().enumerate().map(together).collect();
    let max_file_size = [1 << 30, 9 << 20, 1][dice.below(3)];
    let options = crate::SaveOptions { max_file_size, ..crate::SaveOptions::default() };
    let files = naming::whole(&tensors, &options, None).unwrap();
    let sizes = files.files.iter().map(|file| file.layout.file_len()).collect();
    let held = tilings.iter().map(|tiling| vec![tiling.clone()]).collect();
    let shapes = tilings.iter().map(|tiling| tiling.shape().clone()).collect();
    Case { ranks: mesh.size(), shapes, held, files: FileMap::new(sizes, files.tiles) }
}

impl Case {
    fn plans(&self, way: Way, held: &[Vec<RankTiling>], division: &Division) -> Vec<Schedule> {
        let plan = |rank: usize| {
            let (here, files) = (Here { rank, ranks: self.ranks }, self.files.clone());
            match way {
                Way::Save => Schedule::save(files, held.to_vec(), division.clone(), here),
                Way::Load => Schedule::load(files, held.to_vec(), Some(1 << 20), here),
            }
        };
        (0..self.ranks).map(plan).collect()
    }
}

/// A box on its way, as one rank sees it: tensor, unit, and the leg.
type Seen = (usize, (usize, u64), Leg);

fn legs(plan: &Schedule) -> Vec<Seen> {
    let mut seen = Vec::new();
    for unit in &plan.units {
        for run in &unit.runs {
            plan.legs_in(unit, run, &mut |leg| {
                seen.push((plan.files.tiles[leg.tile].tensor, (unit.file, unit.range.start), leg));
            });
        }
    }
    seen
}

fn key(seen: &Seen) -> (usize, (usize, u64), Region, usize, usize) {
    (seen.0, seen.1, seen.2.region.clone(), seen.2.from, seen.2.to)
}

/// Both ends of every way between two ranks see the same boxes.
fn check_ends(plans: &[Schedule]) {
    let all: Vec<Vec<Seen>> = plans.iter().map(legs).collect();
    for (rank, seen) in all.iter().enumerate() {
        for (other, theirs) in all.iter().enumerate().filter(|(other, _)| *other != rank) {
            let mine: Vec<_> = seen.iter().filter(|s| s.2.from == rank && s.2.to == other).map(key).collect();
            let come: Vec<_> =
                theirs.iter().filter(|s| s.2.from == rank && s.2.to == other).map(key).collect();
            assert_eq!(mine, come, "from {rank} to {other}");
        }
    }
}

/// Units without their boxes, which lists cut otherwise.
fn plain(units: &[Unit]) -> Vec<Unit> {
    units.iter().map(|unit| Unit { own: None, ..unit.clone() }).collect()
}

/// A rank that looks at its own boxes alone finds the traffic and the legs that it finds among the boxes of all.
fn check_own(plan: &Schedule) {
    let me = plan.here.rank;
    for unit in &plan.units {
        let (owner, mut traffic, mut expected) = (unit.owner, [0u64; 2], Vec::new());
        for run in &unit.runs {
            let run = run.start..run.end.min(unit.range.end);
            plan.visit(unit.file, &run, Whose::All, &mut |tile, region, copies| {
                let len = region.numel() * plan.files.tiles[tile].size;
                let all = || (0..copies.count()).map(|copy| copies.get(copy));
                let ends: Vec<(usize, usize)> = match plan.way {
                    Way::Save => vec![(source(copies, owner, unit.turn), owner)],
                    Way::Load => all().map(|to| (owner, to)).collect(),
                };
                // What several want is packed once, unless it stays here.
                let packed = owner == me && plan.way == Way::Load && ends != [(me, me)];
                traffic[0] += if packed { len as u64 } else { 0 };
                for (from, to) in ends.into_iter().filter(|(from, to)| *from == me || *to == me) {
                    traffic[0] += if plan.way == Way::Save && to != me { len as u64 } else { 0 };
                    traffic[1] += if from != me { len as u64 } else { 0 };
                    expected.push(Leg { tile, region: region.clone(), from, to, len });
                }
            });
        }
        let mut found = Vec::new();
        unit.runs.iter().for_each(|run| plan.legs_in(unit, run, &mut |leg| found.push(leg)));
        assert_eq!(found, expected, "{unit:?} on rank {me}");
        assert_eq!((unit.traffic, unit.shared), (traffic, traffic != [0; 2]), "{unit:?} on rank {me}");
    }
}

/// Every byte of every file belongs to one unit of one rank.
fn check_bytes(case: &Case, plans: &[Schedule]) {
    let mut units: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    for plan in plans {
        for unit in plan.units.iter().filter(|unit| unit.owner == plan.here.rank) {
            assert!(units.insert((unit.file, unit.range.start), unit.range.end).is_none(), "written twice");
        }
    }
    for (file, &size) in case.files.sizes.iter().enumerate() {
        let mut at = 0;
        while let Some(end) = units.remove(&(file, at)) {
            at = end;
        }
        assert_eq!(at, size, "file {file}");
    }
    assert!(units.is_empty());
}

/// Every element of every tensor goes to its file once: who gives it, and who writes it, by box.
fn written(case: &Case, plans: &[Schedule]) -> Vec<Listed<Rank>> {
    let mut tiles: Vec<Vec<Tile<Rank>>> = vec![Vec::new(); case.shapes.len()];
    for plan in plans {
        for (tensor, _, leg) in legs(plan).into_iter().filter(|s| s.2.to == plan.here.rank) {
            tiles[tensor].push(Tile { region: leg.region, holder: leg.from * 1000 + leg.to });
        }
    }
    tiles.into_iter().zip(&case.shapes).map(|(tiles, shape)| Listed::new(shape, tiles).unwrap()).collect()
}

/// The same boxes between the same ranks, however they are cut.
fn check_same(a: &[Listed<Rank>], b: &[Listed<Rank>]) {
    for (a, b) in a.iter().zip(b) {
        for (region, holders) in a.boxes() {
            b.lookup(region, &Fixed::default(), &mut |part, copies| {
                assert_eq!(holders, [copies.get(0)], "{part}");
            });
        }
    }
}

/// Every rank gets each of its elements once.
fn check_readers(case: &Case, plans: &[Schedule]) {
    for plan in plans {
        let rank = plan.here.rank;
        for (tensor, held) in case.held.iter().enumerate() {
            let there = held[0].copies().is_some_and(|(mesh, _)| mesh.coords(rank).is_some());
            let owned = if there { held[0].owned(&rank, &Fixed::default()).unwrap() } else { Vec::new() };
            let mine = legs(plan).into_iter().filter(|s| s.0 == tensor && s.2.to == rank);
            let tiles: Vec<Tile<Rank>> = mine.map(|s| Tile { region: s.2.region, holder: 0 }).collect();
            let count = tiles.len();
            let got = Listed::wanted(&case.shapes[tensor], tiles).unwrap();
            assert_eq!(got.boxes().count(), count, "no two overlap");
            let mut left: usize = got.boxes().map(|(region, _)| region.numel()).sum();
            for owned in &owned {
                let parts = got.boxes().filter_map(|(region, _)| region.intersect(&owned.region));
                let inside: usize = parts.map(|part| part.numel()).sum();
                assert_eq!(inside, owned.region.numel(), "rank {rank} lacks a part of {}", owned.region);
                left -= inside;
            }
            assert_eq!(left, 0, "rank {rank} gets what it does not want");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_save_moves_everything_once_and_needs_no_lists(seed in any::<u64>()) {
        let case = case(seed);
        let given = |file: usize| (file * 7 + 1) % case.ranks;
        let given = Division::Given((0..case.files.sizes.len()).map(given).collect());
        let lists: Vec<Vec<RankTiling>> = case.held.iter().map(|held| vec![told(&held[0], case.ranks)]).collect();
        for division in [Division::Units, Division::Files, given] {
            let plans = case.plans(Way::Save, &case.held, &division);
            check_bytes(&case, &plans);
            check_ends(&plans);
            plans.iter().for_each(check_own);
            let moved = written(&case, &plans);
            let from_lists = case.plans(Way::Save, &lists, &division);
            from_lists.iter().for_each(check_own);
            check_same(&moved, &written(&case, &from_lists));
            if division != Division::Files {
                for (known, listed) in plans.iter().zip(&from_lists) {
                    prop_assert_eq!(plain(&known.units), plain(&listed.units));
                }
            }
        }
    }

    #[test]
    fn a_load_brings_everyone_everything_once_and_needs_no_lists(seed in any::<u64>()) {
        let case = case(seed);
        let plans = case.plans(Way::Load, &case.held, &Division::Units);
        check_ends(&plans);
        check_readers(&case, &plans);
        let lists: Vec<Vec<RankTiling>> = case.held.iter().map(|held| vec![told(&held[0], case.ranks)]).collect();
        let from_lists = case.plans(Way::Load, &lists, &Division::Units);
        check_ends(&from_lists);
        check_readers(&case, &from_lists);
        plans.iter().chain(&from_lists).for_each(check_own);
        for (known, listed) in plans.iter().zip(&from_lists) {
            prop_assert_eq!(plain(&known.units), plain(&listed.units));
            prop_assert_eq!(&known.splits, &listed.splits);
        }
    }
}
