//! The public cases of sentence embeddings pass, and wrong ones are noticed.

use std::path::Path;

#[test]
fn every_public_case_passes() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/embeddings");
    let outcome = planaria_golden::run("embeddings", &testdata).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!(outcome.passed, 81 + 2 + 1);
}

#[test]
fn wrong_answers_are_noticed() {
    let case = |pearson: f64| {
        format!(
            r#"{{"id": "x", "fn": "correlation", "in": {{"x": [1, 2, 3], "y": [1, 2, 4]}}, "out": {{"pearson": {pearson}, "spearman": 1.0}}, "tol": {{"abs": 1e-6, "rel": 0}}}}"#
        )
    };
    let path = std::env::temp_dir().join(format!("planaria-embeddings-{}.jsonl", std::process::id()));
    std::fs::write(&path, [case(0.9819805), case(0.97)].join("\n")).unwrap();
    let outcome = planaria_golden::run("embeddings", &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (1, 1), "{:#?}", outcome.failures);
}
