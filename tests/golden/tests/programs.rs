//! Every public program of Paddle comes back, runs to the recorded outputs or is refused; wrong ones are noticed.

use std::fs;
use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/paddle-programs")
}

#[test]
fn every_program_of_paddle_agrees() {
    let outcome = planaria_golden::run("paddle-programs", &testdata()).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!(outcome.passed, 185);
}

#[test]
fn a_wrong_output_and_a_whole_program_among_damaged_ones_are_noticed() {
    let folder = std::env::temp_dir().join(format!("planaria-golden-programs-{}", std::process::id()));
    fs::create_dir_all(folder.join("corrupt/none")).unwrap();
    for ending in ["json", "pdiparams"] {
        let from = testdata().join(format!("mlp.{ending}"));
        fs::copy(&from, folder.join(format!("mlp.{ending}"))).unwrap();
        fs::copy(&from, folder.join(format!("corrupt/none/m.{ending}"))).unwrap();
    }
    let mut recorded = fs::read(testdata().join("mlp.io.safetensors")).unwrap();
    *recorded.last_mut().unwrap() ^= 1;
    fs::write(folder.join("mlp.io.safetensors"), recorded).unwrap();
    let outcome = planaria_golden::run("paddle-programs", &folder).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (2, 2), "{:?}", outcome.failures);
    assert!(
        outcome.failures[0].contains("accepted") && outcome.failures[1].contains("element"),
        "{outcome:?}"
    );
}
