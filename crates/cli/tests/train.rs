//! `planaria train`, `launch` and `generate` as a script sees them: files, exit codes, signals, restarts.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A tiny run in a folder; steps enough that it can be interrupted.
fn prepare(folder: &Path, steps: u64) {
    let line = |i: usize| format!("{i}: every piece grows back whole, also piece {}.\n", i * i % 89);
    fs::write(folder.join("text.txt"), (0..200).map(line).collect::<String>()).unwrap();
    let config = format!(
        r#"
        mesh = "dp=2"
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
        steps = {steps}
        global_batch = 4
        [checkpoint]
        every = 20
        "#
    );
    fs::write(folder.join("tiny.toml"), config).unwrap();
}

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(folder).args(args).stdin(Stdio::null());
    command
}

fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(folder, args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// Waits until the run has done some steps.
fn wait_for_step(folder: &Path, step: u64) {
    let file = folder.join("runs/tiny/metrics.jsonl");
    let limit = Instant::now() + Duration::from_secs(60);
    while Instant::now() < limit {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let steps = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if steps.filter(|v| v.get("loss").is_some()).any(|v| v["step"].as_u64() >= Some(step)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no step {step} within a minute");
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_run_trains_goes_on_and_speaks() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here, 6);
    let (code, out, err) = run(here, &["train", "tiny.toml", "--set", "checkpoint.every=3"]);
    assert_eq!((code, out.as_str()), (0, "runs/tiny/ckpt/step-00000006\n"), "{err}");
    assert!(err.contains("step 6/6") && err.contains("saved ckpt/step-00000003"), "{err}");
    for file in ["config.toml", "metrics.jsonl", "log/rank-00001.jsonl", "ckpt/step-00000006/config.json"] {
        assert!(here.join("runs/tiny").join(file).exists(), "{file}");
    }
    let events = fs::read_dir(here.join("runs/tiny")).unwrap().flatten();
    assert!(events.into_iter().any(|e| e.file_name().to_string_lossy().starts_with("events.out.tfevents")));

    let more = ["train", "tiny.toml", "--set", "train.steps=8", "--set", "mesh=tp=2", "--json"];
    let (code, out, err) = run(here, &more);
    assert_eq!(code, 0, "{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["schema"] == "planaria/train/1"), "{out}");
    let steps: Vec<u64> =
        lines.iter().filter(|l| l["event"] == "step").filter_map(|l| l["step"].as_u64()).collect();
    assert_eq!(steps, [7, 8]);

    let (code, out, err) = run(here, &["train", "tiny.toml", "--set", "train.steps=8"]);
    assert_eq!((code, out.as_str()), (0, "runs/tiny/ckpt/step-00000008\n"), "{err}");
    assert!(err.contains("complete at step 8; raise `train.steps`"), "{err}");
    let checked = run(here, &["train", "tiny.toml", "--dry-run", "--set", "mesh="]);
    assert_eq!(
        checked.1,
        "'tiny' can run on 1 rank as pp=1 dp=1 ep=1 tp=1, resuming from ckpt/step-00000008\n"
    );
    let (code, _, err) = run(here, &["train", "tiny.toml", "--dry-run", "--set", "model.rope_theta=500"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("model.rope_theta 10000 -> 500") && err.contains("hint: set it back"), "{err}");
    let metrics = fs::read_to_string(here.join("runs/tiny/metrics.jsonl")).unwrap();
    let line: Value = metrics.lines().find(|line| line.contains("\"loss\"")).unwrap().parse().unwrap();
    assert_eq!((&line["tokens"], &line["skipped"]), (&64.0.into(), &0.0.into()), "{line}");
    assert!(line["epoch"].as_f64().is_some_and(|epoch| epoch > 0.0 && epoch < 1.0), "{line}");

    let speak = ["generate", "runs/tiny", "every ", "--tokens", "12", "--temperature", "0"];
    let (code, alone, err) = run(here, &speak);
    assert_eq!(code, 0, "{err}");
    assert!(alone.starts_with("every ") && alone.len() > 8, "{alone}");
    let (_, split, err) = run(here, &[&speak[..], &["-n", "2"]].concat());
    assert_eq!(split, alone, "{err}");
    let (_, told, _) = run(here, &[&speak[..], &["--json"]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(format!("every {}\n", told["text"].as_str().unwrap()), alone);

    // Torch counts steps for every weight and Paddle keeps powers of its betas; a run of ours counts once.
    for to in ["dcp", "paddle-unified"] {
        let (code, _, err) = run(here, &["convert", "runs/tiny", to, "--to", to]);
        assert_eq!(code, 0, "{err}");
        let (code, out, err) = run(here, &["diff", "runs/tiny", to]);
        assert_eq!(code, 0, "{to}: {out}{err}");
    }
}

#[test]
fn mistakes_exit_with_2_and_name_what_would_fit() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here, 6);
    for (args, words) in [
        (&["--set", "optim.lrr=1"][..], &["`optim.lrr`", "--set", "did you mean `lr`"][..]),
        (&["-n", "3"], &["3 ranks", "dp=2", "hint: start 2 ranks"]),
        (&["--set", "train.global_batch=5"], &["global_batch 5", "nearest that fit"]),
        (&["--set", "train.schedule=2f2b"], &["2f2b", "1f1b"]),
        (&["--set", "train.steps=many"], &["`train.steps`", "--set", "many"]),
    ] {
        let (code, out, err) = run(here, &[&["train", "tiny.toml"], args].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(
            !err.trim_end_matches('\n').ends_with(char::is_whitespace) && !err.ends_with("\n\n"),
            "{err:?}"
        );
        assert!(words.iter().all(|word| err.contains(word)), "{args:?}: {err}");
        // Every rank would say the same, so none is named.
        assert!(!err.contains("rank 0"), "{args:?}: {err}");
    }
    assert!(!here.join("runs").exists(), "nothing was begun");
    let (code, out, err) = run(here, &["train", "tiny.toml", "--dry-run"]);
    assert_eq!((code, out.as_str()), (0, "'tiny' can run on 2 ranks as pp=1 dp=2 ep=1 tp=1\n"), "{err}");
}

#[test]
fn a_signal_saves_and_exits_with_75() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here, 1_000_000);
    let seldom = ["train", "tiny.toml", "--set", "log.every=10000000"];
    let child = command(here, &seldom).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_step(here, 3);
    signal(&child, "USR1");
    wait_for_step(here, 6);
    signal(&child, "TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("stopping after this step; signal again to stop at once"), "{said}");
    let saved = fs::read_dir(here.join("runs/tiny/ckpt")).unwrap().flatten();
    let newest = saved.map(|e| e.file_name().to_string_lossy().into_owned()).max().unwrap();
    let step: u64 = newest.trim_start_matches("step-").parse().unwrap();
    let (code, out, err) =
        run(here, &["train", "tiny.toml", "--set", &format!("train.steps={}", step + 2), "--set", "mesh="]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains(&format!("resuming from ckpt/{newest}")), "{err}");
    assert!(out.contains(&format!("step-{:08}", step + 2)), "{out}");
}

#[test]
fn launch_starts_again_from_the_last_checkpoint_and_stops_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here, 30);
    // The command fails once, after its first checkpoint; thread ranks are one process.
    let script = "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then \"$0\" train tiny.toml -q --set train.steps=20 && exit 1; \
                  else test $WORLD_SIZE = 2 && exec \"$0\" train tiny.toml; fi";
    let planaria = env!("CARGO_BIN_EXE_planaria");
    let args = ["launch", "-n", "2", "--max-restarts", "1", "--", "sh", "-c", script, planaria];
    let (code, _, err) = run(here, &args);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("restart 1 of 1 on 2 ranks"), "{err}");
    assert!(err.contains("resuming from ckpt/step-00000020") && err.contains("step 30/30"), "{err}");
    let (code, _, err) = run(here, &["launch", "-n", "2", "--", "sh", "-c", "exit 3"]);
    assert_eq!(code, 1, "{err}");

    fs::remove_dir_all(here.join("runs")).unwrap();
    prepare(here, 1_000_000);
    let args = ["launch", "-n", "2", "--max-restarts", "5", "--", "planaria", "train", "tiny.toml", "-q"];
    let mut child = command(here, &args).stdout(Stdio::piped()).spawn().unwrap();
    wait_for_step(here, 3);
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

/// Launches a shell command that tells when it is there, and gives what the signals make of the launcher.
fn signalled(body: &str, names: &[&str]) -> Option<i32> {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let args = ["launch", "--max-restarts", "5", "--", "sh", "-c", body];
    let mut child = command(here, &args).stdout(Stdio::piped()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while !here.join("up").exists() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    for (number, name) in names.iter().enumerate() {
        // A shell that gets the same signal twice at once counts it once.
        while number > 0 && !here.join(format!("seen-{number}")).exists() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        signal(&child, name);
    }
    child.wait().unwrap().code()
}

#[test]
fn a_job_that_does_not_stop_as_asked_is_told_apart() {
    let saves = "trap 'exit 75' TERM; touch up; while :; do sleep 0.05; done";
    assert_eq!(signalled(saves, &["INT"]), Some(75));
    let fails = "trap 'exit 3' TERM; touch up; while :; do sleep 0.05; done";
    assert_eq!(signalled(fails, &["TERM"]), Some(1), "neither saved nor started again");
    let dies = "touch up; while :; do sleep 0.05; done";
    assert_eq!(signalled(dies, &["TERM"]), Some(143));
    let second = "n=0; trap 'n=$((n+1)); touch seen-$n' TERM; touch up; while [ $n -lt 2 ]; do sleep 0.05; done; exit 9";
    assert_eq!(signalled(second, &["TERM", "INT"]), Some(130));
}

#[test]
fn a_configuration_shows_where_its_values_come_from() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path(), 6);
    let mut show = command(folder.path(), &["config", "show", "tiny.toml", "--set", "optim.lr=0.5"]);
    let output = show.env("PLANARIA_TRAIN__ZERO", "2").output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let origin = |key: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(key));
        line.unwrap_or_default().split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(origin("optim.lr"), "0.5 --set");
    assert_eq!(origin("train.zero"), "2 variable PLANARIA_TRAIN__ZERO");
    assert_eq!(origin("model.hidden_size"), "16 tiny.toml:4");
    assert_eq!(origin("optim.beta1"), "0.9 default");
    let (code, schema, _) = run(folder.path(), &["config", "schema"]);
    assert_eq!(code, 0);
    assert_eq!(serde_json::from_str::<Value>(&schema).unwrap()["title"], "Config");
}
