//! What the options of save and load do, and which exclude each other.

use crate::common::states::contents;
use planaria_array::{Array, DType, Shape};
use planaria_ckpt::{
    Casts, Derive, Error, Item, LoadOptions, Masters, Meter, Optimizer, Rebuild, Report, Result, SaveOptions,
    TensorKind, Tiles, TrainState, Unmatched, Weights, load, open, save,
};
use planaria_comm::{alone, threads};
use planaria_layout::Region;
use planaria_store::{Object, Store, StoreExt};
use serde_json::{Value, json};
use std::sync::Arc;

const FOLDER: &str = "run/step-00000001";

fn values(from: f32, len: usize) -> Vec<f32> {
    (0..len).map(|i| from + i as f32 / 8.0).collect()
}

/// A parameter in bf16 with master weight and moments, and one in f32 without a master.
fn training(from: f32) -> TrainState {
    let full = Array::from_slice(&values(from, 6), &[2, 3]).unwrap();
    let gate = Array::from_slice(&values(from + 50.0, 2), &[2]).unwrap();
    let slot = |name: &str, at: f32| {
        Item::whole(TensorKind::Slot(name.into()), "w", &Array::from_slice(&values(at, 6), &[2, 3]).unwrap())
    };
    let power = Array::from_slice(&[0.9f32], &[1]).unwrap();
    TrainState::new(vec![
        Item::whole(TensorKind::Parameter, "w", &full.cast(DType::BF16).unwrap()),
        Item::whole(TensorKind::Master, "w", &full),
        slot("moment1_0", from + 100.0),
        slot("moment2_0", from + 200.0),
        Item::whole(TensorKind::Slot("beta1_pow_acc_0".into()), "w", &power),
        Item::whole(TensorKind::Parameter, "gate", &gate),
    ])
}

/// The same with other values, to be loaded into.
fn room() -> TrainState {
    training(-1000.0)
}

fn floats(state: &TrainState, kind: &TensorKind, name: &str) -> Vec<f32> {
    let item = state.items.iter().find(|i| i.kind == *kind && i.name == name).unwrap();
    item.pieces[0].array.cast(DType::F32).unwrap().to_vec::<f32>().unwrap()
}

fn saved(store: &dyn Store, options: &SaveOptions) {
    save(&*alone(), store, FOLDER, &training(3.0), options).unwrap();
}

fn loaded(store: &dyn Store, options: &LoadOptions) -> Result<(TrainState, Report)> {
    let mut state = room();
    let report = load(&*alone(), store, FOLDER, &mut state, options)?;
    Ok((state, report))
}

fn same(state: &TrainState, other: &TrainState) {
    for item in &other.items {
        assert_eq!(
            floats(state, &item.kind, &item.name),
            floats(other, &item.kind, &item.name),
            "{:?}",
            item.key()
        );
    }
}

#[test]
fn every_checked_combination_comes_back() {
    for tiles in [Tiles::Whole, Tiles::AsHeld] {
        for weights in [Weights::Write, Weights::FromMasters] {
            for masters in [Masters::Write, Masters::Rebuild] {
                for optimizer in [Optimizer::Write, Optimizer::Skip] {
                    let options =
                        SaveOptions { tiles, weights, masters, optimizer, ..SaveOptions::default() };
                    let store = Object::memory();
                    let saved = save(&*alone(), &store, FOLDER, &training(3.0), &options);
                    let neither = weights == Weights::FromMasters
                        && (masters == Masters::Rebuild || optimizer == Optimizer::Skip);
                    if neither {
                        assert!(matches!(saved, Err(Error::Options { .. })), "{options:?}");
                        assert!(store.list("").unwrap().is_empty());
                        continue;
                    }
                    saved.unwrap();
                    let ignore = match optimizer {
                        Optimizer::Write => vec![],
                        Optimizer::Skip => vec!["optimizer:*".to_string()],
                    };
                    let rebuild =
                        if optimizer == Optimizer::Skip { Rebuild::FromParameters } else { Rebuild::AsSaved };
                    let options = LoadOptions { ignore, masters: rebuild, ..LoadOptions::default() };
                    let (state, _) = loaded(&store, &options).unwrap();
                    let mut want = training(3.0);
                    if optimizer == Optimizer::Skip {
                        want.items.retain(|item| !matches!(item.kind, TensorKind::Slot(_)));
                    }
                    // Eighths up to 4 fit in bf16, so casts lose nothing here.
                    same(&state, &want);
                }
            }
        }
    }
}

#[test]
fn masters_take_the_place_of_weights_in_the_model_files() {
    let store = Object::memory();
    saved(&store, &SaveOptions { weights: Weights::FromMasters, ..SaveOptions::default() });
    let files = contents(&store, FOLDER);
    let index: Value = serde_json::from_slice(&files["model.safetensors.index.json"]).unwrap();
    assert_eq!(index["metadata"]["total_size"], json!(6 * 4 + 2 * 4));
    assert!(!files.contains_key("master_weights.safetensors.index.json"));
    let optimizer: Value = serde_json::from_slice(&files["optimizer.safetensors.index.json"]).unwrap();
    assert_eq!(optimizer["master_weights"], json!(true));
    assert_eq!(open(&store, FOLDER).unwrap().derive, Some(Derive::ParametersFromMasters));
    let (_, report) = loaded(&store, &LoadOptions::default()).unwrap();
    assert_eq!(report.cast.len(), 1);
    assert_eq!((report.cast[0].from, report.cast[0].to), (DType::F32, DType::BF16));
}

#[test]
fn a_strict_load_names_what_differs_and_a_lenient_one_reports_it() {
    let store = Object::memory();
    saved(&store, &SaveOptions { optimizer: Optimizer::Skip, ..SaveOptions::default() });
    let refused = loaded(&store, &LoadOptions::default()).unwrap_err();
    let Error::Unmatched { missing, unexpected } = &refused else { panic!("{refused}") };
    assert_eq!(missing.len(), 4);
    assert!(missing.contains(&"optimizer:w/moment1_0".to_string()) && unexpected.is_empty());
    let options = LoadOptions { missing: Unmatched::Allow, ..LoadOptions::default() };
    let (state, report) = loaded(&store, &options).unwrap();
    assert_eq!((report.missing.len(), report.loaded.len()), (4, 2));
    assert_eq!(
        floats(&state, &TensorKind::Master, "w"),
        floats(&room(), &TensorKind::Master, "w"),
        "left alone"
    );

    let mut state = TrainState::new(vec![room().items.remove(0)]);
    let refused = load(&*alone(), &store, FOLDER, &mut state, &LoadOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("unexpected 'gate'"), "{refused}");
    let options = LoadOptions { ignore: vec!["ga*".into()], ..LoadOptions::default() };
    let report = load(&*alone(), &store, FOLDER, &mut state, &options).unwrap();
    assert_eq!(report.ignored, ["gate"]);
}

#[test]
fn casts_are_made_where_asked() {
    let store = Object::memory();
    saved(&store, &SaveOptions::default());
    let mut state = training(0.0);
    state.items[5] = Item::whole(TensorKind::Parameter, "gate", &Array::zeros(&[2], DType::F16).unwrap());
    let refused = load(&*alone(), &store, FOLDER, &mut state, &LoadOptions::default()).unwrap_err();
    assert_eq!(refused.to_string(), "tensor 'gate' has dtype f32, f16 is needed");
    let options = LoadOptions { casts: Casts::Floats, ..LoadOptions::default() };
    let report = load(&*alone(), &store, FOLDER, &mut state, &options).unwrap();
    assert_eq!(floats(&state, &TensorKind::Parameter, "gate"), [53.0, 53.125]);
    assert_eq!(report.cast[0].tensor, "gate");
    state.items[5] = Item::whole(TensorKind::Parameter, "gate", &Array::zeros(&[2], DType::I32).unwrap());
    assert!(load(&*alone(), &store, FOLDER, &mut state, &options).is_err());
    let options = LoadOptions { casts: Casts::Any, ..LoadOptions::default() };
    load(&*alone(), &store, FOLDER, &mut state, &options).unwrap();
    assert_eq!(floats(&state, &TensorKind::Parameter, "gate"), [53.0, 53.0]);
}

#[test]
fn tied_names_are_stored_once_and_loaded_under_both() {
    let store = Object::memory();
    let embed = Array::from_slice(&values(1.0, 6), &[3, 2]).unwrap();
    let mut state = TrainState::new(vec![
        Item::whole(TensorKind::Parameter, "embed", &embed),
        Item::whole(TensorKind::Parameter, "lm_head", &embed),
    ]);
    state.tied.insert("lm_head".into(), "embed".into());
    save(&*alone(), &store, FOLDER, &state, &SaveOptions::default()).unwrap();
    let checkpoint = open(&store, FOLDER).unwrap();
    assert_eq!(checkpoint.tensors.len(), 1);
    assert_eq!(checkpoint.state.tied, state.tied);
    let room =
        |name: &str| Item::whole(TensorKind::Parameter, name, &Array::zeros(&[3, 2], DType::F32).unwrap());
    // A last stage that only knows the head.
    for names in [vec!["embed", "lm_head"], vec!["lm_head"], vec!["embed"]] {
        let mut state = TrainState::new(names.iter().map(|name| room(name)).collect());
        load(&*alone(), &store, FOLDER, &mut state, &LoadOptions::default()).unwrap();
        for name in names {
            assert_eq!(floats(&state, &TensorKind::Parameter, name), values(1.0, 6));
        }
    }
}

#[test]
fn counters_values_and_files_come_back() {
    let store = Object::memory();
    let mut state = training(1.0);
    (state.step, state.samples, state.tokens) = (7, 1 << 40, u64::MAX);
    state.random = json!({"seed": 5, "offset": [1, 2]});
    state.schedule = json!({"lr": 1e-3, "exact": 0.1});
    state.config = json!({"mesh": "dp=2"});
    state.extra = json!([null, true, "x"]);
    state.files.insert("config.json".into(), br#"{"a":1}"#[..].into());
    state.files.insert("tokenizer.model".into(), [0, 255, 1].into());
    save(&*alone(), &store, FOLDER, &state, &SaveOptions::default()).unwrap();
    let (back, _) = loaded(&store, &LoadOptions::default()).unwrap();
    assert_eq!((back.step, back.samples, back.tokens), (7, 1 << 40, u64::MAX));
    assert_eq!((&back.random, &back.schedule), (&state.random, &state.schedule));
    assert_eq!((&back.config, &back.extra), (&state.config, &state.extra));
    assert_eq!(back.files, state.files);
    assert_eq!(store.read(&format!("{FOLDER}/config.json"), 99).unwrap(), br#"{"a":1}"#);
    state.files.insert("manifest.json".into(), [].into());
    let refused = save(&*alone(), &store, "other", &state, &SaveOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::FileName { .. }));
}

#[test]
fn states_without_tensors_and_tensors_without_elements() {
    let store = Object::memory();
    let mut state = TrainState { step: 3, ..TrainState::default() };
    save(&*alone(), &store, "empty", &state, &SaveOptions::default()).unwrap();
    state.step = 0;
    load(&*alone(), &store, "empty", &mut state, &LoadOptions::default()).unwrap();
    assert_eq!(state.step, 3);
    for tiles in [Tiles::Whole, Tiles::AsHeld] {
        let folder = format!("{tiles:?}");
        let none = Array::zeros(&[0, 128], DType::F32).unwrap();
        let state = TrainState::new(vec![Item::whole(TensorKind::Parameter, "none", &none)]);
        let options = SaveOptions { tiles, ..SaveOptions::default() };
        save(&*alone(), &store, &folder, &state, &options).unwrap();
        assert_eq!(
            open(&store, &folder).unwrap().tensors.values().next().unwrap().shape.to_string(),
            "[0,128]"
        );
        let mut state = state;
        load(&*alone(), &store, &folder, &mut state, &LoadOptions::default()).unwrap();
    }
}

#[test]
fn ranks_that_disagree_are_told_so() {
    let store = Object::memory();
    let ends = threads::run(3, |world| {
        let rows = if world.rank() == 2 { 4 } else { 3 };
        let array = Array::zeros(&[rows, 2], DType::F32).unwrap();
        let state = TrainState::new(vec![Item::whole(TensorKind::Parameter, "w", &array)]);
        save(&*world, &store, "a", &state, &SaveOptions::default()).unwrap_err().to_string()
    });
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    assert_eq!(ends[0], "ranks 0 and 2 disagree about the shape of tensor 'w': [3,2] and [4,2]");

    // Half of a tensor that nobody completes.
    let ends = threads::run(2, |world| {
        let shape = Shape::new(&[4]).unwrap();
        let region = if world.rank() == 0 { "[0..2]" } else { "[3..4]" };
        let region: Region = region.parse().unwrap();
        let array = Array::zeros(&region.extents(), DType::F32).unwrap();
        let pieces = vec![planaria_ckpt::Piece { region, array }];
        let item = Item { kind: TensorKind::Parameter, name: "w".into(), shape, dtype: DType::F32, pieces };
        save(&*world, &store, "a", &TrainState::new(vec![item]), &SaveOptions::default())
            .unwrap_err()
            .to_string()
    });
    assert!(ends[0].contains("'w'") && ends[0] == ends[1], "{ends:?}");
    assert!(store.list("").unwrap().is_empty(), "nothing is written before everything is checked");
}

#[test]
fn a_meter_knows_nothing_before_a_save_and_counts_every_byte_once() {
    for tiles in [Tiles::Whole, Tiles::AsHeld] {
        let store = Object::memory();
        let shares = threads::run(2, |world| {
            let meter = Arc::new(Meter::default());
            assert_eq!(meter.share(), None);
            let options = SaveOptions { meter: Some(meter.clone()), tiles, ..SaveOptions::default() };
            let array = Array::from_slice(&values(1.0, 64), &[64]).unwrap();
            // Each rank has a tensor of its own, so that both write something where files are cut by holder.
            let name = format!("w{}", world.rank());
            let state = TrainState::new(vec![Item::whole(TensorKind::Parameter, &name, &array)]);
            save(&*world, &store, FOLDER, &state, &options).unwrap();
            meter.share()
        });
        let written: Vec<f64> = shares.into_iter().flatten().collect();
        assert!(!written.is_empty() && written.iter().all(|share| *share == 1.0), "{written:?}");
    }
}
