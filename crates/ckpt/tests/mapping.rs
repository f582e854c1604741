//! Loading through a mapping and saving through its inverse, and loading the folders of others.

use crate::common::states::contents;
use planaria_aoa::{Catalog, Mapping, Options, Program, Tensor, Ties};
use planaria_array::{Array, DType, Shape};
use planaria_ckpt::formats::{self, OpenOptions};
use planaria_ckpt::{
    Casts, Error, Item, LoadOptions, SaveOptions, TensorKind, TrainState, Trouble, Unmatched, load,
    load_source, save,
};
use planaria_comm::{alone, threads};
use planaria_layout::Layout;
use planaria_store::{Object, PutMode, Store, StoreExt};
use std::sync::Arc;

const FOLDER: &str = "hf";

fn catalog(tensors: &[(&str, &[usize], DType)]) -> Catalog {
    let tensor = |shape: &[usize], dtype| Tensor::new(Shape::new(shape).unwrap(), dtype);
    tensors.iter().map(|(name, shape, dtype)| (*name, tensor(shape, *dtype))).collect()
}

fn array(from: usize, shape: &[usize], dtype: DType) -> Array {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (from + i) as f32).collect();
    Array::from_slice(&values, shape).unwrap().cast(dtype).unwrap()
}

const FILES: [(&str, &[usize], DType); 4] = [
    ("gate", &[6, 4], DType::BF16),
    ("up", &[6, 4], DType::BF16),
    ("down", &[4, 6], DType::BF16),
    ("norm", &[4], DType::F32),
];

/// Fused and transposed as another framework keeps it.
fn fused() -> Mapping {
    let text = "gate^T, up^T -> gate_up, axis=1\ndown^T -> down\nnorm -> norm, dtype=\"float32\"";
    let program = Program::parse(text).unwrap();
    let targets = catalog(&[
        ("gate_up", &[4, 12], DType::BF16),
        ("down", &[6, 4], DType::BF16),
        ("norm", &[4], DType::F32),
    ]);
    program.compile(&catalog(&FILES), Some(&targets), &Options::default()).unwrap()
}

fn files() -> TrainState {
    let mut state = TrainState::new(Vec::new());
    for (number, (name, shape, dtype)) in FILES.into_iter().enumerate() {
        state.items.push(Item::whole(TensorKind::Parameter, name, &array(number * 30, shape, dtype)));
        let moment = array(number * 30 + 500, shape, DType::F32);
        state.items.push(Item::whole(TensorKind::Slot("moment1_0".into()), name, &moment));
        let power = Array::from_slice(&[if number == 1 { 0.0 } else { number as f32 }], &[1]).unwrap();
        state.items.push(Item::whole(TensorKind::Slot("beta1_pow_acc_0".into()), name, &power));
    }
    state
}

/// The fused tensors as `cut` says, with the right values or zeros.
fn fused_state(cut: [&str; 2], ranks: usize, rank: usize, fill: bool) -> TrainState {
    let mut state = TrainState::new(Vec::new());
    let (kinds, names) =
        ([TensorKind::Parameter, TensorKind::Slot("moment1_0".into())], ["gate_up", "down", "norm"]);
    for (shift, kind) in [0, 500].into_iter().zip(kinds) {
        let dtype = |d: DType| if shift == 0 { d } else { DType::F32 };
        let turned = |from: usize, shape: &[usize]| {
            array(from + shift, shape, dtype(DType::BF16)).transpose(0, 1).unwrap()
        };
        let gate_up = planaria_array::ops::concat(&[&turned(0, &[6, 4]), &turned(30, &[6, 4])], 1).unwrap();
        let down = turned(60, &[4, 6]).copy().unwrap();
        let norm = array(90 + shift, &[4], DType::F32);
        for (name, whole) in names.iter().zip([gate_up, down, norm]) {
            let cut = if whole.ndim() == 1 { "R" } else { cut[usize::from(*name == "down")] };
            let layout: Layout = format!("{} @ r:{cut} on r={ranks}", whole.shape()).parse().unwrap();
            let piece = layout.piece(rank).unwrap();
            let part = Array::zeros(&piece.extents(), whole.dtype()).unwrap();
            for region in piece.boxes().iter().filter(|_| fill) {
                let inner = piece.locate(region).unwrap();
                part.region(&inner).unwrap().copy_from(&whole.region(region).unwrap()).unwrap();
            }
            state.items.push(Item::placed(kind.clone(), *name, &layout, rank, &part).unwrap());
        }
    }
    for (name, value) in names.iter().zip([0.0f32, 2.0, 3.0]) {
        let power = Array::from_slice(&[if fill { value } else { -1.0 }], &[1]).unwrap();
        state.items.push(Item::whole(TensorKind::Slot("beta1_pow_acc_0".into()), *name, &power));
    }
    state
}

fn same(state: &TrainState, want: &TrainState) {
    for (got, want) in state.items.iter().zip(&want.items) {
        for (got, want) in got.pieces.iter().zip(&want.pieces) {
            let bytes = |a: &Array| a.copy().unwrap().bytes().unwrap().to_vec();
            assert!(bytes(&got.array) == bytes(&want.array), "{:?}\n{:?}", got.array, want.array);
        }
    }
}

#[test]
fn transposed_and_fused_inside_ranged_reads_and_undone_by_the_inverse() {
    let store = Object::memory();
    save(&*alone(), &store, FOLDER, &files(), &SaveOptions::default()).unwrap();
    let mapping = Arc::new(fused());
    let back = Arc::new(mapping.inverse(Ties::Refuse).unwrap());
    for (ranks, cut) in [(1, ["R", "R"]), (2, ["S1x2", "S0"]), (3, ["S0", "S1"]), (4, ["S1", "R"])] {
        let again = format!("again-{ranks}");
        threads::run(ranks, |world| {
            let mut state = fused_state(cut, ranks, world.rank(), false);
            let options = LoadOptions { mapping: Some(mapping.clone()), ..LoadOptions::default() };
            let report = load(&*world, &store, FOLDER, &mut state, &options).unwrap();
            assert_eq!((report.loaded.len(), report.unexpected.len()), (9, 0), "{report:?}");
            same(&state, &fused_state(cut, ranks, world.rank(), true));
            let options = SaveOptions { mapping: Some(back.clone()), ..SaveOptions::default() };
            save(&*world, &store, &again, &state, &options).unwrap();
        });
        let model = |folder: &str| {
            let mut files = contents(&store, folder);
            files.retain(|name, _| name.starts_with("model"));
            files
        };
        assert!(model(FOLDER) == model(&again), "{ranks} ranks");
    }
}

#[test]
fn tensors_that_become_one_must_agree_about_their_steps() {
    let store = Object::memory();
    let mut files = files();
    let is_power =
        |item: &&mut Item| item.name == "up" && item.kind == TensorKind::Slot("beta1_pow_acc_0".into());
    let power = files.items.iter_mut().find(is_power).unwrap();
    power.pieces[0].array = Array::from_slice(&[7.0f32], &[1]).unwrap();
    save(&*alone(), &store, FOLDER, &files, &SaveOptions::default()).unwrap();
    let mapping = Arc::new(fused());
    let ends = threads::run(2, |world| {
        let mut state = fused_state(["S1x2", "S0"], 2, world.rank(), false);
        let options = LoadOptions { mapping: Some(mapping.clone()), ..LoadOptions::default() };
        load(&*world, &store, FOLDER, &mut state, &options).unwrap_err()
    });
    for end in ends {
        let said = end.to_string();
        assert!(matches!(end, Error::Rank { kind: Trouble::Request, .. }), "{said}");
        let names = ["'optimizer:gate/beta1_pow_acc_0'", "'optimizer:up/beta1_pow_acc_0'", "differ"];
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
    }
}

#[test]
fn a_tensor_that_the_mapping_forgets_is_not_lost_in_silence() {
    let store = Object::memory();
    let mapping = Arc::new(fused().inverse(Ties::Refuse).unwrap());
    let mut state = fused_state(["R", "R"], 1, 0, true);
    state.items.push(Item::whole(TensorKind::Parameter, "extra", &array(0, &[2], DType::F32)));
    let options = SaveOptions { mapping: Some(mapping), ..SaveOptions::default() };
    let refused = save(&*alone(), &store, "x", &state, &options).unwrap_err();
    assert!(matches!(&refused, Error::NotMapped { tensor } if tensor == "extra"), "{refused}");
}

#[test]
fn two_targets_may_read_one_source_and_reshape_is_exact() {
    let store = Object::memory();
    let weight = array(7, &[4, 6], DType::F32);
    let state = TrainState::new(vec![Item::whole(TensorKind::Parameter, "w", &weight)]);
    save(&*alone(), &store, FOLDER, &state, &SaveOptions::default()).unwrap();
    let text = "w -> a\nw^T -> b\nw -> c, reshape=[3, 8]";
    let program = Program::parse(text).unwrap();
    let targets = [("a", &[4, 6][..]), ("b", &[6, 4]), ("c", &[3, 8])];
    let wanted: Vec<(&str, &[usize], DType)> = targets.iter().map(|(n, s)| (*n, *s, DType::F32)).collect();
    let sources = catalog(&[("w", &[4, 6], DType::F32)]);
    let mapping = Arc::new(program.compile(&sources, Some(&catalog(&wanted)), &Options::default()).unwrap());
    threads::run(2, |world| {
        let items = targets.iter().map(|(name, shape)| {
            let shape = Shape::new(shape).unwrap();
            let layout: Layout = format!("{shape} @ r:S1 on r=2").parse().unwrap();
            let piece = layout.piece(world.rank()).unwrap();
            let room = Array::zeros(&piece.extents(), DType::F32).unwrap();
            Item::placed(TensorKind::Parameter, *name, &layout, world.rank(), &room).unwrap()
        });
        let mut state = TrainState::new(items.collect());
        let options = LoadOptions { mapping: Some(mapping.clone()), ..LoadOptions::default() };
        load(&*world, &store, FOLDER, &mut state, &options).unwrap();
        let whole = [weight.clone(), weight.transpose(0, 1).unwrap(), weight.reshape(&[3, 8]).unwrap()];
        for (item, whole) in state.items.iter().zip(whole) {
            let want = whole.region(&item.pieces[0].region).unwrap();
            assert_eq!(
                item.pieces[0].array.to_vec::<f32>().unwrap(),
                want.to_vec::<f32>().unwrap(),
                "{}",
                item.name
            );
        }
    });
}

/// Folders of others go the same way as ours, on any number of ranks.
#[test]
fn foreign_folders_load_under_any_layout() {
    let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let store: Arc<dyn Store> = Arc::new(planaria_store::Local::new(&testdata));
    let mut folders = 0;
    for entry in store.walk("").unwrap() {
        let Some((folder, _)) = entry.name.rsplit_once('/') else { continue };
        let ends = [".metadata", ".safetensors", ".pdparams", ".index.json"];
        if !ends.iter().any(|end| entry.name.ends_with(end)) {
            continue;
        }
        let Ok(source) = formats::open(&store, folder, &OpenOptions::default()) else { continue };
        folders += 1;
        threads::run(3, |world| {
            let (mut state, mut wants) = (TrainState::new(Vec::new()), Vec::new());
            for (key, tensor) in &source.tensors {
                let cut = if tensor.shape.is_empty() {
                    "R".to_string()
                } else {
                    format!("S{}", tensor.shape.len() - 1)
                };
                let layout: Layout = format!("{} @ r:{cut} on r=3", tensor.shape).parse().unwrap();
                let piece = layout.piece(world.rank()).unwrap();
                let room = Array::zeros(&piece.extents(), tensor.dtype).unwrap();
                let mut item =
                    Item::placed(TensorKind::Parameter, &key.name, &layout, world.rank(), &room).unwrap();
                // Element types that are only carried have nowhere to be loaded to.
                if key.part != formats::Part::Model || source.foreign.contains_key(key) {
                    continue;
                }
                item.name = key.name.clone();
                wants.push(
                    Array::from_bytes(&source.read(key).unwrap(), &tensor.shape, tensor.dtype).unwrap(),
                );
                state.items.push(item);
            }
            let options =
                LoadOptions { unexpected: Unmatched::Allow, casts: Casts::Refuse, ..LoadOptions::default() };
            let report = load_source(&*world, &source, &mut state, &options)
                .unwrap_or_else(|e| panic!("{folder}: {e}"));
            assert_eq!(report.loaded.len(), state.items.len());
            for (item, want) in state.items.iter().zip(&wants) {
                for piece in &item.pieces {
                    let want = want.region(&piece.region).unwrap().copy().unwrap();
                    assert!(
                        piece.array.copy().unwrap().bytes().unwrap()[..] == want.bytes().unwrap()[..],
                        "{folder} {}",
                        item.name
                    );
                }
            }
        });
    }
    assert!(folders > 10, "{folders}");
}

#[test]
fn our_folders_open_like_those_of_others() {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    save(&*alone(), &store, FOLDER, &files(), &SaveOptions::default()).unwrap();
    let source = formats::open(&store, FOLDER, &OpenOptions::default()).unwrap();
    assert_eq!((source.format, source.tensors.len()), (formats::Format::Planaria, 12));
    assert_eq!(
        source.read(&formats::Key::model("gate")).unwrap(),
        array(0, &[6, 4], DType::BF16).bytes().unwrap().to_vec()
    );
    // Its checksums are verified this way too.
    let name = format!("{FOLDER}/model-00001-of-00001.safetensors");
    let whole = store.read(&name, u64::MAX).unwrap();
    let mut bad = whole.clone();
    bad[4200] ^= 4;
    store.put(&name, &bad, PutMode::Replace).unwrap();
    let refused = load_source(&*alone(), &source, &mut files(), &LoadOptions::default()).unwrap_err();
    assert!(matches!(refused, Error::Damaged { .. }), "{refused}");
    store.put(&name, &whole, PutMode::Replace).unwrap();
    // Without its mark and manifest it is still an ordinary folder of safetensors files.
    for name in ["COMMIT", "manifest.json"] {
        store.delete(&format!("{FOLDER}/{name}")).unwrap();
    }
    let source = formats::open(&store, FOLDER, &OpenOptions::default()).unwrap();
    assert_eq!((source.format, source.tensors.len()), (formats::Format::PaddleUnified, 12));
    let mut state = files();
    let report = load_source(&*alone(), &source, &mut state, &LoadOptions::default()).unwrap();
    assert_eq!(report.loaded.len(), 12);
    assert!(store.exists(&format!("{FOLDER}/optimizer.safetensors.index.json")).unwrap());
}
