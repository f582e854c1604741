//! Files that were damaged or made to do harm: an error or a right answer, never a panic or a large allocation.

use crate::common::{copied, opened, read_all, stored};
use planaria_ckpt::Error;
use planaria_ckpt::formats::pickle::{self, Limits, Node};
use planaria_store::{Object, Store, StoreExt};
use proptest::prelude::*;
use std::sync::Arc;

fn parse(bytes: &[u8], limits: &Limits) -> Result<pickle::Tree, Error> {
    let store = Object::memory();
    store.write("p", bytes).unwrap();
    pickle::read(&*store.reader("p")?, limits)
}

/// The whole value as JSON.
fn json(bytes: &[u8], tree: &pickle::Tree) -> Option<serde_json::Value> {
    let store = Object::memory();
    store.write("p", bytes).unwrap();
    tree.to_json(tree.root(), &*store.reader("p").unwrap()).unwrap()
}

/// Folders of each kind, and one file of each to be damaged.
const VICTIMS: &[(&str, &str)] = &[
    ("paddle-checkpoints/tp2", "0.metadata"),
    ("paddle-checkpoints/tp2", "0_0.distcp"),
    ("paddle-checkpoints/zero2_flat", "0.metadata"),
    ("paddle-checkpoints/tp2_safetensors", "0_0.safetensors"),
    ("torch-dcp/nested2", ".metadata"),
    ("torch-dcp/nested2", "__1_0.distcp"),
    ("torch-dcp/fp8_2", "__0_0.distcp"),
    ("torch-dcp/hf_sharded2", "shard-00001-model-00001-of-00001.safetensors"),
    ("torch-dcp/hf_consolidated2", "model.safetensors.index.json"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes_are_no_pickle_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(tree) = parse(&bytes, &Limits::default()) {
            json(&bytes, &tree);
        }
    }

    #[test]
    fn random_opcodes_never_panic(
        codes in prop::collection::vec(prop::sample::select(&b"()]}NKJMtaesubcRQqhj012dlio.\x80\x81\x85\x86\x87\x88\x8a\x8c\x8f\x90\x91\x93\x94C"[..]), 0..60),
    ) {
        if let Ok(tree) = parse(&codes, &Limits::default()) {
            json(&codes, &tree);
        }
    }

    #[test]
    fn damaged_checkpoints_never_panic(
        victim in 0..VICTIMS.len(), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let (folder, file) = VICTIMS[victim];
        let store = copied(folder);
        let mut bytes = store.read(file, 1 << 20).unwrap();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        store.write(file, &bytes).unwrap();
        let _ = read_all(&store, "");
    }
}

#[test]
fn every_cut_of_a_metadata_file_is_refused() {
    for (folder, file) in [("paddle-checkpoints/tp2_uid7", "7.metadata"), ("torch-dcp/async2", ".metadata")] {
        let store = copied(folder);
        let whole = store.read(file, 1 << 20).unwrap();
        for len in 0..whole.len() {
            store.write(file, &whole[..len]).unwrap();
            assert!(read_all(&store, "").is_err(), "{folder} cut to {len} bytes");
        }
    }
}

#[test]
fn every_cut_of_a_data_file_is_refused() {
    for (folder, file) in [("paddle-checkpoints/uneven2", "1_0.distcp"), ("torch-dcp/async2", "__1_0.distcp")]
    {
        let store = copied(folder);
        let whole = store.read(file, 1 << 20).unwrap();
        for len in (0..whole.len()).step_by(7) {
            store.write(file, &whole[..len]).unwrap();
            assert!(read_all(&store, "").is_err(), "{folder} cut to {len} bytes");
        }
    }
}

#[test]
fn tensors_that_are_not_what_their_bytes_say_are_refused() {
    for (file, why) in [("neg_view.pt", "the mark 'neg'"), ("expand_bomb.pt", "repeats")] {
        let error = opened(&stored("formats"), file).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains(why), "{error}");
    }
}

#[test]
fn a_tensor_of_more_dims_than_any_format_holds_is_refused_when_it_is_read() {
    // A storage of one element, seen with 100,000 dims of one element each.
    let mut view = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage".to_vec();
    view.extend(b"ctorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQK\0(");
    for end in [&b"t("[..], b"t\x89NtRs."] {
        view.extend(b"K\x01".repeat(100_000));
        view.extend(end);
    }
    let store: Arc<dyn Store> = Arc::new(Object::memory());
    crate::common::put(&store, "x.pt", &crate::common::archive_with(&view, &[0; 4]));
    let error = opened(&store, "x.pt").unwrap_err();
    assert!(error.to_string().contains("tensor 'w' has 100000 dims, at most 64 are read"), "{error}");
}

#[test]
fn an_encrypted_member_is_not_sound() {
    let store = copied("formats");
    let mut bytes = store.read("nested.pt", u64::MAX).unwrap();
    // The flags of the directory's entry of a storage, whose bytes would have to be decrypted.
    let entries: Vec<usize> =
        (0..bytes.len() - 4).filter(|&at| bytes[at..].starts_with(b"PK\x01\x02")).collect();
    let of_storage = |at: &&usize| bytes[**at + 46..].starts_with(b"nested/data/0");
    let at = *entries.iter().find(of_storage).unwrap();
    bytes[at + 8] |= 1;
    crate::common::put(&store, "nested.pt", &bytes);
    let error = planaria_ckpt::verify(&store, "nested.pt").unwrap_err();
    assert!(error.to_string().contains("is encrypted"), "{error}");
}

#[test]
fn a_chunk_that_is_listed_again_says_nothing_new() {
    let source = opened(&stored("torch-dcp"), "repeated").unwrap();
    let boxes: Vec<_> = source.model("w").unwrap().tiles.boxes().map(|(_, extents)| extents.len()).collect();
    assert_eq!(boxes, [1]);
}

#[test]
fn lengths_past_the_end_are_refused_before_allocation() {
    // BINBYTES8, BINUNICODE8, LONG4 and BYTEARRAY8 that claim almost all memory there is.
    for opcode in [0x8e, 0x8d, 0x96] {
        let mut bytes = vec![0x80, 4, opcode];
        bytes.extend_from_slice(&(u64::MAX / 2).to_le_bytes());
        bytes.push(b'.');
        assert!(parse(&bytes, &Limits::default()).is_err(), "{opcode:#x}");
    }
    assert!(parse(&[0x80, 2, 0x8b, 0xff, 0xff, 0xff, 0x7f, b'.'], &Limits::default()).is_err());
}

#[test]
fn shared_values_do_not_explode() {
    // Ten lists, each holding the one before ten times: 10^10 values if written out.
    let mut bytes = vec![0x80, 4, b']', 0x94];
    for _ in 0..10 {
        bytes.push(b'0');
        bytes.extend([b']', b'(']);
        for _ in 0..10 {
            let last = bytes.iter().filter(|b| **b == 0x94).count() as u8 - 1;
            bytes.extend([b'h', last]);
        }
        bytes.extend([b'e', 0x94]);
    }
    bytes.push(b'.');
    let tree = parse(&bytes, &Limits::default()).unwrap();
    assert_eq!(json(&bytes, &tree), None, "too large for one text");
    // A list inside itself.
    let bytes = [0x80, 4, b']', 0x94, b'h', 0, b'a', b'.'];
    let tree = parse(&bytes, &Limits::default()).unwrap();
    assert_eq!(json(&bytes, &tree), None);
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    // A million sizes, each wrapped around the next: callables first, then as many calls.
    for global in [&b"ctorch\nSize\n"[..], b"ctorch._utils\n_rebuild_parameter\n", b"cbuiltins\ntuple\n"] {
        let mut bytes = vec![0x80, 2];
        bytes.extend_from_slice(global);
        bytes.extend([b'q', 0]);
        for _ in 0..300_000 {
            bytes.extend([b'h', 0]);
        }
        bytes.push(b')');
        for _ in 0..300_000 {
            bytes.extend([0x85, b'R']);
        }
        bytes.push(b'.');
        let tree = parse(&bytes, &Limits::default()).unwrap();
        assert_eq!(json(&bytes, &tree), None);
        assert_eq!(tree.sizes(tree.root()), None);
        let store: Arc<dyn Store> = Arc::new(Object::memory());
        store.write("x.pdparams", &bytes).unwrap();
        assert!(read_all(&store, "x.pdparams").is_err());
        store.write("0.metadata", &bytes).unwrap();
        store.write(".metadata", &bytes).unwrap();
        assert!(read_all(&store, "").is_err());
    }
}

#[test]
fn the_number_of_values_and_the_text_are_limited() {
    let limits = Limits { values: 100, text: 50 };
    let many = [&[b'('][..], &[b'N'; 200], b"t."].concat();
    assert!(parse(&many, &limits).is_err());
    let long = [&[0x8c, 60][..], &[b'x'; 60], b"."].concat();
    assert!(parse(&long, &limits).is_err());
    assert!(parse(&long, &Limits::default()).is_ok());
}

#[test]
fn numbers_of_every_opcode() {
    let int = |bytes: &[u8]| match parse(bytes, &Limits::default()).map(|tree| tree.node(tree.root()).clone())
    {
        Ok(Node::Int(value)) => value,
        other => panic!("{other:?}"),
    };
    assert_eq!(int(b"K\xff."), 255);
    assert_eq!(int(b"M\xff\xff."), 65535);
    assert_eq!(int(b"J\xff\xff\xff\xff."), -1);
    assert_eq!(int(b"\x8a\x00."), 0);
    assert_eq!(int(b"\x8a\x01\x80."), -128);
    assert_eq!(int(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), i64::MAX);
    assert_eq!(int(b"I42\n."), 42);
    assert_eq!(int(b"L-7L\n."), -7);
    let float = parse(b"G\x3f\xf8\0\0\0\0\0\0.", &Limits::default()).unwrap();
    assert_eq!(float.node(float.root()), &Node::Float(1.5));
}

#[test]
fn opening_reads_no_tensor_data() {
    // The data of `big1` is 248 KiB; opening it needs far less, plus one window after each large array.
    let counting = planaria_store::Faulty::counting(planaria_store::Local::new(crate::common::testdata(
        "paddle-checkpoints/big1",
    )));
    let store: Arc<dyn Store> = Arc::new(counting.clone());
    let source = crate::common::opened(&store, "").unwrap();
    assert!(counting.operations() < 20, "{}", counting.operations());
    assert!(source.total_bytes() > 200_000);
    assert!(source.model("tr").unwrap().strides.len() == 1, "column-major");
    drop(stored("paddle-checkpoints/big1"));
}
