//! Every public indexing golden.

use std::path::Path;

#[test]
fn every_indexing_case_agrees_with_the_oracle() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/indexing.jsonl.gz");
    let outcome = planaria_golden::run("indexing", &path).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed, outcome.alone), (4859, 26));
}

#[test]
fn every_indexing_case_agrees_through_tensors_and_their_history() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/indexing.jsonl.gz");
    let outcome = planaria_golden::run("indexing-tensor", &path).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed, outcome.alone), (4861, 24));
}
