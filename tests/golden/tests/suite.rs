//! All integration tests of the package, in one program: it links once.

mod aoa;
mod checkpoints;
mod embeddings;
mod indexing;
mod lora;
mod merge;
mod pipeline;
mod programs;
mod qwen2_vl;
mod reshard;
mod rl;
mod sft;
mod spmd;

/// The test command runs each `testdata/KIND.jsonl.gz` as a kind of its own.
#[test]
fn every_public_file_is_named_after_a_kind() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(kind) = name.strip_suffix(".jsonl.gz") else { continue };
        assert!(planaria_golden::kinds().any(|known| known == kind), "testdata/{name} is of no known kind");
        found += 1;
    }
    assert!(found > 0, "no public file was found");
}
