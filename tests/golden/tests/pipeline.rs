//! The public pipeline schedules of others are understood, and ours are no worse.

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pipeline")
}

#[test]
fn no_public_schedule_is_better() {
    let outcome = planaria_golden::run("pipeline", &testdata()).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!(outcome.passed + outcome.alone, 75 + 45);
    assert_eq!(outcome.reasons.values().sum::<usize>(), 3, "DualPipeV with few micro-batches has no figures");
}

#[test]
fn wrong_figures_are_noticed() {
    let case = |makespan: f64, peak: usize, first: &str| {
        format!(
            r#"{{"schedule": "FThenB", "p": 1, "m": 1, "v": 1, "jobs": [["{first}", "backward:0"]],
               "sim": {{"makespan": {makespan}, "bubble": [0.0], "peak_live": [{peak}]}}}}"#
        )
    };
    let cases = [
        case(3.0, 1, "forward:0"),
        case(4.0, 1, "forward:0"),
        case(3.0, 2, "forward:0"),
        case(3.0, 1, "forward:1"),
        r#"{"schedule": "FThenB", "p": 1, "m": 1, "v": 1, "jobs": [["backward:0", "forward:0"]], "sim": null}"#.into(),
        r#"{"schedule": "1F1B", "p": 4, "m": 8, "sim": {"makespan": 32.0, "bubble": [], "peak_live": [4, 3, 2, 1]}}"#.into(),
    ];
    let path = std::env::temp_dir().join(format!("planaria-pipeline-{}.json", std::process::id()));
    std::fs::write(&path, format!("[{}]", cases.join(","))).unwrap();
    let outcome = planaria_golden::run("pipeline", &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((outcome.passed + outcome.alone, outcome.failed), (2, 4), "{:#?}", outcome.failures);
}
