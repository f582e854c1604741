//! Damaged folders: every changed bit is found and named, and crafted manifests are refused.

use crate::common::states::{Dice, Global, Holding, globals, state};
use planaria_array::{Array, DType};
use planaria_ckpt::formats::{self, Key};
use planaria_ckpt::{
    Error, Item, LoadOptions, SaveOptions, TensorKind, Tiles, TrainState, Trouble, load, open, save, verify,
};
use planaria_comm::{alone, threads};
use planaria_layout::Region;
use planaria_store::{Object, PutMode, Store, StoreExt, checksum};
use serde_json::{Value, json};
use std::sync::Arc;

const FOLDER: &str = "run/step-00000001";

fn saved(tiles: Tiles) -> (Arc<dyn Store>, Vec<Global>, Vec<Holding>) {
    let mut dice = Dice::new(11);
    let globals = globals(&mut dice, 8);
    let held = vec![Holding::Some(vec![0]); 8];
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let mut state = state(&globals, &held, 0, true);
    state.files.insert("config.json".into(), br#"{"a": 1}"#[..].into());
    let options = SaveOptions { tiles, max_file_size: 400, ..SaveOptions::default() };
    save(&*alone(), &store, FOLDER, &state, &options).unwrap();
    (store, globals, held)
}

/// Puts a file with one bit changed, and gives back the original.
fn flip(store: &dyn Store, name: &str, bit: usize) -> Vec<u8> {
    let whole = store.read(name, u64::MAX).unwrap();
    let mut bytes = whole.clone();
    bytes[bit / 8] ^= 1 << (bit % 8);
    store.put(name, &bytes, PutMode::Replace).unwrap();
    whole
}

#[test]
fn one_flipped_bit_anywhere_is_found_and_named() {
    let mut dice = Dice::new(5);
    for tiles in [Tiles::Whole, Tiles::AsHeld] {
        let (store, globals, held) = saved(tiles);
        assert!(verify(&store, FOLDER).unwrap().is_sound());
        for entry in store.walk(FOLDER).unwrap() {
            let name = entry.name.clone();
            let size = store.reader(&name).unwrap().size() as usize;
            for _ in 0..12 {
                let bit = dice.below(size * 8);
                let whole = flip(&store, &name, bit);
                let verified = verify(&store, FOLDER);
                let found = verified.as_ref().is_ok_and(|v| !v.is_sound()) || verified.is_err();
                assert!(found, "bit {bit} of {name}");
                let mut state = state(&globals, &held, 0, false);
                let loaded = load(&*alone(), &store, FOLDER, &mut state, &LoadOptions::default());
                let data = name.ends_with(".safetensors");
                match loaded {
                    Err(Error::Damaged { tensor, file, block, start, end, .. }) => {
                        assert!(data && file == name && block == 0 && start == 0 && end as usize == size);
                        assert!(globals.iter().any(|g| tensor.contains(&g.name)), "{tensor}");
                    }
                    Err(_) => assert!(!data, "{name}"),
                    // An index is for other programs; loading does not read it.
                    Ok(_) => assert!(name.ends_with(".index.json"), "bit {bit} of {name} was not noticed"),
                }
                store.put(&name, &whole, PutMode::Replace).unwrap();
            }
        }
    }
}

#[test]
fn damage_is_located_to_tensor_and_block_on_every_rank() {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let items = |fill: f32| -> Vec<Item> {
        let array = |n: usize| Array::full(&[n, 1024], fill, DType::F32).unwrap();
        let whole = |name: &str, n| Item::whole(TensorKind::Parameter, name, &array(n));
        vec![whole("a", 700), whole("b", 600), whole("c", 500)]
    };
    save(&*alone(), &store, FOLDER, &TrainState::new(items(1.5)), &SaveOptions::default()).unwrap();
    let name = format!("{FOLDER}/model-00001-of-00001.safetensors");
    // 'a' ends in block 2, 'b' in block 5; block 4 is all of 'b'.
    flip(&store, &name, ((4 << 20) + 12345) * 8 + 3);
    let ends = threads::run(3, |world| {
        let mut state = TrainState::new(items(0.0));
        load(&*world, &store, FOLDER, &mut state, &LoadOptions::default()).unwrap_err()
    });
    assert!(ends.iter().all(|end| *end == ends[0]));
    assert!(matches!(ends[0], Error::Rank { rank: 0..3, kind: Trouble::Damage, .. }), "{:?}", ends[0]);
    let ends = [ends[0].to_string()];
    let range = format!("block 4 of '{name}' (bytes {}..{})", 4 << 20, 5 << 20);
    assert!(ends[0].contains("tensor 'b' is damaged") && ends[0].contains(&range), "{}", ends[0]);
    let problems = verify(&store, FOLDER).unwrap().problems;
    assert!(
        matches!(&problems[..], [Error::Damaged { tensor, block: 4, .. }] if tensor == "b"),
        "{problems:?}"
    );
    // What lies elsewhere can still be loaded.
    let mut state = TrainState::new(items(0.0));
    let options = LoadOptions { ignore: vec!["b".into()], ..LoadOptions::default() };
    let report = load(&*alone(), &store, FOLDER, &mut state, &options);
    assert!(report.is_ok(), "{report:?}");
}

#[test]
fn whoever_reads_a_damaged_block_is_refused_as_a_load_is_and_other_blocks_are_read() {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let state = || {
        let values = Array::arange(0i64, 1500 * 1024, 1i64, DType::I64).unwrap().cast(DType::F32).unwrap();
        let values = values.reshape(&[1500, 1024]).unwrap();
        TrainState::new(vec![Item::whole(TensorKind::Parameter, "b", &values)])
    };
    save(&*alone(), &store, FOLDER, &state(), &SaveOptions::default()).unwrap();
    let fresh = || formats::open(&store, FOLDER, &Default::default()).unwrap();
    let (source, key) = (fresh(), Key::model("b"));
    let sound = source.read(&key).unwrap();
    let (_, extents) = source.get(&key).unwrap().tiles.boxes().next().unwrap();
    // The first row, of 4 KiB, that begins in a block of 1 MiB.
    let row = |block: usize| ((block << 20) - extents[0].offset as usize).div_ceil(4096);
    flip(&store, &source.files[extents[0].file], ((4 << 20) + 12345) * 8 + 3);
    let refused = load(&*alone(), &store, FOLDER, &mut state(), &LoadOptions::default()).unwrap_err();
    assert!(matches!(&refused, Error::Damaged { tensor, block: 4, .. } if tensor == "b"), "{refused}");
    let rows = |lo: usize, hi: usize| Region::new(&[lo, 0], &[hi, 1024]).unwrap();
    let all_of_block = (row(4), row(5) - 1);
    for (lo, hi) in [all_of_block, (row(4) + 100, row(4) + 101), (row(3), row(4) + 1), (0, 1500)] {
        assert_eq!(
            fresh().read_region(&key, &rows(lo, hi)).map(drop).unwrap_err(),
            refused,
            "rows {lo}..{hi}"
        );
    }
    assert_eq!(fresh().read(&key).map(drop).unwrap_err(), refused);
    for block in [1, 2, 3, 5] {
        let (lo, hi) = (row(block), if block == 5 { 1500 } else { row(block + 1) - 1 });
        let read = fresh().read_region(&key, &rows(lo, hi)).unwrap();
        assert!(read == sound[lo * 4096..hi * 4096], "block {block} is sound");
    }
}

#[test]
fn a_lost_or_short_file_is_named() {
    let (store, globals, held) = saved(Tiles::Whole);
    let name = format!("{FOLDER}/model-00001-of-00002.safetensors");
    let name = if store.exists(&name).unwrap() {
        name
    } else {
        store.walk(FOLDER).unwrap().into_iter().find(|e| e.name.ends_with("safetensors")).unwrap().name
    };
    let whole = store.read(&name, u64::MAX).unwrap();
    store.put(&name, &whole[..whole.len() - 1], PutMode::Replace).unwrap();
    let mut state = state(&globals, &held, 0, false);
    let refused = load(&*alone(), &store, FOLDER, &mut state, &LoadOptions::default()).unwrap_err();
    assert!(matches!(&refused, Error::Torn { what } if what.contains(&name)), "{refused}");
    assert!(!verify(&store, FOLDER).unwrap().is_sound());
    store.delete(&name).unwrap();
    let refused = load(&*alone(), &store, FOLDER, &mut state, &LoadOptions::default()).unwrap_err();
    assert!(refused.to_string().contains(&name), "{refused}");
}

/// Replaces the manifest and marks it as meant.
fn craft(store: &dyn Store, manifest: &Value) {
    let text = serde_json::to_vec(manifest).unwrap();
    let mark =
        json!({"manifest_size": text.len(), "manifest_sum": format!("{:08x}", checksum::crc32c(&text))});
    store.put(&format!("{FOLDER}/manifest.json"), &text, PutMode::Replace).unwrap();
    store.put(&format!("{FOLDER}/COMMIT"), mark.to_string().as_bytes(), PutMode::Replace).unwrap();
}

#[test]
fn crafted_manifests_are_refused() {
    let (store, ..) = saved(Tiles::Whole);
    let text = store.read(&format!("{FOLDER}/manifest.json"), u64::MAX).unwrap();
    let good: Value = serde_json::from_slice(&text).unwrap();
    craft(&store, &good);
    open(&store, FOLDER).unwrap();
    let sized = good["tensors"].as_array().unwrap().iter().position(|t| {
        t["shape"].as_array().unwrap().iter().all(|d| d != 0) && !t["shape"].as_array().unwrap().is_empty()
    });
    let tensor = format!("/tensors/{}", sized.unwrap());
    let at = |path: &str| format!("{tensor}{path}");
    let huge = json!(u64::MAX - 7);
    let cases: Vec<(&str, String, Value, &str)> = vec![
        ("a later version", "/version".into(), json!(2), "version"),
        ("another format", "/format".into(), json!("x"), "format"),
        ("no version", "/version".into(), json!(0), "version"),
        ("tiny blocks", "/block".into(), json!(1), "blocks of 1 bytes"),
        ("huge blocks", "/block".into(), json!(1u64 << 60), "blocks of"),
        ("odd blocks", "/block".into(), json!(5000), "blocks of"),
        ("a way out", "/files/0/name".into(), json!("../../x"), "leads out"),
        ("an absolute file", "/files/0/name".into(), json!("/etc/passwd"), "absolute"),
        ("another folder", "/files/0/name".into(), json!("a/b"), "another folder"),
        ("a way out of small files", "/others/0/name".into(), json!("../x"), "leads out"),
        ("a file twice", "/others/0/name".into(), good["files"][0]["name"].clone(), "twice"),
        ("a wrong size", "/files/0/size".into(), json!(u64::MAX), "checksums"),
        ("missing sums", "/files/0/sums".into(), json!(""), "checksums"),
        ("sums of letters", "/files/0/sums".into(), json!("zzzzzzzz"), "checksums"),
        ("a sum too long", "/others/0/sum".into(), json!("0123456789abcdef"), "not a checksum"),
        ("an unknown kind", at("/kind"), json!("thing"), "unknown kind"),
        ("an unknown dtype", at("/dtype"), json!("f128"), "dtype"),
        ("an absurd shape", at("/shape"), json!([1u64 << 40, 1u64 << 40]), "shape"),
        ("a hole", at("/tiles"), json!([]), "cover"),
        ("an unknown file", at("/tiles/0/file"), json!(99), "of file 99"),
        ("a place past the end", at("/tiles/0/offset"), huge, "bytes at"),
        ("an odd place", at("/tiles/0/region"), json!("[0..1"), "region"),
        ("another tensor's bytes", at("/tiles/0/offset"), json!(0), ""),
    ];
    for (what, path, value, words) in cases {
        let mut bad = good.clone();
        match bad.pointer_mut(&path) {
            Some(place) => *place = value,
            None => bad.pointer_mut(&at("/tiles/0")).unwrap()["region"] = value,
        }
        craft(&store, &bad);
        match open(&store, FOLDER) {
            // A tensor alone in its file may lie anywhere in it; the header check of `verify` finds that.
            Ok(_) => assert!(words.is_empty() && !verify(&store, FOLDER).unwrap().is_sound(), "{what}"),
            Err(refused) => assert!(refused.to_string().contains(words), "{what}: {refused}"),
        }
    }
    let mut twice = good.clone();
    let first = twice["tensors"][0].clone();
    twice["tensors"].as_array_mut().unwrap().push(first);
    craft(&store, &twice);
    assert!(open(&store, FOLDER).unwrap_err().to_string().contains("appears twice"));
    store.put(&format!("{FOLDER}/COMMIT"), b"{", PutMode::Replace).unwrap();
    assert!(open(&store, FOLDER).is_err());
}

#[test]
fn a_manifest_of_a_later_version_is_refused_as_such_whatever_else_it_says() {
    let (store, ..) = saved(Tiles::Whole);
    craft(&store, &json!({"format": "planaria-checkpoint", "version": 2, "pages": []}));
    assert!(open(&store, FOLDER).unwrap_err().to_string().contains("its version is 2"));
    craft(&store, &json!({"format": "planaria-checkpoint", "version": 1, "pages": []}));
    assert!(open(&store, FOLDER).unwrap_err().to_string().contains("missing field"));
}

#[test]
fn a_folder_without_its_mark_or_its_manifest_is_torn_for_every_reader() {
    for lost in ["COMMIT", "manifest.json"] {
        let (store, _, _) = saved(Tiles::Whole);
        store.delete(&format!("{FOLDER}/{lost}")).unwrap();
        let error = planaria_ckpt::formats::open(&store, FOLDER, &Default::default()).unwrap_err();
        assert!(matches!(error, Error::Torn { .. }), "without {lost}: {error}");
    }
}
