//! Mistakes that other checkpoint engines are known for, each with the test that we do not make it.

use crate::common::states::{Dice, Global, Holding, compare, contents, state};
use planaria_array::{Array, DType, Shape};
use planaria_ckpt::{
    Error, Item, LoadOptions, Masters, Piece, Replicas, Retain, SaveOptions, TensorKind, TrainState,
    Unmatched, committed, latest, load, open, save, step_folder,
};
use planaria_comm::{alone, threads};
use planaria_layout::{FlatShards, Layout, Region};
use planaria_store::{Fault, Faulty, Object, PutMode, Store, StoreExt};
use serde_json::{Value, json};

const FOLDER: &str = "run/step-00000001";

fn one(name: &str, array: &Array) -> TrainState {
    TrainState::new(vec![Item::whole(TensorKind::Parameter, name, array)])
}

fn put(store: &dyn Store, folder: &str, state: &TrainState) {
    save(&*alone(), store, folder, state, &SaveOptions::default()).unwrap();
}

fn get(store: &dyn Store, folder: &str, state: &mut TrainState) -> Result<(), Error> {
    load(&*alone(), store, folder, state, &LoadOptions::default()).map(|_| ())
}

fn index(store: &dyn Store, folder: &str, name: &str) -> Value {
    serde_json::from_slice(&contents(store, folder)[name]).unwrap()
}

/// Ranks write different flat slices under one key, the index keeps the last, and load slices a slice.
#[test]
fn split_params_without_gather() {
    let mut dice = Dice::new(1);
    let slot = TensorKind::Slot("moment1_0".into());
    let globals = vec![Global::new(&mut dice, slot, "w", &[7, 5], DType::F32)];
    let held = |ranks: usize| {
        let base: Layout = format!("[7,5] @ dp:R on dp={ranks}").parse().unwrap();
        vec![Holding::Flat(FlatShards::even(&base, "dp").unwrap())]
    };
    let store = Object::memory();
    threads::run(4, |world| {
        let state = state(&globals, &held(4), world.rank(), true);
        save(&*world, &store, FOLDER, &state, &SaveOptions::default()).unwrap()
    });
    let total = index(&store, FOLDER, "optimizer.safetensors.index.json")["metadata"]["total_size"].clone();
    assert_eq!(total, json!(7 * 5 * 4));
    threads::run(3, |world| {
        let mut state = state(&globals, &held(3), world.rank(), false);
        load(&*world, &store, FOLDER, &mut state, &LoadOptions::default()).unwrap();
        compare(&state, &globals);
    });
}

/// The index claims masters that were not written, and masters are rebuilt for the first parameter only.
#[test]
fn remove_master_weight_round_trip() {
    let full = |from: f32| Array::from_slice(&[from, from + 1.0], &[2]).unwrap();
    let training = |from: f32| {
        let items = ["a", "b", "c"].into_iter().enumerate().flat_map(|(n, name)| {
            let master = full(from + n as f32 * 8.0);
            let weight = master.cast(DType::BF16).unwrap();
            [
                Item::whole(TensorKind::Parameter, name, &weight),
                Item::whole(TensorKind::Master, name, &master),
                Item::whole(TensorKind::Slot("moment1_0".into()), name, &master),
            ]
        });
        TrainState::new(items.collect())
    };
    for ranks in [1, 2] {
        let store = Object::memory();
        threads::run(ranks, |world| {
            let options = SaveOptions { masters: Masters::Rebuild, ..SaveOptions::default() };
            save(&*world, &store, FOLDER, &training(1.0), &options).unwrap();
            let mut state = training(-9.0);
            load(&*world, &store, FOLDER, &mut state, &LoadOptions::default()).unwrap();
            let masters = state.items.iter().filter(|item| item.kind == TensorKind::Master);
            let values: Vec<f32> = masters.map(|m| m.pieces[0].array.to_vec::<f32>().unwrap()[0]).collect();
            assert_eq!(values, [1.0, 9.0, 17.0]);
        });
        assert_eq!(index(&store, FOLDER, "optimizer.safetensors.index.json")["master_weights"], json!(false));
    }
}

/// A `[0, 128]` weight is stored as `[0]`.
#[test]
fn zero_size_shape_lost() {
    let store = Object::memory();
    put(&store, FOLDER, &one("w", &Array::zeros(&[0, 128], DType::BF16).unwrap()));
    let checkpoint = open(&store, FOLDER).unwrap();
    assert_eq!(checkpoint.tensors.values().next().unwrap().shape.to_string(), "[0,128]");
    let refused = get(&store, FOLDER, &mut one("w", &Array::zeros(&[0], DType::BF16).unwrap()));
    assert!(matches!(refused, Err(Error::ShapeOf { .. })));
}

/// A bool counts as an eighth of a byte, fp8 and integers have no size, and every rank adds to the total.
#[test]
fn total_size_is_exact_for_every_dtype_and_any_number_of_ranks() {
    for ranks in [1, 3] {
        let store = Object::memory();
        threads::run(ranks, |world| {
            let items = DType::ALL.iter().map(|dtype| {
                Item::whole(TensorKind::Parameter, dtype.name(), &Array::zeros(&[3, 5], *dtype).unwrap())
            });
            save(&*world, &store, FOLDER, &TrainState::new(items.collect()), &SaveOptions::default()).unwrap()
        });
        let bytes: usize = DType::ALL.iter().map(|dtype| 15 * dtype.size()).sum();
        let index = index(&store, FOLDER, "model.safetensors.index.json");
        assert_eq!(index["metadata"]["total_size"], json!(bytes));
    }
}

/// `moe_gate_1` takes what belongs to `moe_gate_10`, and slots are told apart by parts of their names.
#[test]
fn names_that_begin_alike() {
    let store = Object::memory();
    let names = ["moe_gate_1", "moe_gate_10", "moe_gate_1_moment1_0", "a/b", "a"];
    let state = |fill: bool| {
        let value = |n: usize| Array::full(&[2], if fill { n as f32 } else { -1.0 }, DType::F32).unwrap();
        let items = names.iter().enumerate().flat_map(|(n, name)| {
            let slot = TensorKind::Slot("moment1_0".into());
            [Item::whole(TensorKind::Parameter, *name, &value(n)), Item::whole(slot, *name, &value(n + 50))]
        });
        TrainState::new(items.collect())
    };
    put(&store, FOLDER, &state(true));
    let mut loaded = state(false);
    get(&store, FOLDER, &mut loaded).unwrap();
    for (got, want) in loaded.items.iter().zip(state(true).items) {
        let values = |item: &Item| item.pieces[0].array.to_vec::<f32>().unwrap();
        assert_eq!(values(got), values(&want), "{}", got.name);
    }
}

/// Where shapes differ only the common part is filled, and nobody is told.
#[test]
fn shape_mismatch_fills_the_overlap() {
    let store = Object::memory();
    put(&store, FOLDER, &one("w", &Array::full(&[4, 4], 1.0, DType::F32).unwrap()));
    for shape in [[4, 6], [2, 4], [4, 3]] {
        let room = Array::full(&shape, 7.0, DType::F32).unwrap();
        let refused = get(&store, FOLDER, &mut one("w", &room)).unwrap_err();
        assert!(refused.to_string().starts_with("tensor 'w' has shape [4,4] in the checkpoint"), "{refused}");
        assert!(room.to_vec::<f32>().unwrap().iter().all(|v| *v == 7.0), "nothing was touched");
    }
}

/// The fast path takes the dtype of the file, whatever the target has.
#[test]
fn fast_path_changes_dtype() {
    let store = Object::memory();
    put(&store, FOLDER, &one("w", &Array::full(&[4], 1.0, DType::F32).unwrap()));
    let refused = get(&store, FOLDER, &mut one("w", &Array::zeros(&[4], DType::BF16).unwrap())).unwrap_err();
    assert!(matches!(refused, Error::DType { found: DType::F32, expected: DType::BF16, .. }));
}

/// A missing key is a warning, then a bare `KeyError('k')`, for the first one only.
#[test]
fn bare_key_error() {
    let store = Object::memory();
    put(&store, FOLDER, &one("w", &Array::zeros(&[1], DType::F32).unwrap()));
    let mut state = one("w", &Array::zeros(&[1], DType::F32).unwrap());
    for name in ["x", "y"] {
        state.items.push(Item::whole(TensorKind::Parameter, name, &Array::zeros(&[1], DType::F32).unwrap()));
    }
    let refused = get(&store, FOLDER, &mut state).unwrap_err().to_string();
    assert_eq!(refused, "the checkpoint is missing 'x', 'y'; name what may differ in the options");
}

/// The highest-numbered folder is resumed from, complete or not.
#[test]
fn resume_picks_a_half_written_folder() {
    let store = Object::memory();
    put(&store, FOLDER, &one("w", &Array::zeros(&[1], DType::F32).unwrap()));
    for name in ["model-00001-of-00001.safetensors", "manifest.json", "SAVING"] {
        store.put(&format!("run/step-00000002/{name}"), b"half", PutMode::Create).unwrap();
    }
    assert_eq!(latest(&store, "run").unwrap().as_deref(), Some(FOLDER));
}

/// Saving again into one folder replaces the data and keeps the old metadata.
#[test]
fn resave_keeps_old_metadata() {
    let store = Object::memory();
    put(&store, FOLDER, &one("w", &Array::zeros(&[1], DType::F32).unwrap()));
    let before = contents(&store, FOLDER);
    let state = one("w", &Array::full(&[9], 1.0, DType::F32).unwrap());
    let refused = save(&*alone(), &store, FOLDER, &state, &SaveOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::Committed { .. }));
    assert!(before == contents(&store, FOLDER));
}

/// After a failed load the next one works with what is left of the first, and one path is cached for ever.
#[test]
fn stale_metadata_after_an_error() {
    let store = Object::memory();
    put(&store, "a", &one("w", &Array::full(&[2], 1.0, DType::F32).unwrap()));
    put(&store, "b", &one("w", &Array::full(&[3], 2.0, DType::F32).unwrap()));
    let room = Array::zeros(&[3], DType::F32).unwrap();
    assert!(get(&store, "a", &mut one("w", &room)).is_err());
    get(&store, "b", &mut one("w", &room)).unwrap();
    assert_eq!(room.to_vec::<f32>().unwrap(), [2.0; 3]);
    store.delete_all("b").unwrap();
    put(&store, "b", &one("w", &Array::full(&[3], 5.0, DType::F32).unwrap()));
    get(&store, "b", &mut one("w", &room)).unwrap();
    assert_eq!(room.to_vec::<f32>().unwrap(), [5.0; 3]);
}

/// Copies that have come to differ are saved as if they were equal.
#[test]
fn divergent_replicas() {
    let store = Object::memory();
    let ends = threads::run(3, |world| {
        let value = if world.rank() == 2 { 1.5 } else { 1.0 };
        let state = one("w", &Array::full(&[4], value, DType::F32).unwrap());
        let options = SaveOptions { replicas: Replicas::Compare, ..SaveOptions::default() };
        save(&*world, &store, FOLDER, &state, &options).unwrap_err().to_string()
    });
    assert!(
        ends[0].contains("ranks 0 and 2 disagree about the values of [0..4] of tensor 'w'"),
        "{}",
        ends[0]
    );
    assert!(ends.iter().all(|end| *end == ends[0]));
}

/// Boxes that overlap in part are both stored.
#[test]
fn partial_overlaps_are_stored() {
    let store = Object::memory();
    let ends = threads::run(2, |world| {
        let region: Region = if world.rank() == 0 { "[0..3]" } else { "[2..4]" }.parse().unwrap();
        let array = Array::zeros(&region.extents(), DType::F32).unwrap();
        let (shape, pieces) = (Shape::new(&[4]).unwrap(), vec![Piece { region, array }]);
        let item = Item { kind: TensorKind::Parameter, name: "w".into(), shape, dtype: DType::F32, pieces };
        save(&*world, &store, FOLDER, &TrainState::new(vec![item]), &SaveOptions::default())
            .unwrap_err()
            .to_string()
    });
    assert!(ends[0].contains("'w'") && ends[0].contains("overlap"), "{}", ends[0]);
}

/// Tied weights are missing on resume, or stored twice.
#[test]
fn tied_weights_are_missing() {
    let store = Object::memory();
    let value = Array::full(&[2, 2], 3.0, DType::F32).unwrap();
    let mut state = one("embed", &value);
    state.items.push(Item::whole(TensorKind::Parameter, "head", &value));
    state.tied.insert("head".into(), "embed".into());
    // Two stages: the first holds the embedding, the last the head.
    threads::run(2, |world| {
        let mut mine = state.clone();
        mine.items.remove(1 - world.rank());
        save(&*world, &store, FOLDER, &mine, &SaveOptions::default()).unwrap();
        let room = Array::zeros(&[2, 2], DType::F32).unwrap();
        let mut mine = one(if world.rank() == 0 { "embed" } else { "head" }, &room);
        load(&*world, &store, FOLDER, &mut mine, &LoadOptions::default()).unwrap();
        assert_eq!(room.to_vec::<f32>().unwrap(), [3.0; 4]);
    });
    assert_eq!(open(&store, FOLDER).unwrap().tensors.len(), 1);
}

/// A rank without tensors, a state with fewer tensors than ranks, and an empty one end in errors.
#[test]
fn fewer_tensors_than_ranks() {
    let store = Object::memory();
    for (number, holders) in [vec![2], vec![]].into_iter().enumerate() {
        let folder = format!("{number}");
        threads::run(4, |world| {
            let array = Array::full(&[3], 2.0, DType::F32).unwrap();
            let state =
                if holders.contains(&world.rank()) { one("w", &array) } else { TrainState::default() };
            save(&*world, &store, &folder, &state, &SaveOptions::default()).unwrap();
        });
        assert_eq!(open(&store, &folder).unwrap().tensors.len(), holders.len());
    }
}

/// A scalar of one framework is a vector of one element in the other.
#[test]
fn scalars_and_vectors_of_one() {
    let store = Object::memory();
    put(&store, "0d", &one("s", &Array::scalar(4.0, DType::F32).unwrap()));
    put(&store, "1d", &one("s", &Array::full(&[1], 4.0, DType::F32).unwrap()));
    for folder in ["0d", "1d"] {
        for shape in [&[][..], &[1], &[1, 1]] {
            let room = Array::zeros(shape, DType::F32).unwrap();
            get(&store, folder, &mut one("s", &room)).unwrap();
            assert_eq!(room.to_vec::<f32>().unwrap(), [4.0], "{folder} {shape:?}");
        }
    }
}

/// `save_total_limit` does nothing on one card, or counts what is not complete yet.
#[test]
fn retention_on_one_rank_and_never_before_the_commit() {
    let store = Object::memory();
    let state = one("w", &Array::zeros(&[2], DType::F32).unwrap());
    let options =
        SaveOptions { retain: Retain { last: Some(1), ..Retain::default() }, ..SaveOptions::default() };
    let folder = |step| format!("run/{}", step_folder(step));
    save(&*alone(), &store, &folder(1), &state, &options).unwrap();
    // Any failure of the second save leaves the first.
    let counting = Faulty::counting(store.clone());
    save(&*alone(), &counting, &folder(2), &state, &SaveOptions::default()).unwrap();
    assert_eq!(committed(&store, "run").unwrap(), [1, 2]);
    for at in 0..counting.operations() {
        let broken =
            save(&*alone(), &Faulty::new(store.clone(), Fault::Kill, at), &folder(3), &state, &options);
        let steps = committed(&store, "run").unwrap();
        assert!(broken.is_ok() || steps.len() > 1 || steps == [3], "{at}: {steps:?}");
        if steps.contains(&3) {
            break;
        }
    }
    save(&*alone(), &store, &folder(9), &state, &options).unwrap();
    assert_eq!(committed(&store, "run").unwrap(), [9]);
}

/// Shard contents are shuffled, and the index is in the order of gathering.
#[test]
fn the_same_state_makes_the_same_bytes() {
    let mut dice = Dice::new(9);
    let globals = crate::common::states::globals(&mut dice, 12);
    let store = Object::memory();
    for (folder, ranks) in [("a", 1), ("b", 1), ("c", 4), ("d", 4)] {
        let all = vec![Holding::Some((0..ranks).collect()); 12];
        threads::run(ranks, |world| {
            let mut state = state(&globals, &all, world.rank(), true);
            if folder > "a" {
                state.items.reverse();
            }
            save(&*world, &store, folder, &state, &SaveOptions::default()).unwrap();
        });
    }
    assert!(contents(&store, "a") == contents(&store, "b"));
    assert!(contents(&store, "c") == contents(&store, "d"));
}

/// Random state that was saved on another topology raises, or is thrown away in silence.
#[test]
fn random_state_survives_another_topology() {
    let store = Object::memory();
    threads::run(4, |world| {
        let mut state = one("w", &Array::zeros(&[1], DType::F32).unwrap());
        state.random = json!({"seed": 7, "streams": {"dp=0": 3}});
        save(&*world, &store, FOLDER, &state, &SaveOptions::default()).unwrap();
    });
    let mut state = one("w", &Array::zeros(&[1], DType::F32).unwrap());
    get(&store, FOLDER, &mut state).unwrap();
    assert_eq!(state.random, json!({"seed": 7, "streams": {"dp=0": 3}}));
}

/// Skipping the optimizer on load also resets the step.
#[test]
fn ignoring_the_optimizer_keeps_the_step() {
    let store = Object::memory();
    let array = Array::zeros(&[1], DType::F32).unwrap();
    let mut state = one("w", &array);
    state.items.push(Item::whole(TensorKind::Slot("moment1_0".into()), "w", &array));
    (state.step, state.samples) = (77, 1234);
    put(&store, FOLDER, &state);
    let mut state = one("w", &array);
    let options = LoadOptions { unexpected: Unmatched::Allow, ..LoadOptions::default() };
    load(&*alone(), &store, FOLDER, &mut state, &options).unwrap();
    assert_eq!((state.step, state.samples), (77, 1234));
}
