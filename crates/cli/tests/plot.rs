//! `planaria plot` and `planaria tokenize` as a script sees them: output, files and exit codes.

use planaria::telemetry::{MetricsWriter, Record, Session};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn planaria(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(folder).env_remove("COLUMNS").args(args).output().unwrap()
}

fn out(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// A run that was killed after step 40 and resumed from its checkpoint of step 30.
fn run(folder: &Path, name: &str) {
    let path = folder.join(name).join("metrics.jsonl");
    let mut writer = MetricsWriter::open(&path, &Session::default()).unwrap();
    for step in 1..=40 {
        writer.write(&Record::new(step).with("loss", 9.0).with("lr", 1e-3)).unwrap();
    }
    writer.checkpoint(30).unwrap();
    let mut writer = MetricsWriter::open(&path, &Session { step: 30, ..Session::default() }).unwrap();
    for step in 31..=50 {
        writer.write(&Record::new(step).with("loss", 3.0)).unwrap();
    }
}

#[test]
fn curves_are_shown_written_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run(here, "one");
    run(here, "two");
    let (code, shown, said) = out(&planaria(here, &["plot", "one", "two"]));
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(shown.contains("↻ restart") && shown.contains(" one\n") && shown.contains(" two\n"), "{shown}");
    assert!(shown.contains("one: step 50, loss 3.000000, average "), "{shown}");

    let (code, printed, _) = out(&planaria(here, &["plot", "one", "--json", "--smooth", "0"]));
    let value: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &value["schema"]), (0, &"planaria/plot/1".into()));
    let points = value["runs"][0]["points"].as_array().unwrap();
    assert_eq!((points.len(), &points[30]), (50, &serde_json::json!([31, 3.0])));
    assert_eq!(value["runs"][0]["marks"][1]["kind"], "restart");

    let (code, printed, _) = out(&planaria(here, &["plot", "one", "-o", "loss.svg"]));
    assert_eq!((code, printed.as_str()), (0, "loss.svg\n"));
    assert!(fs::read_to_string(here.join("loss.svg")).unwrap().starts_with("<svg"));
}

#[test]
fn mistakes_name_the_next_action() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    run(here, "one");
    fs::write(here.join("there.svg"), "").unwrap();
    for (args, parts) in [
        (&["plot", "one", "-m", "los"][..], ["did you mean 'loss'?", "hint: it has loss, lr"]),
        (&["plot", "none"], ["'none' is not the folder of a run", "hint: name the folder of a run"]),
        (&["plot", "one", "-o", "there.svg"], ["'there.svg' already exists", "--yes"]),
        (&["plot", "one", "-o", "loss.png"], ["does not end in .svg", "loss.svg"]),
    ] {
        let (code, _, said) = out(&planaria(here, args));
        assert_eq!(code, 2, "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
}

#[test]
fn text_becomes_a_token_file_or_a_named_line() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::write(here.join("a.txt"), "hello").unwrap();
    fs::write(here.join("b.jsonl"), "{\"body\":\"one\"}\n{\"body\":\"two\"}\n").unwrap();
    let args = ["tokenize", "*.txt", "b.jsonl", "--field", "body", "-o", "all.tokens"];
    let (code, printed, said) = out(&planaria(here, &args));
    assert_eq!((code, printed.as_str()), (0, "14 tokens in 3 documents, 120 B, in all.tokens\n"), "{said}");
    let (code, _, said) = out(&planaria(here, &args));
    assert!(code == 2 && said.contains("--yes"), "{said}");
    let before = fs::read(here.join("b.jsonl")).unwrap();
    for read in ["b.jsonl", "*.jsonl", "**/*.jsonl", "."] {
        let over = ["tokenize", read, "--field", "body", "-o", "./b.jsonl", "--yes"];
        let (code, _, said) = out(&planaria(here, &over));
        assert!(code == 2 && said.contains("is what this command reads"), "{read}: {said}");
    }
    assert_eq!(fs::read(here.join("b.jsonl")).unwrap(), before);
    let (code, _, said) = out(&planaria(here, &["tokenize", "b.jsonl", "-o", "bad.tokens"]));
    assert_eq!(code, 3);
    assert!(said.contains("b.jsonl:1: there is no field 'text'; the line has 'body'"), "{said}");
    assert!(!here.join("bad.tokens").exists());
}
