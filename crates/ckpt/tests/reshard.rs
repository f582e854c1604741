//! Saved under one layout, loaded under another: the same bits, whatever the layouts.

use crate::common::states::{Dice, Holding, compare, contents, globals, holding, known, mesh, state};
use planaria_array::{Array, DType};
use planaria_ckpt::{
    Item, Known, KnownTensor, LoadOptions, Piece, Replicas, SaveOptions, TensorKind, Tiles, TrainState, load,
    save,
};
use planaria_comm::threads;
use planaria_layout::{Layout, Mesh, RankTiling, Region, Shape};
use planaria_store::{Local, Object, Store};
use std::sync::Arc;

fn round_trip(seed: u64, store: &dyn Store) {
    let mut dice = Dice::new(seed);
    let tensors = 1 + dice.below(8);
    let globals = globals(&mut dice, tensors);
    let (from, to) = (1 + dice.below(8), 1 + dice.below(8));
    let plan = |dice: &mut Dice, ranks: usize| -> Vec<Holding> {
        let mesh = mesh(dice, ranks);
        globals.iter().map(|global| holding(dice, &mesh, &global.shape)).collect()
    };
    let (held, wanted) = (plan(&mut dice, from), plan(&mut dice, to));
    let tiles = if dice.below(4) == 0 { Tiles::AsHeld } else { Tiles::Whole };
    let max_file_size = 1 + dice.below(2000) as u64;
    // Half of the cases plan alone, from what everyone knows; the others tell each other first.
    let alone = dice.below(2) == 0;
    let replicas = *dice.pick(&[Replicas::Trust, Replicas::Compare]);
    let options = SaveOptions { max_file_size, tiles, replicas, ..SaveOptions::default() };
    let (all_held, all_wanted) = (known(&globals, &held), known(&globals, &wanted));
    let folder = format!("case-{seed}");
    threads::run(from, |world| {
        let mut state = state(&globals, &held, world.rank(), true);
        state.known = alone.then(|| all_held.clone());
        save(&*world, store, &folder, &state, &options).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    });
    threads::run(to, |world| {
        let mut state = state(&globals, &wanted, world.rank(), false);
        state.known = alone.then(|| all_wanted.clone());
        let report = load(&*world, store, &folder, &mut state, &LoadOptions::default());
        let report = report.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(report.missing.is_empty() && report.unexpected.is_empty());
        compare(&state, &globals);
    });
    if tiles == Tiles::AsHeld {
        return;
    }
    // The files of tensors depend on the tensors alone.
    let again = format!("case-{seed}-again");
    threads::run(to, |world| {
        let state = state(&globals, &wanted, world.rank(), true);
        save(&*world, store, &again, &state, &options).unwrap()
    });
    let data = |folder: &str| {
        let mut files = contents(store, folder);
        files.retain(|name, _| name.contains("safetensors"));
        files
    };
    assert!(data(&folder) == data(&again), "seed {seed}");
}

#[test]
fn any_layout_to_any_other_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = Local::new(folder.path());
    (0..40).for_each(|seed| round_trip(seed, &store));
}

#[test]
fn any_layout_to_any_other_in_an_object_store() {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    (1000..1260).for_each(|seed| round_trip(seed, &store));
}

/// Tensors of several units, rows to columns and back: everything is read once, and nothing twice.
#[test]
fn large_tensors_are_read_once_whatever_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let store = Local::new(folder.path());
    let value = |rows: usize, columns: usize| {
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        Array::from_slice(&values, &[rows, columns]).unwrap()
    };
    let tensors = [("a", value(2500, 1500)), ("b", value(1001, 3000)), ("c", value(8, 12))];
    let placed = |cut: &str, ranks: usize, rank: usize, fill: bool| {
        let items = tensors.iter().map(|(name, whole)| {
            let layout: Layout = format!("{} @ r:{cut} on r={ranks}", whole.shape()).parse().unwrap();
            let region = layout.piece(rank).unwrap().boxes().remove(0);
            let part = whole.region(&region).unwrap().copy().unwrap();
            let part = if fill { part } else { Array::zeros(part.shape(), DType::F32).unwrap() };
            Item::placed(TensorKind::Parameter, *name, &layout, rank, &part).unwrap()
        });
        TrainState::new(items.collect())
    };
    let total: usize = tensors.iter().map(|(_, t)| t.numel() * 4).sum();
    for (number, (from, many, to, few)) in
        [("S0", 4, "S0", 2), ("S0", 2, "S1", 3), ("S1", 3, "R", 2), ("R", 2, "S1", 4), ("S0", 1, "R", 8)]
            .into_iter()
            .enumerate()
    {
        let folder = format!("case-{number}");
        threads::run(many, |world| {
            let state = placed(from, many, world.rank(), true);
            save(&*world, &store, &folder, &state, &SaveOptions::default()).unwrap()
        });
        threads::run(few, |world| {
            let mut state = placed(to, few, world.rank(), false);
            let report = load(&*world, &store, &folder, &mut state, &LoadOptions::default()).unwrap();
            let want = placed(to, few, world.rank(), true);
            for (got, want) in state.items.iter().zip(&want.items) {
                let (got, want) = (got.pieces[0].array.clone(), want.pieces[0].array.clone());
                assert!(got.bytes().unwrap()[..] == want.bytes().unwrap()[..], "{folder} {}", world.rank());
            }
            let amplification = report.bytes_read as f64 / total as f64;
            assert!(amplification <= 1.01, "{folder}: {amplification}");
        });
    }
}

/// A rank that holds something else than everyone knows is told so, on all ranks.
#[test]
fn what_is_known_is_checked() {
    let mut dice = Dice::new(7);
    let globals = globals(&mut dice, 4);
    let whole: Vec<Holding> = globals.iter().map(|_| Holding::Some(vec![0, 1, 2, 3])).collect();
    let store = Object::memory();
    let refused = |say: &(dyn Fn(usize, &mut TrainState) + Sync)| {
        let ends = threads::run(4, |world| {
            let mut state = state(&globals, &whole, world.rank(), true);
            state.known = Some(known(&globals, &whole));
            say(world.rank(), &mut state);
            save(&*world, &store, "never", &state, &SaveOptions::default()).unwrap_err().to_string()
        });
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        ends[0].clone()
    };
    let lost = refused(&|rank, state| state.items.truncate(if rank == 2 { 1 } else { 4 }));
    assert!(lost.contains("rank 2 holds") && lost.contains("the list of the state says"), "{lost}");
    let other = refused(&|rank, state| state.step = u64::from(rank == 3));
    assert!(other.contains("ranks 0 and 3 disagree"), "{other}");
}

/// One copy that differs is found, whoever has it, and by ranks that know the state without telling each other of it too;
/// what only one rank has cannot differ.
#[test]
fn copies_that_differ_are_refused() {
    let options = SaveOptions { replicas: Replicas::Compare, ..SaveOptions::default() };
    let mut refused = 0;
    for seed in 0..60 {
        let mut dice = Dice::new(1000 + seed);
        let ranks = 2 + dice.below(6);
        let (globals, mesh) = (globals(&mut dice, 3), mesh(&mut dice, ranks));
        let holdings: Vec<Holding> =
            globals.iter().map(|global| holding(&mut dice, &mesh, &global.shape)).collect();
        let all: Vec<TrainState> = (0..ranks).map(|rank| state(&globals, &holdings, rank, true)).collect();
        let boxes = |rank: usize| {
            let items = all[rank].items.iter();
            let pieces = items.flat_map(|item| item.pieces.iter().map(|piece| (item.name.clone(), piece)));
            pieces.filter(|(_, piece)| !piece.region.is_empty())
        };
        let own: Vec<(usize, String, Region)> = (0..ranks)
            .flat_map(|rank| boxes(rank).map(move |(name, piece)| (rank, name, piece.region.clone())))
            .collect();
        let Some((odd, name, region)) = (!own.is_empty()).then(|| dice.pick(&own).clone()) else { continue };
        let copies = own.iter().filter(|(_, n, r)| (n, r) == (&name, &region)).count();
        for alone in [true, false] {
            let store = Object::memory();
            let ends = threads::run(ranks, |world| {
                let mut state = state(&globals, &holdings, world.rank(), true);
                state.known = alone.then(|| known(&globals, &holdings));
                let items = state.items.iter_mut().filter(|item| item.name == name && world.rank() == odd);
                for piece in items.flat_map(|item| &mut item.pieces).filter(|piece| piece.region == region) {
                    piece.array = piece.array.copy().unwrap();
                    piece.array.write_bytes(0..1, |bytes| bytes[0] ^= 1).unwrap();
                }
                save(&*world, &store, "never", &state, &options).map_err(|error| error.to_string())
            });
            assert!(ends.iter().all(|end| end.is_err() == (copies > 1)), "seed {seed}: {ends:?}");
            let Err(error) = &ends[0] else { continue };
            assert!(error.contains("disagree") && error.contains(&name), "seed {seed}: {error}");
            assert!(error.contains(&odd.to_string()) && error.contains(&region.to_string()), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused}");
}

/// A value that two stages have, each on its own mesh, is compared between the stages.
#[test]
fn copies_of_two_stages_are_compared() {
    let shape = Shape::new(&[4, 2]).unwrap();
    let stage = |ranks: [usize; 2]| -> RankTiling {
        let mesh = Mesh::with_ranks(&[("tp", 2)], &ranks).unwrap();
        Arc::new(Layout::new(&mesh, &shape, &["S0".parse().unwrap()]).unwrap())
    };
    let held = vec![stage([0, 1]), stage([2, 3])];
    for odd in 0..5 {
        let store = Object::memory();
        let ends = threads::run(4, |world| {
            let rows = 2 * (world.rank() % 2);
            let region: Region = format!("[{rows}..{}, 0..2]", rows + 2).parse().unwrap();
            let value = if world.rank() == odd { 2.0 } else { 1.0 };
            let array = Array::full(&[2, 2], value, DType::F32).unwrap();
            let (kind, name, dtype) = (TensorKind::Parameter, "w".to_string(), DType::F32);
            let known = KnownTensor {
                kind: kind.clone(),
                name: name.clone(),
                shape: shape.clone(),
                dtype,
                held: held.clone(),
            };
            let pieces = vec![Piece { region, array }];
            let mut state = TrainState::new(vec![Item { kind, name, shape: shape.clone(), dtype, pieces }]);
            state.known = Some(Known::new(vec![known]).unwrap());
            let options = SaveOptions { replicas: Replicas::Compare, ..SaveOptions::default() };
            save(&*world, &store, "w", &state, &options).is_ok()
        });
        assert!(ends.iter().all(|&saved| saved == (odd == 4)), "{odd}: {ends:?}");
    }
}
