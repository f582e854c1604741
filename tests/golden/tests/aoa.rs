//! Every public mapping golden.

use std::path::Path;

#[test]
fn every_mapping_case_agrees_with_the_oracle_or_shows_why_not() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/aoa.jsonl.gz");
    let outcome = planaria_golden::run("aoa", &path).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed + outcome.alone, outcome.skipped), (707, 0));
    let alone: usize = outcome.reasons.values().sum();
    assert!(alone < 90, "{:?}", outcome.reasons);
}

#[test]
fn wrong_answers_are_noticed() {
    let shard = |key: &str| {
        format!(
            r#"{{"key":"{key}","local_shape":[2],"global_shape":[2],"global_offset":[0],"dtype":"float32"}}"#
        )
    };
    let case = |from: &str| {
        format!(
            r#"{{"id":"x","group":"rename","statements":["a -> b"],"statement_count":1,"reverse":false,"source":[{a},{z}],"destination":[{b}],"outputs":{{"b":{{"shape":[2]}}}},"queries":[{{"target":{b},"result":[{{"source":{from},"target":{b},"postprocess":null}}]}}]}}"#,
            a = shard("a"),
            z = shard("z"),
            b = shard("b"),
        )
    };
    let file = std::env::temp_dir().join(format!("planaria-aoa-{}.jsonl", std::process::id()));
    std::fs::write(&file, format!("{}\n{}\n", case(&shard("a")), case(&shard("z")))).unwrap();
    let outcome = planaria_golden::run("aoa", &file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (1, 1), "{:?}", outcome.failures);
}
