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

/// Cases made to show one limit of the reference each: none is a failure of ours, and the reasons are told.
#[test]
fn limits_of_the_reference_are_told_from_mistakes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/aoa/limits.jsonl.gz");
    let outcome = planaria_golden::run("aoa", &path).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed, outcome.alone, outcome.skipped), (19, 46, 0), "{:?}", outcome.reasons);
    for reason in [
        "an idle axis makes it lose the new name",
        "it lists what was made and dropped",
        "'_' among others is a name to it",
        "it forgets a cast when it compares the element types of a concatenation",
        "it joins two element types in one tensor",
        "it cannot tell the ranks of a joined tensor that is fused",
        "it wants every name to have the placeholder, '_' as well",
        "it fails backwards on a placeholder that no model name has",
        "it undoes no cast, even when the element type to go back to is given",
        "it cuts parts of unequal width in the wrong place",
        "it takes a permutation without brackets for an element type",
        "it lets one statement assign a name twice",
        "it passes over attributes beside a fused form",
        "it reads elements that do not exist",
        "it takes one statement a text",
        "a statement of its vanished",
    ] {
        assert!(outcome.reasons.contains_key(reason), "no case shows: {reason}\n{:?}", outcome.reasons);
    }
}

fn shard(key: &str, extents: &[usize], dtype: &str) -> String {
    let offsets = vec![0; extents.len()];
    format!(
        r#"{{"key":"{key}","local_shape":{extents:?},"global_shape":{extents:?},"global_offset":{offsets:?},"dtype":"{dtype}"}}"#
    )
}

fn run_cases(name: &str, cases: &[String]) -> planaria_golden::Outcome {
    let file = std::env::temp_dir().join(format!("planaria-aoa-{name}-{}.jsonl", std::process::id()));
    std::fs::write(&file, cases.join("\n")).unwrap();
    let outcome = planaria_golden::run("aoa", &file).unwrap();
    std::fs::remove_file(&file).unwrap();
    outcome
}

#[test]
fn answers_under_lost_names_are_compared_all_the_same() {
    // The reference lists 'g' under the name of a temporary; what it says of it must still be ours.
    let case = |from: &str| {
        let (whole, given) = (shard("x", &[2], "float32"), shard("s", &[4], "float32"));
        let part = whole.replace(r#""x""#, r#""g0""#);
        let block = given.replace(r#""local_shape":[4]"#, r#""local_shape":[2]"#);
        let block = block.replace(r#""global_offset":[0]"#, &format!(r#""global_offset":[{from}]"#));
        format!(
            r#"{{"id":"x","group":"split","statements":["s -> g0,u, axis=0","g0 -> g, axis=0"],"statement_count":2,"reverse":false,"source":[{given}],"destination":null,"outputs":{{"g0":{{"shape":[2]}},"u":{{"shape":[2]}}}},"queries":[{{"target":{part},"result":[{{"source":{block},"target":{part},"postprocess":null}}]}}]}}"#
        )
    };
    let outcome = run_cases("names", &[case("0"), case("2")]);
    assert_eq!((outcome.passed, outcome.alone, outcome.failed), (0, 1, 1), "{:?}", outcome.failures);
}

#[test]
fn refusing_to_join_element_types_needs_an_answer_that_joins_them() {
    let case = |steps: &str| {
        let (a, b) = (shard("a", &[2], "float32"), shard("b", &[2], "float32"));
        let (c, low) = (shard("c", &[4], "float32"), shard("c", &[2], "float32"));
        let high = low.replace(r#""global_offset":[0]"#, r#""global_offset":[2]"#);
        format!(
            r#"{{"id":"x","group":"cast","statements":["a -> t, dtype='bfloat16'","t,b -> c, axis=0"],"statement_count":2,"reverse":false,"source":[{a},{b}],"destination":[{c}],"outputs":{{"c":{{"shape":[4]}}}},"queries":[{{"target":{c},"result":[{{"source":{a},"target":{low},"postprocess":{steps}}},{{"source":{b},"target":{high},"postprocess":null}}]}}]}}"#
        )
    };
    let outcome = run_cases("mixed", &[case(r#"["bfloat16"]"#), case("null")]);
    assert_eq!((outcome.passed, outcome.alone, outcome.failed), (0, 1, 1), "{:?}", outcome.failures);
}

#[test]
fn wrong_answers_are_noticed() {
    let shard = |key: &str| shard(key, &[2], "float32");
    let case = |from: &str| {
        format!(
            r#"{{"id":"x","group":"rename","statements":["a -> b"],"statement_count":1,"reverse":false,"source":[{a},{z}],"destination":[{b}],"outputs":{{"b":{{"shape":[2]}}}},"queries":[{{"target":{b},"result":[{{"source":{from},"target":{b},"postprocess":null}}]}}]}}"#,
            a = shard("a"),
            z = shard("z"),
            b = shard("b"),
        )
    };
    let outcome = run_cases("wrong", &[case(&shard("a")), case(&shard("z"))]);
    assert_eq!((outcome.passed, outcome.failed), (1, 1), "{:?}", outcome.failures);
}
