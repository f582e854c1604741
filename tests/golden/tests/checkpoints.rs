//! Every public checkpoint of other systems is read bit for bit, and wrong values are noticed.

use std::path::{Path, PathBuf};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

#[test]
fn every_paddle_checkpoint_agrees() {
    let outcome = planaria_golden::run("paddle-checkpoints", &testdata("paddle-checkpoints")).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!(outcome.passed + outcome.alone, 39);
}

#[test]
fn every_torch_checkpoint_agrees() {
    let outcome = planaria_golden::run("torch-dcp", &testdata("torch-dcp")).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!(outcome.passed + outcome.alone, 17);
}

#[test]
fn one_folder_alone_can_be_checked_and_a_changed_byte_fails_it() {
    let one = planaria_golden::run("torch-dcp", &testdata("torch-dcp/single")).unwrap();
    assert_eq!((one.passed + one.alone, one.failed), (1, 0), "{:?}", one.failures);
    let folder = std::env::temp_dir().join(format!("planaria-golden-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("tp2")).unwrap();
    for name in ["tp2/0.metadata", "tp2/0_0.distcp", "tp2/1_0.distcp"] {
        std::fs::copy(testdata("paddle-checkpoints").join(name), folder.join(name)).unwrap();
    }
    let mut expected = std::fs::read(testdata("paddle-checkpoints/tp2.expected.safetensors")).unwrap();
    *expected.last_mut().unwrap() ^= 1;
    std::fs::write(folder.join("tp2.expected.safetensors"), expected).unwrap();
    let outcome = planaria_golden::run("paddle-checkpoints", &folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (0, 1), "{:?}", outcome.failures);
}
