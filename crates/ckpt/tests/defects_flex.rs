//! More mistakes of other checkpoint engines: names, numbers of saves, balance, and tensors without optimizer state.

use crate::common::states::{Dice, Global, Holding, compare, contents, state};
use crate::common::{agree, copied, expected, opened, refusal, stored};
use planaria_aoa::Program;
use planaria_array::DType;
use planaria_ckpt::convert::{ConvertOptions, To, plan};
use planaria_ckpt::formats::{Key, OpenOptions, Part, open};
use planaria_ckpt::{
    Error, LoadOptions, Masters, SaveOptions, TensorKind, Tiles, Weights, load, open as open_ours, save,
};
use planaria_comm::threads;
use planaria_layout::Layout;
use planaria_store::container::{Header, Limits};
use planaria_store::{Object, Store, StoreExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const FOLDER: &str = "run/step-00000001";

fn placed(text: &str) -> Holding {
    let layout: Layout = text.parse().unwrap();
    Holding::Placed(layout)
}

fn slot(name: &str) -> TensorKind {
    TensorKind::Slot(name.into())
}

/// Saves on `ranks` ranks what they hold.
fn saved(ranks: usize, globals: &[Global], held: &[Holding], options: &SaveOptions) -> Object {
    let store = Object::memory();
    threads::run(ranks, |world| {
        save(&*world, &store, FOLDER, &state(globals, held, world.rank(), true), options).unwrap();
    });
    store
}

/// Loads on `ranks` ranks and compares every byte.
fn loaded(store: &Object, ranks: usize, globals: &[Global], held: &[Holding]) {
    threads::run(ranks, |world| {
        let mut state = state(globals, held, world.rank(), false);
        load(&*world, store, FOLDER, &mut state, &LoadOptions::default()).unwrap();
        compare(&state, globals);
    });
}

/// The safetensors files of a folder: bytes of tensors in each.
fn sizes(store: &dyn Store) -> BTreeMap<String, u64> {
    let files = contents(store, FOLDER).into_iter().filter(|(name, _)| name.ends_with(".safetensors"));
    let size = |name: &str| {
        let reader = store.reader(&format!("{FOLDER}/{name}")).unwrap();
        Header::read(&*reader, &Limits::default()).unwrap().tensors.iter().map(|tensor| tensor.len).sum()
    };
    files.map(|(name, _)| (name.clone(), size(&name))).collect()
}

/// The list of files is kept for the life of the process whatever save is asked for, and `10.metadata` ends like
/// `0.metadata`.
#[test]
fn stale_uid_cache() {
    let store = copied("paddle-checkpoints/tp2_uid7");
    let first = stored("paddle-checkpoints/tp2");
    for file in ["0.metadata", "0_0.distcp", "1_0.distcp"] {
        store.write(file, &first.read(file, 1 << 20).unwrap()).unwrap();
    }
    // Save 10 has the contents of save 7.
    let seventh = store.read("7.metadata", 1 << 20).unwrap();
    store.write("10.metadata", &seventh).unwrap();
    let (old, new) = (
        expected("paddle-checkpoints/tp2.expected.safetensors"),
        expected("paddle-checkpoints/tp2_uid7.expected.safetensors"),
    );
    assert!(old != new);
    for (uid, want) in [(7, &new), (0, &old), (10, &new), (0, &old), (7, &new)] {
        agree(&open(&store, "", &OpenOptions { uid: Some(uid) }).unwrap(), want);
    }
    store.delete("0.metadata").unwrap();
    let refused = open(&store, "", &OpenOptions { uid: Some(0) }).map(|source| source.tensors.len());
    assert!(matches!(&refused, Err(Error::Ambiguous { found, .. }) if found == "saves 7, 10"), "{refused:?}");
    store.delete("7.metadata").unwrap();
    agree(&opened(&store, "").unwrap(), &new);
}

/// A folder of test data with one name in place of another of the same length.
fn renamed(to: &dyn Store, folder: &str, from: &str, names: (&str, &str)) {
    assert_eq!(names.0.len(), names.1.len(), "lengths stand in the pickles");
    let source = stored(&format!("paddle-checkpoints/{from}"));
    for entry in source.walk("").unwrap() {
        let mut bytes = source.read(&entry.name, 1 << 20).unwrap();
        let starts = bytes.windows(names.0.len()).enumerate().filter(|(_, at)| *at == names.0.as_bytes());
        for start in starts.map(|(start, _)| start).collect::<Vec<_>>() {
            bytes[start..start + names.1.len()].copy_from_slice(names.1.as_bytes());
        }
        to.write(&format!("{folder}/{}", entry.name), &bytes).unwrap();
    }
}

/// Everything that ends in `.w_0` is taken for a master weight, also a parameter of that name.
#[test]
fn w_0_suffix_collisions() {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    renamed(&*store, "run/model_state", "nested2", ("model.norm", "linear.w_0"));
    renamed(&*store, "run/optimizer_state", "zero2_flat", ("emb.weight", "linear.w_0"));
    let source = opened(&store, "run").unwrap().as_state();
    let key = |part, name: &str| Key { part, name: name.to_string() };
    let nested = expected("paddle-checkpoints/nested2.expected.safetensors");
    let flat = expected("paddle-checkpoints/zero2_flat.expected.safetensors");
    let read = |part, name: &str| source.read(&key(part, name)).unwrap();
    assert!(read(Part::Model, "linear.w_0") == nested["model.norm"].2);
    assert!(read(Part::MasterWeights, "linear.w_0") == flat["emb.weight.w_0"].2);
    assert!(read(Part::Optimizer, "linear.w_0/moment1_0") == flat["emb.weight.moment1_0"].2);
    for part in [Part::Model, Part::MasterWeights, Part::Optimizer] {
        assert!(!source.tensors.contains_key(&key(part, "linear")), "nothing is called 'linear'");
    }
    assert!(!source.tensors.contains_key(&key(Part::Model, "linear.w_0.w_0")));
}

/// With a prefix the index lists names that the files do not hold.
#[test]
fn merge_prefix_index_mismatch() {
    for ranks in [2, 4] {
        let store = stored(&format!("paddle-checkpoints/merged/hf_pref_by{ranks}ranks"));
        let refused = refusal(&store, "").to_string();
        assert!(refused.contains("lacks tensor 'model.w0'") && refused.contains("index.json"), "{refused}");
    }
    // Renamed on the way, the index we write places every tensor where it is, and nothing else.
    let source = opened(&stored("paddle-checkpoints/hf_qwen2_tiny"), "").unwrap();
    let names = source.tensors.keys().filter_map(|key| Some((key, key.name.strip_prefix("model.")?)));
    let lines: Vec<String> = names.map(|(key, rest)| format!("{key} -> {rest}")).collect();
    let mapping = Some(Program::from_statements(&lines).unwrap().into());
    let options = ConvertOptions { mapping, max_shard_size: 4096, ..ConvertOptions::default() };
    let target = Object::memory();
    plan(&source, To::HuggingFace, &options).unwrap().run(&target, "out", &()).unwrap();
    let index: Value =
        serde_json::from_slice(&target.read("out/model.safetensors.index.json", 1 << 20).unwrap()).unwrap();
    let mut held = serde_json::Map::new();
    let files: BTreeSet<&str> =
        index["weight_map"].as_object().unwrap().values().filter_map(Value::as_str).collect();
    assert!(files.len() > 1);
    for file in files {
        let reader = target.reader(&format!("out/{file}")).unwrap();
        let tensors = Header::read(&*reader, &Limits::default()).unwrap().tensors;
        held.extend(tensors.into_iter().map(|tensor| (tensor.name, json!(file))));
    }
    assert_eq!(index["weight_map"], Value::Object(held));
}

/// Merging the shards of a checkpoint ends at the first tensor of integers or truth values.
#[test]
fn merge_fails_for_int_and_bool() {
    let whole = expected("paddle-checkpoints/tp2.expected.safetensors");
    for dtype in [DType::I64, DType::Bool, DType::U8] {
        assert!(whole.values().any(|(held, ..)| *held == dtype), "{dtype} is among them");
    }
    let source = opened(&stored("paddle-checkpoints/tp2"), "").unwrap();
    let target: Arc<dyn Store> = Arc::new(Object::memory());
    plan(&source, To::HuggingFace, &ConvertOptions::default()).unwrap().run(&*target, "out", &()).unwrap();
    agree(&opened(&target, "out").unwrap(), &whole);
}

/// Tensors are dealt out by their number, so one rank writes nearly everything.
#[test]
fn balance_by_count_not_bytes() {
    let mut dice = Dice::new(3);
    let mut globals = vec![Global::new(&mut dice, TensorKind::Parameter, "a", &[512, 512], DType::U8)];
    for number in 0..16 {
        let name = format!("b.{number}");
        globals.push(Global::new(&mut dice, TensorKind::Parameter, &name, &[128, 128], DType::U8));
    }
    let held = vec![Holding::Some(vec![0, 1]); globals.len()];
    let options = SaveOptions { tiles: Tiles::AsHeld, ..SaveOptions::default() };
    let store = saved(2, &globals, &held, &options);
    let sizes = sizes(&store);
    // One large tensor here, sixteen small ones of the same size together there.
    assert_eq!(sizes.values().copied().collect::<Vec<_>>(), [512 * 512; 2], "{sizes:?}");
    loaded(&store, 2, &globals, &held);
}

/// Without tensor parallelism every data-parallel rank writes the experts again.
#[test]
fn expert_params_saved_redundantly() {
    let mut dice = Dice::new(5);
    let mut global =
        |kind, name: &str, shape: &[usize]| Global::new(&mut dice, kind, name, shape, DType::F32);
    let globals = [
        global(TensorKind::Parameter, "experts.stacked", &[4, 6, 5]),
        global(slot("moment1_0"), "experts.stacked", &[4, 6, 5]),
        global(TensorKind::Parameter, "experts.0.weight", &[6, 5]),
        global(TensorKind::Parameter, "experts.1.weight", &[6, 5]),
        global(TensorKind::Parameter, "router", &[5, 4]),
    ];
    let stacked = placed("[4,6,5] @ dp:R ep:S0 on dp=2 ep=2");
    let held = [
        stacked.clone(),
        stacked,
        Holding::Some(vec![0, 2]),
        Holding::Some(vec![1, 3]),
        Holding::Some(vec![0, 1, 2, 3]),
    ];
    let bytes: u64 = globals.iter().map(|global| global.bytes.len() as u64).sum();
    for tiles in [Tiles::Whole, Tiles::AsHeld] {
        let store = saved(4, &globals, &held, &SaveOptions { tiles, ..SaveOptions::default() });
        assert_eq!(sizes(&store).values().sum::<u64>(), bytes, "{tiles:?}");
        loaded(&store, 4, &globals, &held);
        loaded(&store, 1, &globals, &vec![Holding::Some(vec![0]); globals.len()]);
    }
}

/// A parameter without optimizer state, or a buffer, ends the save with a `KeyError`, or is lost.
#[test]
fn frozen_parameters_and_buffers() {
    let mut dice = Dice::new(11);
    let mut globals = Vec::new();
    for (name, trained) in [("trained", true), ("frozen", false)] {
        globals.push(Global::new(&mut dice, TensorKind::Parameter, name, &[6, 4], DType::F32));
        if trained {
            for kind in [slot("moment1_0"), slot("moment2_0")] {
                globals.push(Global::new(&mut dice, kind, name, &[6, 4], DType::F32));
            }
            // The bits of a master that is its parameter, so that either can stand for the other.
            globals.push(Global { kind: TensorKind::Master, ..globals[0].clone() });
        }
    }
    globals.push(Global::new(&mut dice, TensorKind::Buffer, "rotary", &[6, 4], DType::F32));
    globals.push(Global::new(&mut dice, TensorKind::Buffer, "count", &[], DType::I64));
    let held = |rows: &str, ranks: usize| -> Vec<Holding> {
        let cut = |global: &Global| match global.shape.ndim() {
            0 => Holding::Some((0..ranks).collect()),
            _ => placed(rows),
        };
        globals.iter().map(cut).collect()
    };
    let (write, rebuild) = (Masters::Write, Masters::Rebuild);
    for (weights, masters) in
        [(Weights::Write, write), (Weights::Write, rebuild), (Weights::FromMasters, write)]
    {
        let options = SaveOptions { weights, masters, ..SaveOptions::default() };
        let store = saved(2, &globals, &held("[6,4] @ dp:S0 on dp=2", 2), &options);
        loaded(&store, 3, &globals, &held("[6,4] @ tp:S0 on tp=3", 3));
        let tensors = open_ours(&store, FOLDER).unwrap().tensors;
        for (name, kind) in
            [("frozen", TensorKind::Parameter), ("rotary", TensorKind::Buffer), ("count", TensorKind::Buffer)]
        {
            let kinds: Vec<&TensorKind> =
                tensors.keys().filter(|key| key.name == name).map(|key| &key.kind).collect();
            assert_eq!(kinds, [&kind], "{name} has nothing beside it");
        }
    }
}

/// The moving average can be loaded under the layout it was saved under and no other.
#[test]
fn ema_reshards_and_loads() {
    let mut dice = Dice::new(13);
    let mut globals = Vec::new();
    for kind in [TensorKind::Parameter, TensorKind::Ema] {
        globals.push(Global::new(&mut dice, kind.clone(), "w", &[7, 6], DType::F32));
        globals.push(Global::new(&mut dice, kind, "b", &[6], DType::BF16));
    }
    let both = |w: &str, b: &str| vec![placed(w), placed(b), placed(w), placed(b)];
    let four = both("[7,6] @ dp:S0 tp:S1 on dp=2 tp=2", "[6] @ dp:R tp:S0 on dp=2 tp=2");
    let three = both("[7,6] @ tp:S1 on tp=3", "[6] @ tp:S0 on tp=3");
    let flat = {
        let flat = |text: &str| {
            let base: Layout = text.parse().unwrap();
            Holding::Flat(planaria_layout::FlatShards::even(&base, "dp").unwrap())
        };
        let all = [flat("[7,6] @ dp:R on dp=2"), flat("[6] @ dp:R on dp=2")];
        vec![all[0].clone(), all[1].clone(), all[0].clone(), all[1].clone()]
    };
    for tiles in [Tiles::Whole, Tiles::AsHeld] {
        let options = SaveOptions { tiles, ..SaveOptions::default() };
        for (ranks, held) in [(4, &four), (2, &flat)] {
            let store = saved(ranks, &globals, held, &options);
            assert!(sizes(&store).keys().any(|name| name.starts_with("ema-")), "it has files of its own");
            loaded(&store, 3, &globals, &three);
            loaded(&store, 2, &globals, &flat);
            loaded(&store, 4, &globals, &four);
        }
    }
}

/// `{"a": {"b": t}, "a.b": u}` has one name for two tensors, and the later is kept.
#[test]
fn nested_name_collisions_overwrite() {
    for name in ["collision.pt", "collision.pdparams"] {
        let refused = refusal(&stored("formats"), name).to_string();
        assert!(refused.contains(name) && refused.contains("tensor 'a.b' appears twice"), "{refused}");
    }
}
