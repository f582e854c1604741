//! The public cases of reinforcement learning pass, and wrong ones are noticed.

use std::path::Path;

#[test]
fn every_public_case_passes() {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/rl");
    let outcome = planaria_golden::run("rl", &testdata).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed, outcome.skipped), (147 + 12 + 4, 0));
}

#[test]
fn wrong_answers_are_noticed() {
    let case = |kind: &str| {
        format!(
            r#"{{"id": "x", "fn": "geometry", "in": {{"prompts_per_rollout": 7, "samples_per_prompt": 1, "data_ranks": 3, "per_device": 1}}, "out": {{"error": {{"kind": "{kind}", "field": "data_ranks"}}}}}}"#
        )
    };
    let path = std::env::temp_dir().join(format!("planaria-rl-{}.jsonl", std::process::id()));
    std::fs::write(&path, [case("update-not-multiple-of-ranks"), case("not-positive")].join("\n")).unwrap();
    let outcome = planaria_golden::run("rl", &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (1, 1), "{:#?}", outcome.failures);
}
