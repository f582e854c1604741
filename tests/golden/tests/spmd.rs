//! No public SPMD golden needs more bytes with our decision than with the reference's.

use std::path::Path;

#[test]
fn no_decision_is_dearer_than_the_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/spmd.jsonl.gz");
    let outcome = planaria_golden::run("spmd", &path).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed + outcome.alone, outcome.skipped), (2868, 58));
    // Most cases are compared in some direction, and every op that is small enough has run.
    assert!(outcome.alone < 900, "{:?}", outcome.reasons);
    let count = |what: &str| {
        let of = |note: &String| {
            note.strip_prefix(what).and_then(|n| n.trim_start_matches(": ").parse::<usize>().ok())
        };
        outcome.notes.iter().find_map(of).unwrap_or(0)
    };
    let in_steps = count("forward, dearer as several ops") + count("backward, dearer as several ops");
    assert!(in_steps <= 7, "{:?}", outcome.notes);
    assert!(count("execution, as on one rank") > 1000, "{:?}", outcome.notes);
    assert!(count("reverse, the same inputs") > 1000, "{:?}", outcome.notes);
}

#[test]
fn dearer_answers_are_noticed() {
    // The same op with a reference that claims to move nothing although the inputs disagree.
    let case = r#"{"id":"x","op":"add","mesh_shape":[2],"tags":[],"attrs":{},
        "inputs":[{"shape":[4,4],"dims_mapping":[0,-1]},{"shape":[4,4],"dims_mapping":[-1,0]}],
        "forward":{"inputs":[{"dims_mapping":[0,-1]},{"dims_mapping":[-1,0]}],"outputs":[{"dims_mapping":[0,-1]}],"sound":true}}"#;
    let file = std::env::temp_dir().join(format!("planaria-spmd-{}.jsonl", std::process::id()));
    std::fs::write(&file, case.replace('\n', " ")).unwrap();
    let outcome = planaria_golden::run("spmd", &file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (0, 1), "{:?}", outcome.failures);
}

#[test]
fn ids_and_a_table_of_one_shape_are_told_apart() {
    // Our op takes the table first, the reference the ids; rows of the output are rows of the ids.
    let case = r#"{"id":"x","op":"embedding_static","mesh_shape":[2],"tags":[],"attrs":{"padding_idx":-1,"sparse":false},
        "inputs":[{"shape":[2,8],"dims_mapping":[-1,-1]},{"shape":[2,8],"dims_mapping":[-1,-1]}],
        "forward":{"error":true},
        "reverse":{"given_outputs":[{"shape":[2,8,8],"dims_mapping":[0,-1,-1]}],
            "inputs":[{"dims_mapping":[0,-1]},{"dims_mapping":[-1,-1]}],"outputs":[{"dims_mapping":[0,-1,-1]}]}}"#;
    let file = std::env::temp_dir().join(format!("planaria-spmd-ids-{}.jsonl", std::process::id()));
    std::fs::write(&file, case.replace('\n', " ")).unwrap();
    let outcome = planaria_golden::run("spmd", &file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (1, 0), "{:?}", outcome.failures);
    assert!(outcome.notes.contains(&"reverse, the same inputs: 1".to_string()), "{:?}", outcome.notes);
}
