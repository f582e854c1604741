//! All public reshard goldens pass, and the runner notices wrong answers.

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/reshard.jsonl.gz")
}

#[test]
fn every_case_passes() {
    let outcome = planaria_golden::run("reshard", &testdata()).unwrap();
    assert!(outcome.failures.is_empty(), "{:#?}", outcome.failures);
    assert_eq!((outcome.passed + outcome.alone, outcome.failed, outcome.skipped), (616, 0, 0));
    // Most cases are compared with the reference buffer by buffer.
    let alone: usize = outcome.reasons.values().sum();
    assert!(alone < 250, "{:?}", outcome.reasons);
}

#[test]
fn wrong_answers_are_noticed() {
    let good = r#"{"mesh_shape":[2],"shape":[2],"src":["S(0)"],"dst":["R"],"src_locals":[[1],[2]],"dst_locals":[[1,2],[1,2]],"value_preserved":true}"#;
    let file = std::env::temp_dir().join(format!("planaria-reshard-{}.jsonl", std::process::id()));
    std::fs::write(&file, format!("{good}\n{}\nnonsense\n", good.replace("[[1,2],[1,2]]", "[[1,2],[2,1]]")))
        .unwrap();
    let outcome = planaria_golden::run("reshard", &file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (1, 2), "{:?}", outcome.failures);
}

#[test]
fn unreadable_paths_and_unknown_kinds_are_errors() {
    assert!(planaria_golden::run("reshard", Path::new("no/such/file.jsonl")).is_err());
    assert!(planaria_golden::run("no-such-kind", &testdata()).is_err());
}
