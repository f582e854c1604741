//! Conversion: any cut and element type between formats, and faults at every step.

use planaria_aoa::Program;
use planaria_array::Array;
use planaria_ckpt::convert::{ConvertOptions, Cut, Observer, Ranks, To, plan};
use planaria_ckpt::examine::{Bound, Verdict, compare};
use planaria_ckpt::formats::{Key, OpenOptions, Part, Source, open};
use planaria_ckpt::stream::Feed;
use planaria_ckpt::{
    Error, Existing, Hosts, Item, OutputFolder, SaveOptions, TensorKind, TrainState, Trouble, save, verify,
};
use planaria_comm::{alone, threads};
use planaria_layout::{DType, Layout, Mesh, Region, Shape};
use planaria_store::{Fault, Faulty, Object, Store, StoreExt};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Tensors of several element types with values that show their place.
fn state(seed: usize) -> TrainState {
    let array = |dims: &[usize], dtype: DType| {
        let numel: usize = dims.iter().product();
        let values: Vec<f32> = (0..numel).map(|i| ((i * 7 + seed) % 97) as f32 - 40.0).collect();
        Array::from_slice(&values, dims).unwrap().cast(dtype).unwrap()
    };
    let power = Array::from_slice(&[0.9f32 * 0.9], &[1]).unwrap();
    let mut items = vec![
        Item::whole(TensorKind::Parameter, "a.weight", &array(&[12, 10], DType::BF16)),
        Item::whole(TensorKind::Parameter, "a.bias", &array(&[12], DType::F32)),
        Item::whole(TensorKind::Master, "a.weight", &array(&[12, 10], DType::F32)),
        Item::whole(TensorKind::Slot("moment1_0".into()), "a.weight", &array(&[12, 10], DType::F32)),
        Item::whole(TensorKind::Slot("beta1_pow_acc_0".into()), "a.weight", &power),
        Item::whole(TensorKind::Buffer, "steps", &array(&[], DType::I64)),
        Item::whole(TensorKind::Parameter, "cube", &array(&[3, 4, 5], DType::F64)),
        Item::whole(TensorKind::Parameter, "none", &array(&[0, 3], DType::F16)),
    ];
    items.push(Item::whole(TensorKind::Ema, "a.bias", &array(&[12], DType::F32)));
    let mut state = TrainState::new(items);
    state.step = 7;
    state.files.insert("config.json".to_string(), b"{}"[..].into());
    state
}

fn saved(seed: usize) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    save(&*alone(), &*store, "ours", &state(seed), &SaveOptions::default()).unwrap();
    store
}

fn opened(store: &Arc<dyn Store>, at: &str) -> Source {
    open(store, at, &OpenOptions::default()).unwrap()
}

/// Keys of all tensors whose verdict is not "the same".
fn differences(first: &Source, second: &Source) -> Vec<(String, Verdict)> {
    let mut found = Vec::new();
    let feeds = (Feed::new(first), Feed::new(second));
    compare((&feeds.0, &feeds.1), &Bound::default(), &|_| true, &|_| (), &mut |key, verdict| {
        if verdict != Verdict::Same {
            found.push((key.to_string(), verdict));
        }
        Ok(())
    })
    .unwrap();
    found
}

#[test]
fn our_own_folder_comes_back_with_its_state() {
    let store = saved(1);
    let source = opened(&store, "ours");
    plan(&source, To::Planaria, &ConvertOptions::default()).unwrap().run(&*store, "again", &()).unwrap();
    let (first, second) =
        (planaria_ckpt::open(&*store, "ours").unwrap(), planaria_ckpt::open(&*store, "again").unwrap());
    assert_eq!((second.state.step, first.others), (7, second.others));
    assert_eq!(first.tensors.keys().collect::<Vec<_>>(), second.tensors.keys().collect::<Vec<_>>());
    for name in store.file_names("ours").unwrap().iter().filter(|name| name.ends_with(".safetensors")) {
        let bytes = |folder: &str| store.read(&format!("{folder}/{name}"), 1 << 20).unwrap();
        assert!(bytes("ours") == bytes("again"), "{name}");
    }
    assert!(verify(&store, "again").unwrap().is_sound());
}

#[test]
fn a_unified_checkpoint_keeps_every_part_but_moving_averages() {
    let store = saved(2);
    let source = opened(&store, "ours");
    let conversion = plan(&source, To::PaddleUnified, &ConvertOptions::default()).unwrap();
    let left: Vec<String> = conversion.left_out().iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(left, ["ema:a.bias"]);
    conversion.run(&*store, "unified", &()).unwrap();
    let found = differences(&source, &opened(&store, "unified"));
    assert_eq!(found, [("ema:a.bias".to_string(), Verdict::OnlyFirst)]);
    assert_eq!(store.read("unified/config.json", 10).unwrap(), b"{}");
}

#[test]
fn masters_are_the_model_where_it_was_not_saved() {
    let store = saved(3);
    let mut source = opened(&store, "ours");
    source.tensors.remove(&Key::model("a.weight"));
    plan(&source, To::HuggingFace, &ConvertOptions::default()).unwrap().run(&*store, "hf", &()).unwrap();
    assert_eq!(opened(&store, "hf").model("a.weight").unwrap().dtype, DType::F32);
}

#[test]
fn a_mapping_rearranges_reshapes_and_casts_on_the_way() {
    let store = saved(8);
    let mut source = opened(&store, "ours");
    source.tensors.retain(|key, _| key.part == Part::Model);
    let text = "cube -> turned, permute=[2, 0, 1]\n\
        a.weight^T -> half\n\
        half -> wide, dtype=\"float32\"\n\
        wide -> folded, reshape=[5, 24]\n\
        a.bias -> _\nsteps -> _\nnone -> _\n";
    let mapping = Some(Program::parse(text).unwrap().into());
    let options = ConvertOptions { mapping, dtype: None, ..ConvertOptions::default() };
    plan(&source, To::HuggingFace, &options).unwrap().run(&*store, "mapped", &()).unwrap();
    let mapped = opened(&store, "mapped");
    let array = |source: &Source, name: &str| {
        let entry = source.model(name).unwrap();
        Array::from_bytes(&source.read(&Key::model(name)).unwrap(), &entry.shape, entry.dtype).unwrap()
    };
    let values = |array: &Array| array.cast(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let turned = array(&source, "cube").permute(&[2, 0, 1]).unwrap();
    assert_eq!(values(&array(&mapped, "turned")), values(&turned));
    let folded = array(&mapped, "folded");
    assert_eq!((folded.dtype(), folded.shape().dims()), (DType::F32, &[5, 24][..]));
    assert_eq!(values(&folded), values(&array(&source, "a.weight").permute(&[1, 0]).unwrap()));
}

/// Stops after a number of bytes.
struct Until(AtomicU64);

impl Observer for Until {
    fn moved(&self, bytes: u64) -> bool {
        self.0.fetch_sub(bytes, Relaxed) > bytes
    }
}

#[test]
fn work_that_is_told_to_stop_stops() {
    let store = saved(4);
    let source = opened(&store, "ours");
    let conversion = plan(&source, To::Planaria, &ConvertOptions::default()).unwrap();
    let stopped = conversion.run(&*store, "half", &Until(AtomicU64::new(1)));
    assert_eq!(stopped, Err(Error::Stopped));
    assert!(open(&store, "half", &OpenOptions::default()).is_err());
}

#[test]
fn what_nothing_can_be_made_of_is_refused() {
    let store = saved(5);
    let source = opened(&store, "ours");
    let none = ConvertOptions { max_shard_size: 0, ..ConvertOptions::default() };
    let whole = ConvertOptions { dtype: Some(DType::I64), ..ConvertOptions::default() };
    for (options, said) in [(none, "0 bytes"), (whole, "i64 is not a floating point type")] {
        let refused = plan(&source, To::TorchDcp, &options).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn too_little_memory_and_cuts_a_format_cannot_hold_are_refused() {
    let store = saved(5);
    let source = opened(&store, "ours");
    let little = ConvertOptions { max_memory: 1 << 20, ..ConvertOptions::default() };
    assert!(matches!(plan(&source, To::HuggingFace, &little), Err(Error::Request { .. })));
    let cut = ConvertOptions { cut: Cut::AsHeld, ..ConvertOptions::default() };
    assert!(matches!(plan(&source, To::HuggingFace, &cut), Err(Error::Request { .. })));
}

#[test]
fn killed_at_any_operation_there_is_no_checkpoint_or_all_of_it() {
    let healthy = saved(6);
    let source = opened(&healthy, "ours");
    for to in [To::Planaria, To::TorchDcp, To::HuggingFace, To::PaddleUnified] {
        let options = ConvertOptions { max_shard_size: 300, ..ConvertOptions::default() };
        let conversion = plan(&source, to, &options).unwrap();
        let mut finished = false;
        for operation in 0..400 {
            let inner: Arc<dyn Store> = Arc::new(Object::memory());
            let store = Faulty::new(inner.clone(), Fault::Kill, operation);
            let done = conversion.run(&store, "out", &()).is_ok();
            match open(&inner, "out", &OpenOptions::default()) {
                Ok(found) => {
                    let wrong = differences(&source, &found);
                    let lost = wrong
                        .iter()
                        .any(|(_, verdict)| !matches!(verdict, Verdict::OnlyFirst | Verdict::OnlySecond));
                    let complete = found.tensors.len() == conversion.tensors().len();
                    assert!(
                        !lost && complete,
                        "{to:?} at {operation}: {} tensors, {wrong:?}",
                        found.tensors.len()
                    );
                }
                Err(_) => assert!(!done, "{to:?} at {operation}"),
            }
            finished |= done;
            if done {
                break;
            }
        }
        assert!(finished, "{to:?} takes more operations than were tried");
    }
}

/// A safetensors file of one f32 tensor, with pairs in its header.
fn safetensors(name: &str, values: &[f32], pairs: &serde_json::Value) -> Vec<u8> {
    let header = serde_json::json!({
        "__metadata__": pairs,
        name: { "dtype": "F32", "shape": [values.len()], "data_offsets": [0, values.len() * 4] },
    });
    let header = header.to_string().into_bytes();
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    (header.len() as u64).to_le_bytes().into_iter().chain(header).chain(bytes).collect()
}

fn shards(pairs: [serde_json::Value; 2]) -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let values = [1.0, 65519.0, 65520.0, -7e4, 1e-30, f32::INFINITY];
    for (number, (name, pairs)) in ["a", "b"].into_iter().zip(pairs).enumerate() {
        let file = format!("hf/model-{:05}-of-00002.safetensors", number + 1);
        store.write(&file, &safetensors(name, &values[..if number == 0 { 6 } else { 3 }], &pairs)).unwrap();
    }
    store
}

fn pairs_of(store: &Arc<dyn Store>, file: &str) -> BTreeMap<String, String> {
    let file = store.reader(file).unwrap();
    planaria_store::container::Header::read(&*file, &Default::default()).unwrap().metadata
}

#[test]
fn values_without_room_are_counted_alone_and_by_ranks() {
    let store = shards([serde_json::json!({}), serde_json::json!({})]);
    let source = opened(&store, "hf");
    let options = |dtype| ConvertOptions { dtype: Some(dtype), ..ConvertOptions::default() };
    let (half, wide) = (options(DType::F16), options(DType::BF16));
    let conversion = plan(&source, To::HuggingFace, &half).unwrap();
    for folder in ["first", "again"] {
        conversion.run(&*store, folder, &()).unwrap();
        let found = conversion.out_of_range();
        assert_eq!(found, [(&Key::model("a"), 2), (&Key::model("b"), 1)], "an infinity is none of them");
    }
    let told = conversion.out_of_range_warning().unwrap();
    assert!(
        told.starts_with("3 values of 2 tensors had no room in f16 and became infinite ('a' has 2)"),
        "{told}"
    );
    let place = tempfile::tempdir().unwrap();
    let target = place.path().join("hf").display().to_string();
    let counted = threads::run(2, |world| {
        let conversion = plan(&source, To::HuggingFace, &half).unwrap();
        let folder = OutputFolder::check([], &target, Existing::Refuse, []).unwrap();
        let hosts = Hosts::meet(&*world, "here").unwrap();
        let ranks = Ranks { world: &*world, hosts: &hosts };
        conversion.write_to(&folder, None, &(), Some(ranks)).unwrap();
        conversion.out_of_range().iter().map(|(_, count)| count).sum::<u64>()
    });
    assert_eq!(counted, [3, 3]);
    let conversion = plan(&source, To::HuggingFace, &wide).unwrap();
    conversion.run(&*store, "wide", &()).unwrap();
    assert_eq!((conversion.out_of_range(), conversion.out_of_range_warning()), (Vec::new(), None));
}

#[test]
fn pairs_in_headers_go_along_and_contradictions_are_told() {
    let both = shards([
        serde_json::json!({ "format": "mlx", "author": "one", "DCP_VERSION": "1" }),
        serde_json::json!({ "format": "mlx", "author": "two", "licence": "mit" }),
    ]);
    let source = opened(&both, "hf");
    let conversion = plan(&source, To::HuggingFace, &ConvertOptions::default()).unwrap();
    conversion.run(&*both, "one", &()).unwrap();
    let expected = [("DCP_VERSION", "1"), ("author", "one"), ("format", "mlx"), ("licence", "mit")];
    let expected: BTreeMap<String, String> = expected.map(|(name, value)| (name.into(), value.into())).into();
    assert_eq!(pairs_of(&both, "one/model.safetensors"), expected);
    let told = conversion.warnings().join("\n");
    assert_eq!(
        told,
        "'author' in the metadata of 'model-00002-of-00002.safetensors' is not what it is in \
         'model-00001-of-00002.safetensors', which is kept"
    );
    let cut = ConvertOptions { max_shard_size: 4, ..ConvertOptions::default() };
    plan(&source, To::HuggingFace, &cut).unwrap().run(&*both, "cut", &()).unwrap();
    assert_eq!(pairs_of(&both, "cut/model-00002-of-00002.safetensors"), expected);
    // What transformers would refuse to read is not passed on.
    let other = shards([serde_json::json!({ "format": "np" }), serde_json::json!({})]);
    let source = opened(&other, "hf");
    let conversion = plan(&source, To::HuggingFace, &ConvertOptions::default()).unwrap();
    conversion.run(&*other, "one", &()).unwrap();
    assert_eq!(pairs_of(&other, "one/model.safetensors")["format"], "pt");
    assert_eq!(conversion.warnings(), [""; 0]);
}

#[test]
fn full_storage_is_told_with_the_target_and_what_it_takes() {
    let store = saved(8);
    let source = opened(&store, "ours");
    let conversion = plan(&source, To::HuggingFace, &ConvertOptions::default()).unwrap();
    let needed: u64 = conversion.files().map(|(_, bytes)| bytes).sum();
    let counting = Arc::new(Faulty::counting(Object::memory()));
    let folder = |store: Arc<dyn Store>| OutputFolder::Remote { store, written: Default::default() };
    conversion.write_to(&folder(counting.clone()), None, &(), None).unwrap();
    let mut told = 0;
    // The first operations take the folder, before anything is written into it.
    for operation in 0..counting.operations() {
        let store = Arc::new(Faulty::new(Object::memory(), Fault::Full(u64::MAX), operation));
        let address = store.address();
        let Err(error) = conversion.write_to(&folder(store), None, &(), None) else { continue };
        let expected = format!("there is no room for '{address}', which takes {needed} bytes");
        assert!(error.to_string().starts_with(&expected), "{operation}: {error}");
        assert_eq!(error.trouble(), Trouble::Storage);
        told += 1;
    }
    assert!(told > 4, "{told}");
}

fn mesh_and_cut() -> impl Strategy<Value = (usize, usize, usize, usize)> {
    (1usize..4, 1usize..4, 0usize..3, 0usize..3)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_cut_of_any_format_holds_the_same_values(
        (dp, tp, first, second) in mesh_and_cut(), dcp in any::<bool>(), limit in 64u64..4000, dims in prop::collection::vec(0usize..7, 0..4),
    ) {
        let store: Arc<dyn Store> = Arc::new(Object::memory());
        let numel: usize = dims.iter().product();
        let values: Vec<i32> = (0..numel as i32).collect();
        let array = Array::from_slice(&values, &dims).unwrap();
        let state = TrainState::new(vec![Item::whole(TensorKind::Parameter, "w", &array)]);
        save(&*alone(), &*store, "ours", &state, &SaveOptions::default()).unwrap();
        let source = opened(&store, "ours");
        let mesh = Mesh::new(&[("dp", dp), ("tp", tp)]).unwrap();
        let place = |dim: usize| if dim < dims.len() { format!("S{dim}") } else { "R".to_string() };
        let shape = Shape::new(&dims).unwrap();
        let text = format!("i32{shape} @ dp:{} tp:{}", place(first), place(second));
        let layout: Layout = text.parse::<planaria_layout::TensorSpec>().unwrap().on(&mesh).unwrap();
        let options = ConvertOptions {
            cut: Cut::Layouts(BTreeMap::from([(Key::model("w"), layout)])),
            max_shard_size: limit,
            ..ConvertOptions::default()
        };
        let to = if dcp { To::TorchDcp } else { To::Planaria };
        plan(&source, to, &options).unwrap().run(&*store, "cut", &()).unwrap();
        let cut = opened(&store, "cut");
        prop_assert_eq!(differences(&source, &cut), []);
        plan(&cut, To::HuggingFace, &ConvertOptions::default()).unwrap().run(&*store, "whole", &()).unwrap();
        let whole = opened(&store, "whole");
        prop_assert_eq!(differences(&source, &whole), []);
        let entry = whole.model("w").unwrap();
        let mut bytes = vec![0; numel * 4];
        Feed::new(&whole).region(&Key::model("w"), &Region::whole(&entry.shape), &mut bytes, &mut Vec::new()).unwrap();
        prop_assert_eq!(bytes, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    }
}
