//! The checksums inside torch's archives: every changed bit of a tensor is found and named.

use crate::common::{copied, opened, stored};
use planaria_aoa::Program;
use planaria_array::{Array, DType};
use planaria_ckpt::convert::{ConvertOptions, To, plan};
use planaria_ckpt::examine::{Bound, compare, stats};
use planaria_ckpt::formats::Key;
use planaria_ckpt::stream::Feed;
use planaria_ckpt::{Error, Item, LoadOptions, TensorKind, TrainState, load_source, verify};
use planaria_store::{Object, PutMode, Store, StoreExt};
use std::sync::Arc;

/// Flips one bit of the first byte of every tensor of a checkpoint, each time alone, and looks who is blamed.
fn blamed(store: &Arc<dyn Store>, at: &str) {
    let source = opened(store, at).unwrap();
    let sound = verify(store, at).unwrap();
    assert!(sound.is_sound() && sound.summed && sound.bytes > 0, "{sound:?}");
    for (key, entry) in &source.tensors {
        let Some(extent) = entry.tiles.boxes().flat_map(|(_, extents)| extents).find(|e| e.len > 0) else {
            continue;
        };
        let file = &source.files[extent.file];
        let whole = store.read(file, u64::MAX).unwrap();
        let mut bytes = whole.clone();
        bytes[extent.offset as usize] ^= 0x10;
        store.put(file, &bytes, PutMode::Replace).unwrap();
        let problems = verify(store, at).unwrap().problems;
        let named = |problem: &Error| match problem {
            Error::Member { tensor, file: blamed, start, end, .. } => {
                blamed == file
                    && (*start..*end).contains(&extent.offset)
                    && tensor.split("', '").any(|name| name == key.to_string())
            }
            _ => false,
        };
        assert!(problems.iter().any(named), "{key}: {problems:?}");
        store.put(file, &whole, PutMode::Replace).unwrap();
    }
}

#[test]
fn a_changed_bit_in_a_torch_checkpoint_is_found_and_named() {
    let store = copied("torch-dcp");
    for folder in ["dtensor2", "fsdp2_2", "single", "fp8_2", "nested2", "async2"] {
        blamed(&store, folder);
    }
}

#[test]
fn a_changed_bit_in_a_torch_save_file_is_found_and_named() {
    blamed(&copied("formats"), "nested.pt");
}

#[test]
fn a_changed_bit_stops_whatever_reads_it() {
    let store = copied("torch-dcp");
    let source = opened(&store, "fsdp2_2").unwrap();
    let key = Key::model("model.2.weight");
    let (_, extents) = source.get(&key).unwrap().tiles.boxes().next().unwrap();
    let file = &source.files[extents[0].file];
    let mut bytes = store.read(file, u64::MAX).unwrap();
    bytes[extents[0].offset as usize + 3] ^= 0x40;
    store.put(file, &bytes, PutMode::Replace).unwrap();
    let blamed = |result: Result<(), Error>, who: &str| match result {
        Err(Error::Member { tensor, .. }) => assert_eq!(tensor, "model.2.weight", "{who}"),
        other => panic!("{who}: {other:?}"),
    };
    let fresh = || opened(&store, "fsdp2_2").unwrap();
    blamed(fresh().read(&key).map(drop), "read");
    let source = fresh();
    let to: Arc<dyn Store> = Arc::new(Object::memory());
    for target in [To::HuggingFace, To::TorchDcp, To::Planaria, To::PaddleUnified] {
        let plan = plan(&source, target, &ConvertOptions::default()).unwrap();
        blamed(plan.run(&*to, "out", &()), "convert");
    }
    let feeds = (&Feed::new(&source), &Feed::new(&source));
    blamed(compare(feeds, &Bound::default(), &|_| true, &|_| (), &mut |_, _| Ok(())), "diff");
    blamed(stats(&Feed::new(&source), &key, &|_| ()).map(drop), "inspect --stats");
    let world = planaria_comm::alone();
    let mut state = TrainState::new(vec![Item::whole(
        TensorKind::Parameter,
        "model.0.bias",
        &Array::zeros(&[10], DType::F32).unwrap(),
    )]);
    blamed(load_source(&*world, &source, &mut state, &LoadOptions::default()).map(drop), "load");
}

/// A checksum is that of a whole tensor: where a mapping takes a part of it, the rest is read too.
#[test]
fn damage_behind_the_part_that_a_mapping_takes_is_found() {
    let store = copied("torch-dcp");
    let half = Program::parse("model.2.weight -> first, second, axis = 1\nsecond -> _\n").unwrap();
    let options = ConvertOptions { mapping: Some(half.into()), ..ConvertOptions::default() };
    let convert = || {
        let (source, to) = (opened(&store, "fsdp2_2").unwrap(), Object::memory());
        plan(&source, To::HuggingFace, &options).unwrap().run(&to, "out", &())
    };
    convert().unwrap();
    let source = opened(&store, "fsdp2_2").unwrap();
    let (_, extents) = source.get(&Key::model("model.2.weight")).unwrap().tiles.boxes().next().unwrap();
    let file = &source.files[extents[0].file];
    let mut bytes = store.read(file, u64::MAX).unwrap();
    bytes[(extents[0].offset + extents[0].len) as usize - 1] ^= 1;
    store.put(file, &bytes, PutMode::Replace).unwrap();
    let error = convert().unwrap_err();
    assert!(matches!(&error, Error::Member { tensor, .. } if tensor == "model.2.weight"), "{error}");
}

#[test]
fn a_copy_that_is_damaged_is_no_rank_that_held_another_value() {
    // Ranks with metadata each, of which the second says that what the first has is in a file of its own too.
    let store = copied("torch-dcp/async2");
    let metadata = store.read(".metadata", u64::MAX).unwrap();
    let mut second = metadata.clone();
    let (first_name, second_name) = (b"__0_0.distcp", b"__2_0.distcp");
    for at in 0..second.len() - first_name.len() {
        if second[at..].starts_with(first_name) {
            second[at..at + first_name.len()].copy_from_slice(second_name);
        }
    }
    store.delete(".metadata").unwrap();
    store.write("__0.metadata", &metadata).unwrap();
    store.write("__1.metadata", &second).unwrap();
    store.write("__2_0.distcp", &store.read("__0_0.distcp", u64::MAX).unwrap()).unwrap();
    assert!(verify(&store, "").unwrap().is_sound());
    let source = opened(&store, "").unwrap();
    let mut boxes = source.tensors.values().flat_map(|entry| entry.tiles.boxes());
    let (_, extents) = boxes.find(|(_, extents)| extents.len() == 2).unwrap();
    let file = &source.files[extents[1].file];
    let mut bytes = store.read(file, u64::MAX).unwrap();
    bytes[extents[1].offset as usize] ^= 0x10;
    store.put(file, &bytes, PutMode::Replace).unwrap();
    let error = opened(&store, "").unwrap().check_copies().unwrap_err();
    assert!(matches!(&error, Error::Member { file: blamed, .. } if blamed == file), "{error}");
    assert_eq!(verify(&store, "").unwrap().problems, [error], "named once");
}

#[test]
fn a_changed_bit_in_a_pickle_is_found_when_it_is_opened() {
    let store = copied("formats");
    let mut bytes = store.read("nested.pt", u64::MAX).unwrap();
    let step = bytes.windows(6).position(|window| window == b"step\x71\x01").unwrap();
    bytes[step] ^= 1;
    store.put("nested.pt", &bytes, PutMode::Replace).unwrap();
    let error = opened(&store, "nested.pt").unwrap_err();
    assert!(matches!(&error, Error::Member { member, .. } if member.ends_with("data.pkl")), "{error}");
}

#[test]
fn archives_that_were_written_without_checksums_are_not_damaged() {
    let store = stored("formats");
    let found = verify(&store, "no_sums.pt").unwrap();
    assert!(found.is_sound() && !found.summed, "{found:?}");
    assert_eq!(opened(&store, "no_sums.pt").unwrap().read(&Key::model("w")).unwrap().len(), 16);
}

#[test]
fn the_archives_that_we_write_carry_true_checksums() {
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    let from = stored("torch-dcp");
    let source = opened(&from, "fsdp2_2").unwrap();
    plan(&source, To::TorchDcp, &ConvertOptions::default()).unwrap().run(&*store, "dcp", &()).unwrap();
    blamed(&store, "dcp");
}

#[test]
fn a_changed_python_value_is_found_too() {
    let store = copied("torch-dcp");
    let source = opened(&store, "fsdp2_2").unwrap();
    // The number 0.01 of a group, as a pickle has it.
    let number = [&b"G"[..], &0.01f64.to_be_bytes()].concat();
    let mut changed = 0;
    for file in &source.files {
        let mut bytes = store.read(file, u64::MAX).unwrap();
        if let Some(at) = bytes.windows(9).position(|window| window == number) {
            bytes[at + 8] ^= 1;
            store.put(file, &bytes, PutMode::Replace).unwrap();
            changed += 1;
        }
    }
    assert_eq!(changed, 1, "one rank has the learning rate");
    let problems = verify(&store, "fsdp2_2").unwrap().problems;
    assert!(
        matches!(&problems[..], [Error::Member { member, .. }] if member.ends_with("data.pkl")),
        "{problems:?}"
    );
}
