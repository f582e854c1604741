//! `planaria new`, and what a run keeps and records: the best checkpoint, FLOPs, perplexity, the history for others.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    let output = command.current_dir(folder).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn succeed(folder: &Path, args: &[&str]) -> String {
    let (code, out, err) = run(folder, args);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

fn records(folder: &Path, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("runs").join(name).join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_new_configuration_trains_as_it_is_and_every_setting_in_it_exists() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert_eq!(succeed(here, &["new", "first.toml"]), "first.toml\n");
    let out = succeed(here, &["train", "first.toml", "-q"]);
    assert_eq!(out, "runs/first/ckpt/step-00000060\n");
    let losses: Vec<f64> = records(here, "first").iter().filter_map(|r| r["loss"].as_f64()).collect();
    assert!(losses[59] < 0.8 * losses[0], "{losses:?}");

    let text = fs::read_to_string(here.join("first.toml")).unwrap();
    let is_setting = |line: &&str| line.starts_with("# ") && line[2..].contains(" = ");
    let settings: Vec<&str> = text.lines().filter(is_setting).collect();
    assert!(settings.len() > 8, "{settings:?}");
    let all: String = text
        .lines()
        .map(|line| if settings.contains(&line) { &line[2..] } else { line })
        .flat_map(|line| [line, "\n"])
        .collect();
    fs::write(here.join("all.toml"), all).unwrap();
    let shown = succeed(here, &["config", "show", "all.toml"]);
    assert!(shown.contains("train.precision") && shown.contains("\"bf16\""), "{shown}");

    // A file may have a name that no run can have.
    succeed(here, &["new", "a b.toml"]);
    assert!(succeed(here, &["config", "show", "a b.toml"]).contains("\"a-b\""));
    let (code, _, err) = run(here, &["new", "first.toml"]);
    assert!(code == 2 && err.contains("already exists"), "{err}");
    let tuned = ["new", "tuned.toml", "--data", "a \"b\".md", "--data", "c.md", "--init", "runs/first"];
    succeed(here, &tuned);
    for (name, text) in [("a \"b\".md", "every piece "), ("c.md", "grows back ")] {
        fs::write(here.join(name), text.repeat(200)).unwrap();
    }
    succeed(here, &["train", "tuned.toml", "-q", "--set", "train.steps=2"]);
}

#[test]
fn a_configuration_means_the_same_from_every_folder() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::create_dir_all(here.join("elsewhere")).unwrap();
    fs::write(here.join("text.txt"), "every piece grows back ".repeat(200)).unwrap();
    assert_eq!(succeed(here, &["new", "stages/first.toml", "--data", "text.txt"]), "stages/first.toml\n");
    let steps = ["--set", "train.steps=2", "--set", "train.eval_every=0"];
    let train = |from: &Path, file: &str, more: &[&str]| {
        succeed(from, &[&["train", file, "-q"], &steps[..], more].concat())
    };
    assert_eq!(train(here, "stages/first.toml", &[]), "runs/first/ckpt/step-00000002\n");
    train(&here.join("elsewhere"), "../stages/first.toml", &[]);
    train(&here.join("stages"), "first.toml", &["--set", "name=second", "--set", "log.dir=../runs"]);
    let bytes = |run: &str| {
        fs::read(here.join(run).join("ckpt/step-00000002/model-00001-of-00001.safetensors")).unwrap()
    };
    assert_eq!(bytes("runs/first"), bytes("elsewhere/runs/first"));
    assert_eq!(bytes("runs/first"), bytes("runs/second"));
    // What a run has recorded trains again, and a start is known again from anywhere.
    train(&here.join("elsewhere"), "../runs/first/config.toml", &["--set", "name=third"]);
    assert_eq!(bytes("runs/first"), bytes("runs/third"));
    let from = "extends = \"first.toml\"\ncheckpoint.from = \"../runs/first/ckpt/step-00000002\"\nlog.dir = \"../runs\"\n";
    fs::write(here.join("stages/next.toml"), from).unwrap();
    let more = ["--set", "train.steps=4"];
    assert!(train(here, "stages/next.toml", &more).ends_with("runs/next/ckpt/step-00000004\n"));
    let more = ["--set", "train.steps=5"];
    assert!(train(&here.join("stages"), "next.toml", &more).ends_with("runs/next/ckpt/step-00000005\n"));
}

#[test]
fn the_best_checkpoint_stays_while_others_rotate() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    succeed(here, &["new", "t.toml"]);
    // A rate that is too high after a few steps: the last evaluation is not the best.
    let common = ["train", "t.toml", "--set", "checkpoint.keep=1", "--set", "checkpoint.every=1"];
    let rate = ["--set", "optim.lr=0.05", "--set", "optim.schedule=constant", "--set", "optim.warmup=12"];
    let best =
        ["--set", "train.eval_every=1", "--set", "checkpoint.keep_best=true", "--set", "log.peak_flops=1e12"];
    let first = [&common[..], &rate, &best].concat();
    let (code, _, err) = run(here, &[&first[..], &["--set", "train.steps=16"]].concat());
    assert_eq!(code, 0, "{err}");
    let eval = |records: &[Value]| -> Vec<(u64, f64)> {
        records.iter().filter_map(|r| Some((r["step"].as_u64()?, r["eval_loss"].as_f64()?))).collect()
    };
    let lowest = |found: &[(u64, f64)]| found.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let found = eval(&records(here, "t"));
    let (step, loss) = lowest(&found);
    assert!(step < 16, "{found:?}");
    assert!(err.contains(&format!("best evaluation loss {loss:.4}, in ckpt/step-{step:08}")), "{err}");
    let saved = || {
        let entries = fs::read_dir(here.join("runs/t/ckpt")).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(saved(), [format!("step-{step:08}"), "step-00000016".into()]);

    // A run that resumes knows the best of before.
    succeed(here, &[&first[..], &["-q", "--set", "train.steps=18", "--set", "optim.lr=0"]].concat());
    let (again, _) = lowest(&eval(&records(here, "t")));
    assert_eq!(again, step);
    assert_eq!(saved(), [format!("step-{step:08}"), "step-00000018".into()]);

    let (code, _, err) = run(
        here,
        &[&common[..], &["--set", "train.eval_every=0", "--set", "checkpoint.keep_best=true"]].concat(),
    );
    assert!(code == 2 && err.contains("train.eval_every"), "{err}");
}

#[test]
fn perplexity_flops_and_utilization_are_recorded_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("text.txt"), "every piece grows back whole. ".repeat(200)).unwrap();
    let config = r#"
        mesh = "dp=2"
        [model]
        hidden_size = 16
        intermediate_size = 24
        num_hidden_layers = 2
        num_attention_heads = 2
        [data]
        sequence = 16
        held_out = 0.1
        [[data.source]]
        path = "text.txt"
        [train]
        steps = 3
        global_batch = 4
        eval_every = 3
        [log]
        peak_flops = 1e9
        tensorboard = false
        "#;
    fs::write(here.join("tiny.toml"), config).unwrap();
    succeed(here, &["train", "tiny.toml", "-q"]);
    let records = records(here, "tiny");
    let number =
        |record: &Value, key: &str| record[key].as_f64().unwrap_or_else(|| panic!("{key}: {record}"));
    let step = records.iter().find(|r| r["loss"].is_f64()).unwrap();
    assert_eq!(number(step, "perplexity"), number(step, "loss").exp());
    // Two for each weight a token meets and attention over half of 16 positions; backward takes twice as much.
    let block = 2.0 * (16 * 8 * (2 * 2 + 2 * 2) + 3 * 16 * 24) as f64 + 4.0 * 8.0 * 16.0;
    let (head, tokens) = (2.0 * 16.0 * 259.0, 64.0);
    let flops = 3.0 * tokens * (2.0 * block + head);
    let seconds = number(step, "seconds");
    assert!((number(step, "flops_per_second") * seconds / flops - 1.0).abs() < 1e-9, "{step}");
    assert!((number(step, "mfu") * seconds * 2e9 / flops - 1.0).abs() < 1e-9, "two ranks: {step}");

    let rows = succeed(here, &["export", "runs/tiny"]);
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["_step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    let last = &rows[2];
    assert_eq!(number(last, "eval_perplexity"), number(last, "eval_loss").exp());
    assert!(number(last, "_runtime") >= number(&rows[1], "_runtime"), "{last}");
}
