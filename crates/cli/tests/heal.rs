//! Runs that heal, as a script sees them: ranks that die, hang or come back, checkpoints that are damaged, jobs that only ever crash.
//! Every job has a deadline after which it is killed, so that none can outlive its test.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// After this a job is killed and its test fails.
const DEADLINE: Duration = Duration::from_secs(180);

/// A tiny run that two and three replicas can share.
pub(crate) fn prepare(folder: &Path) {
    let line = |i: usize| format!("{i}: every piece grows back whole, also piece {}.\n", i * i % 89);
    fs::write(folder.join("text.txt"), (0..200).map(line).collect::<String>()).unwrap();
    let config = r#"
        mesh = "dp=3"
        [model]
        hidden_size = 16
        intermediate_size = 24
        num_hidden_layers = 2
        num_attention_heads = 2
        [data]
        sequence = 16
        [[data.source]]
        path = "text.txt"
        [train]
        steps = 12
        global_batch = 6
        threads = 1
        timeout = 60
        [checkpoint]
        every = 2
        keep = 3
        "#;
    fs::write(folder.join("tiny.toml"), config).unwrap();
}

/// Runs the command to its end or its deadline: exit code and standard error.
pub(crate) fn run(folder: &Path, args: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(folder).args(args).envs(variables.iter().copied());
    let (out, err) = (folder.join("out"), folder.join("err"));
    command
        .stdin(Stdio::null())
        .stdout(fs::File::create(out).unwrap())
        .stderr(fs::File::create(&err).unwrap());
    let mut child = command.spawn().unwrap();
    let limit = Instant::now() + DEADLINE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > limit => {
                child.kill().unwrap();
                panic!("{args:?} did not end: {}", fs::read_to_string(&err).unwrap());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    (status.code().unwrap_or(-1), fs::read_to_string(&err).unwrap())
}

/// Losses by step; of a step that was done twice, the last.
fn losses(run: &Path) -> BTreeMap<u64, String> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line.get("loss")?.to_string()))).collect()
}

/// Everything that a checkpoint holds of tensors, byte for byte.
fn tensors(checkpoint: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = super::common::names(checkpoint).into_iter().filter(|name| name.ends_with(".safetensors"));
    files.map(|name| (name.clone(), fs::read(checkpoint.join(name)).unwrap())).collect()
}

/// The ranks of every start.
fn starts(run: &Path) -> Vec<u64> {
    let text = fs::read_to_string(run.join("log/rank-00000.jsonl")).unwrap();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "started").filter_map(|line| line["ranks"].as_u64()).collect()
}

/// The run without any fault, in the folder `whole`.
fn undisturbed(folder: &Path) {
    let (code, err) =
        run(folder, &["train", "tiny.toml", "-q", "--set", "name=whole", "--set", "mesh="], &[]);
    assert_eq!(code, 0, "{err}");
}

/// The healed run has the curve and the last checkpoint of the undisturbed one.
fn assert_same(folder: &Path) {
    let (whole, healed) = (folder.join("runs/whole"), folder.join("runs/tiny"));
    assert_eq!(losses(&healed), losses(&whole));
    let last = "ckpt/step-00000012";
    let (a, b) = (tensors(&healed.join(last)), tensors(&whole.join(last)));
    assert!(!a.is_empty() && a == b, "the tensors differ");
}

const LAUNCH: [&str; 7] = ["launch", "-n", "3", "--engine", "processes", "--max-restarts", "6"];
const TRAIN: [&str; 4] = ["--", "planaria", "train", "tiny.toml"];

#[test]
fn a_run_goes_on_without_a_rank_that_died_and_takes_it_in_again() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let args = [&LAUNCH[..], &["--min-ranks", "1"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=1 step=6")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("rank 1 failed first: killed by signal 9"), "{err}");
    assert!(err.contains("restart 1 of 6 on 2 ranks (dp=2)"), "{err}");
    // The save of step 4 may not have been committed yet.
    assert!(err.contains("resuming from ckpt/step-0000000"), "{err}");
    assert_eq!(starts(&here.join("runs/tiny")), [3, 2]);
    assert_same(here);

    fs::remove_dir_all(here.join("runs/tiny")).unwrap();
    let args = [&LAUNCH[..], &["--min-ranks", "1", "--grow-after", "0"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=2 step=4")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("lost ranks are back; going on with 3 ranks (dp=3)"), "{err}");
    assert_eq!(starts(&here.join("runs/tiny")), [3, 2, 3]);
    assert_same(here);
}

#[test]
fn a_hang_is_reported_by_name_and_healed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let args = [&LAUNCH[..], &["--hang-after", "6"], &TRAIN].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "hang rank=2 step=5")]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("hang: no rank has moved for 6."), "{err}");
    assert!(err.contains("ranks 0, 1 came, rank 2 did not"), "{err}");
    assert!(err.contains("rank 2 (process") && err.contains("is in step 4, in no call"), "{err}");
    assert!(err.contains("    thread "), "{err}");
    assert_same(here);
}

#[test]
fn a_crash_loop_ends_with_its_first_cause() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    // Every start is told to be the first, so that the fault happens each time.
    let script = "TORCHELASTIC_RESTART_COUNT=0 exec \"$0\" train tiny.toml -q";
    let planaria = env!("CARGO_BIN_EXE_planaria");
    let args = ["launch", "-n", "3", "--engine", "processes", "--max-restarts", "50", "--back-off", "0.01"];
    let args = [&args[..], &["--", "sh", "-c", script, planaria]].concat();
    let (code, err) = run(here, &args, &[("PLANARIA_FAULT", "kill rank=0 step=2")]);
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("giving up after 2 restarts: 3 failures in a row without a new checkpoint"),
        "{err}"
    );
    assert!(err.contains("the first: rank 0 failed first: killed by signal 9"), "{err}");
}

#[test]
fn a_damaged_checkpoint_is_left_behind_and_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    undisturbed(here);
    let part = ["train", "tiny.toml", "-q", "--set", "train.steps=8", "--set", "optim.horizon=12"];
    let (code, err) = run(here, &part, &[]);
    assert_eq!(code, 0, "{err}");
    let newest = here.join("runs/tiny/ckpt/step-00000008");
    let file = newest.join(tensors(&newest).into_keys().next().unwrap());
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let rest = [&TRAIN[..], &["--set", "optim.horizon=12"]].concat();
    let (code, err) = run(here, &[&LAUNCH[..], &rest].concat(), &[]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("ckpt/step-00000008 is damaged and not used"), "{err}");
    assert!(err.contains("resuming from ckpt/step-00000006"), "{err}");
    assert_same(here);
}
