//! Foreign formats: what is read, what is refused, and that nothing is executed.

use crate::common::{agree, copied, expected, opened, read_all, refusal, stored};
use planaria_ckpt::Error;
use planaria_ckpt::formats::{Format, Key, OpenOptions, Part, open};
use planaria_layout::{DType, Error as LayoutError, Region};
use planaria_store::{Object, PutMode, Store, StoreExt};
use serde_json::json;
use std::sync::Arc;

#[test]
fn torch_save_files_with_views_parameters_and_python_values() {
    let source = opened(&stored("formats"), "nested.pt").unwrap();
    assert_eq!(source.format, Format::TorchSave);
    agree(&source, &expected("formats/nested.pt.expected.safetensors"));
    assert_eq!(source.extra["step"], json!(12));
    let betas = json!(["betas", { "$tuple": [0.9, 0.999] }]);
    assert_eq!(source.extra["groups.0"], json!({ "$dict": [["params", [0, 1]], betas] }));
    // A view that is not row-major keeps its place in the file, with strides.
    assert_eq!(source.model("model.t").unwrap().strides.len(), 1);
    let part = Region::new(&[1, 2], &[3, 5]).unwrap();
    let whole = source.read(&Key::model("model.t")).unwrap();
    let rows = |r: usize| whole[(r * 6 + 2) * 4..(r * 6 + 5) * 4].to_vec();
    assert_eq!(source.read_region(&Key::model("model.t"), &part).unwrap(), [rows(1), rows(2)].concat());
}

#[test]
fn torch_files_that_cannot_be_read_in_place_say_why() {
    let store = stored("formats");
    for (name, why) in [
        ("legacy.pt", "1.6"),
        ("deflated.pt", "compressed"),
        ("sparse.pt", "_rebuild_sparse_tensor"),
        ("quantized.pt", "a quantized tensor; save `tensor.dequantize()`"),
    ] {
        let error = refusal(&store, name).to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn paddle_save_files_of_every_protocol() {
    let store = stored("formats");
    for name in ["p3.pdparams", "p4.pdparams", "p5.pdparams"] {
        let source = opened(&store, name).unwrap();
        assert_eq!(source.format, Format::PaddleSave);
        agree(&source, &expected("formats/pdparams.expected.safetensors"));
        assert_eq!(source.model("fortran").unwrap().strides.len(), 1, "{name}");
    }
    let error = refusal(&store, "p2.pdparams").to_string();
    assert!(error.contains("protocol 4"), "{error}");
}

#[test]
fn paddle_optimizer_files_with_wrapped_and_nested_tensors() {
    let source = opened(&stored("formats"), "state.pdopt").unwrap();
    assert!(source.tensors.keys().all(|key| key.part == Part::Optimizer));
    agree(&source, &expected("formats/state.pdopt.expected.safetensors"));
    assert_eq!(source.extra["state.pdopt#LR_Scheduler.last_epoch"], json!(3));
}

#[test]
fn arrays_that_old_protocols_cut_are_joined() {
    agree(
        &opened(&stored("formats"), "cut.pdparams").unwrap(),
        &expected("formats/cut.pdparams.expected.safetensors"),
    );
}

#[test]
fn a_tensor_that_was_saved_by_itself_is_one() {
    let source = opened(&stored("formats"), "tensor.pdparams").unwrap();
    let entry = source.model("tensor").unwrap();
    assert_eq!((entry.dtype, entry.shape.to_vec()), (DType::F32, vec![2, 3]));
    let values: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    assert_eq!(source.read(&Key::model("tensor")).unwrap(), values);
}

#[test]
fn code_in_a_pickle_is_a_record_and_is_not_run() {
    let source = opened(&stored("formats"), "evil.pdparams").unwrap();
    assert_eq!(source.extra["evil.pdparams#x"]["$call"], json!({ "$global": ["builtins", "exec"] }));
    assert!(!std::path::Path::new("planaria-was-here").exists());
}

#[test]
fn unified_checkpoints_keep_model_masters_and_optimizer_apart() {
    let source = opened(&stored("formats/unified"), "").unwrap();
    assert_eq!(source.format, Format::PaddleUnified);
    let names: Vec<String> = source.tensors.keys().map(Key::to_string).collect();
    let all = [
        "k",
        "q",
        "master_weights:k",
        "master_weights:q",
        "optimizer:q/beta1_pow_acc_0",
        "optimizer:q/moment1_0",
    ];
    assert_eq!(names, all);
    assert_eq!(source.model("q").unwrap().dtype, DType::F16);
    let master = Key { part: Part::MasterWeights, name: "q".to_string() };
    assert_eq!(source.get(&master).unwrap().dtype, DType::F32);
    assert_eq!(source.extra["optimizer.safetensors.index.json"]["master_weights"], json!(true));
    assert_eq!(source.extra["config.json"]["model_type"], json!("tiny"));
    assert!(source.skipped.is_empty());
}

#[test]
fn optimizer_files_of_single_ranks_are_left_out_and_named() {
    let source = opened(&stored("formats/unmerged"), "").unwrap();
    assert_eq!(source.tensors.len(), 1);
    assert_eq!(source.skipped.len(), 1);
    assert!(source.skipped[0].what.contains("tp00_pp01"), "{:?}", source.skipped);
}

#[test]
fn a_missing_index_is_restored_and_a_missing_file_is_noticed() {
    let store = copied("formats/noindex");
    assert_eq!(read_all(&store, "").unwrap().len(), 2);
    store.delete("model-00002-of-00002.safetensors").unwrap();
    assert!(matches!(refusal(&store, ""), Error::Torn { .. }));
}

#[test]
fn a_model_stored_twice_under_other_names_is_read_once() {
    let store = copied("formats/unified");
    let other = stored("formats/noindex");
    let bytes = other.read("model-00001-of-00002.safetensors", 1 << 20).unwrap();
    store.write("consolidated.safetensors", &bytes).unwrap();
    let source = opened(&store, "").unwrap();
    assert_eq!(source.tensors.len(), 6);
    assert!(source.skipped[0].what.contains("consolidated"), "{:?}", source.skipped);
}

#[test]
fn ranks_that_saved_without_each_other_have_metadata_each() {
    // What torch writes without collectives: the same names, one metadata file for each rank.
    let store = copied("torch-dcp/async2");
    let bytes = store.read(".metadata", 1 << 20).unwrap();
    store.delete(".metadata").unwrap();
    store.write("__0.metadata", &bytes).unwrap();
    store.write("__1.metadata", &bytes).unwrap();
    let source = opened(&store, "").unwrap();
    agree(&source, &expected("torch-dcp/async2.expected.safetensors"));
}

#[test]
fn torn_and_contradictory_folders_are_refused() {
    // Metadata without data, as an interrupted asynchronous save leaves it.
    assert!(matches!(refusal(&stored("paddle-checkpoints/torn_meta_only2"), ""), Error::Torn { .. }));
    // Data without metadata.
    let store = copied("paddle-checkpoints/tp2");
    store.delete("0.metadata").unwrap();
    assert!(matches!(refusal(&store, ""), Error::Torn { .. }));
    let store = copied("torch-dcp/dtensor2");
    store.delete(".metadata").unwrap();
    assert!(matches!(refusal(&store, ""), Error::Torn { .. }));
    // One of the data files lost.
    for (folder, file) in [("paddle-checkpoints/tp2", "1_0.distcp"), ("torch-dcp/dtensor2", "__1_0.distcp")] {
        let store = copied(folder);
        store.delete(file).unwrap();
        assert!(matches!(refusal(&store, ""), Error::Torn { .. }), "{folder}");
    }
    // An index that promises more than the files hold.
    assert!(matches!(refusal(&stored("torch-dcp/hf_rank0_misuse_2"), ""), Error::Torn { .. }));
    assert!(matches!(refusal(&stored("paddle-checkpoints/merged/hf_pref_by2ranks"), ""), Error::Torn { .. }));
}

#[test]
fn resaving_into_a_folder_keeps_the_old_metadata_and_is_noticed() {
    // Data files of another save under the old metadata: other tensors, or the same with other shapes.
    for other in ["nested2", "uneven2", "zero2_flat"] {
        let (store, new) = (copied("paddle-checkpoints/tp2"), stored(&format!("paddle-checkpoints/{other}")));
        for file in ["0_0.distcp", "1_0.distcp"] {
            store.write(file, &new.read(file, 1 << 20).unwrap()).unwrap();
        }
        refusal(&store, "");
    }
}

#[test]
fn copies_with_different_contents_are_a_conflict() {
    let store = copied("paddle-checkpoints/tp2_replicas");
    read_all(&store, "").unwrap();
    let source = opened(&store, "").unwrap();
    let entry = source.model("norm").unwrap();
    let (_, extents) = entry.tiles.boxes().next().unwrap();
    assert_eq!(extents.len(), 2);
    let file = &source.files[extents[1].file];
    let mut bytes = store.read(file, 1 << 20).unwrap();
    bytes[extents[1].offset as usize + 3] ^= 1;
    store.write(file, &bytes).unwrap();
    match refusal(&store, "") {
        Error::Conflict { tensor, first, second, .. } => {
            assert_eq!(tensor, "norm");
            assert_ne!(first, second);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn overlapping_and_missing_shards_are_refused() {
    // The metadata of the first of two saves, changed in place: an offset of 6 becomes 5 or 7.
    for (offset, overlap) in [(5u8, true), (7u8, false)] {
        let store = copied("paddle-checkpoints/tp2_uid7");
        let mut bytes = store.read("7.metadata", 1 << 20).unwrap();
        // BININT1 6, BININT1 0, TUPLE2: the place (6, 0).
        let at = |bytes: &[u8]| bytes.windows(5).position(|w| w == [b'K', 6, b'K', 0, 0x86]);
        let mut changed = 0;
        while let Some(found) = at(&bytes) {
            bytes[found + 1] = offset;
            changed += 1;
        }
        assert!(changed > 0);
        store.write("7.metadata", &bytes).unwrap();
        match refusal(&store, "") {
            Error::Tiles { problem: LayoutError::Overlap { .. }, .. } => assert!(overlap),
            Error::Tiles { problem: LayoutError::Hole { .. } | LayoutError::TileOutside { .. }, .. } => {
                assert!(!overlap);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn several_saves_in_one_folder_must_be_chosen_from() {
    let store = copied("paddle-checkpoints/tp2_uid7");
    let other = stored("paddle-checkpoints/tp2");
    for file in ["0.metadata", "0_0.distcp", "1_0.distcp"] {
        store.write(file, &other.read(file, 1 << 20).unwrap()).unwrap();
    }
    assert!(matches!(refusal(&store, ""), Error::Ambiguous { .. }));
    // A number is a number: uid 7 is not also 17, and asking for one never gives the other.
    for (uid, count) in [(7, expected("paddle-checkpoints/tp2_uid7.expected.safetensors").len()), (0, 11)] {
        let source = open(&store, "", &OpenOptions { uid: Some(uid) }).unwrap();
        assert_eq!(source.tensors.len(), count);
    }
    assert!(open(&store, "", &OpenOptions { uid: Some(17) }).is_err());
}

#[test]
fn parts_of_a_training_state_in_folders_of_their_own() {
    let store = copied("paddle-checkpoints/uneven2");
    for (part, from) in [("model_state", "uneven2"), ("optimizer_state", "zero2_flat")] {
        let from = stored(&format!("paddle-checkpoints/{from}"));
        for entry in from.walk("").unwrap() {
            store
                .write(&format!("run/{part}/{}", entry.name), &from.read(&entry.name, 1 << 20).unwrap())
                .unwrap();
        }
    }
    let source = opened(&store, "run").unwrap();
    let optimizer = Key { part: Part::Optimizer, name: "lin.weight.moment1_0".to_string() };
    let (dtype, shape, bytes) =
        expected("paddle-checkpoints/zero2_flat.expected.safetensors")["lin.weight.moment1_0"].clone();
    let entry = source.get(&optimizer).unwrap();
    assert_eq!((entry.dtype, entry.shape.to_vec()), (dtype, shape));
    assert_eq!(source.read(&optimizer).unwrap(), bytes);
    assert!(source.tensors.keys().any(|key| key.part == Part::Model));
}

#[test]
fn an_index_cannot_lead_out_of_its_folder() {
    for name in ["../secret.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "sub/x.safetensors"]
    {
        let store = copied("formats/unified");
        let text = json!({ "weight_map": { "q": name } }).to_string();
        store.write("model.safetensors.index.json", text.as_bytes()).unwrap();
        let error = refusal(&store, "");
        let named =
            matches!(error, Error::Store(planaria_store::Error::BadName { .. }) | Error::Malformed { .. });
        assert!(named, "{error}");
    }
    let store = copied("formats/unified");
    let twice = r#"{"weight_map": {"q": "model-00001-of-00002.safetensors", "q": "model-00002-of-00002.safetensors"}}"#;
    store.write("model.safetensors.index.json", twice.as_bytes()).unwrap();
    assert!(refusal(&store, "").to_string().contains("appears twice"));
}

#[test]
fn folders_of_no_known_format_say_what_they_hold() {
    let store: std::sync::Arc<dyn Store> = std::sync::Arc::new(Object::memory());
    assert!(matches!(refusal(&store, "nothing"), Error::UnknownFormat { .. }));
    store.write("folder/readme.txt", b"hello").unwrap();
    assert!(refusal(&store, "folder").to_string().contains("readme.txt"));
}

#[test]
fn parts_of_a_torch_model_must_all_be_there() {
    let part = stored("formats").read("nested.pt", 1 << 20).unwrap();
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let torn = |why: &str| {
        let error = opened(&store, "").unwrap_err();
        assert!(matches!(error, Error::Torn { .. }) && error.to_string().contains(why), "{error}");
    };
    store.write("pytorch_model-00001-of-00002.bin", &part).unwrap();
    torn("file 2 of 2 is missing");
    let tensor = expected("formats/nested.pt.expected.safetensors").into_keys().next().unwrap();
    let index = |map: serde_json::Value| {
        let text = json!({ "weight_map": map }).to_string();
        store.put("pytorch_model.bin.index.json", text.as_bytes(), PutMode::Replace).unwrap();
    };
    index(json!({ tensor.clone(): "pytorch_model-00002-of-00002.bin" }));
    torn("'pytorch_model-00002-of-00002.bin' is missing");
    index(json!({ "absent": "pytorch_model-00001-of-00002.bin" }));
    torn("tensor 'absent' is in no file");
    index(json!({ tensor: "pytorch_model-00001-of-00002.bin" }));
    opened(&store, "").unwrap();
}

#[test]
fn a_copy_in_another_precision_and_shards_beside_the_whole_are_left_out() {
    let folder = copied("formats/noindex");
    let names = folder.file_names("").unwrap();
    let shard = names.iter().find(|name| name.ends_with(".safetensors")).unwrap();
    let bytes = folder.read(shard, 1 << 20).unwrap();
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    for name in ["model.safetensors", "model.fp16.safetensors", "model-00001-of-00002.safetensors"] {
        store.write(name, &bytes).unwrap();
    }
    let source = opened(&store, "").unwrap();
    let left: Vec<&str> = source.skipped.iter().map(|skipped| skipped.what.as_str()).collect();
    assert_eq!(left, ["model.fp16.safetensors", "model-00001-of-00002.safetensors"]);
}
