//! The public cases of Qwen2-VL pass, and wrong ones are noticed.

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/qwen2-vl")
}

#[test]
fn every_public_case_passes() {
    let outcome = planaria_golden::run("qwen2-vl", &testdata()).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!(outcome.passed, 56 + 9 + 6 + 5);
}

#[test]
fn wrong_answers_are_noticed() {
    let size = |height: usize| {
        format!(
            r#"{{"id": "x", "fn": "smart_resize", "in": {{"height": 70, "width": 45, "factor": 28, "min_pixels": 3136,
               "max_pixels": 1003520}}, "out": {{"height": {height}, "width": 56}}, "tol": {{"abs": 0, "rel": 0}}}}"#
        )
        .replace('\n', " ")
    };
    let cases = [size(56), size(84), r#"{"id": "y", "fn": "unknown", "in": {}, "out": {}}"#.to_string()];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("functions.jsonl");
    std::fs::write(&path, cases.join("\n")).unwrap();
    let outcome = planaria_golden::run("qwen2-vl", &path).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (1, 2), "{:#?}", outcome.failures);
}
