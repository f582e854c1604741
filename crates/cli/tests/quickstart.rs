//! `planaria quickstart`, the first command of the README, in few steps of a smaller model.

use crate::common;
use common::{Ran, command, root, text};

fn quickstart(runs: &std::path::Path) -> Ran {
    let dir = format!("log.dir={}", text(runs));
    let mut args = vec!["quickstart", "--set", &dir];
    for value in ["train.steps=4", "train.eval_every=2", "checkpoint.every=1", "model.hidden_size=16"] {
        args.extend(["--set", value]);
    }
    for value in ["model.intermediate_size=16", "data.sequence=32", "data.source=[{path=\"docs/**/*.md\"}]"] {
        args.extend(["--set", value]);
    }
    let output = command(&args).current_dir(root()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn the_first_command_trains_on_two_meshes_and_says_how_to_see_it_again() {
    let runs = tempfile::tempdir().unwrap();
    let Ran { code, out, err } = quickstart(runs.path());
    assert_eq!(code, Some(0), "{err}");
    for words in [
        "1. two data replicas of two tensor ranks each: dp=2 tp=2",
        "saved ckpt/step-00000002",
        "2. the same run on another mesh",
        "resuming from ckpt/step-00000002 (step 2, saved on pp=1 dp=2 ep=1 tp=2)",
        "(pp=2 dp=2 ep=1 tp=1)",
        "step 4/4",
        "evaluation loss",
    ] {
        assert!(err.contains(words), "{words}: {err}");
    }
    assert!(out.contains("it continues `/// The ` with"), "{out}");
    let end = out.lines().last().unwrap_or_default();
    assert_eq!(end, text(&runs.path().join("quickstart/ckpt/step-00000004")));

    let again = quickstart(runs.path());
    assert_eq!(again.code, Some(2), "{}", again.err);
    let remove = format!("hint: remove {} to see it again", text(&runs.path().join("quickstart")));
    assert!(again.err.contains(&remove), "{}", again.err);
}
