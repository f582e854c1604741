//! `planaria eval` against the trainer's own evaluation, and `generate` on prompts from files.

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A tiny run that is evaluated on every sample of `held.txt` after its last step.
fn prepare(folder: &Path) {
    let line = |i: usize| format!("{i}: every piece grows back whole, also piece {}.\n", i * i % 89);
    fs::write(folder.join("text.txt"), (0..200).map(line).collect::<String>()).unwrap();
    fs::write(folder.join("held.txt"), (300..340).map(line).collect::<String>()).unwrap();
    let config = r#"
        [model]
        hidden_size = 16
        intermediate_size = 24
        num_hidden_layers = 2
        num_attention_heads = 4
        num_key_value_heads = 2
        [data]
        sequence = 16
        [[data.source]]
        path = "text.txt"
        [[data.eval]]
        path = "held.txt"
        [train]
        steps = 4
        global_batch = 4
        eval_every = 4
        eval_batches = 1000
        [optim]
        lr = 2e-2
        [log]
        tensorboard = false
        "#;
    fs::write(folder.join("tiny.toml"), config).unwrap();
    succeed(folder, &["train", "tiny.toml", "-q"], "");
}

fn run(folder: &Path, args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(folder).args(args);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that reads no input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn succeed(folder: &Path, args: &[&str], input: &str) -> String {
    let (code, out, err) = run(folder, args, input);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

fn eval(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&succeed(folder, &[&["eval", "--json"], args].concat(), "")).unwrap()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn perplexity_is_the_trainers_own_on_every_format_and_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let metrics = fs::read_to_string(here.join("runs/tiny/metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let own = lines.filter_map(|line| line["eval_loss"].as_f64()).next_back().unwrap();

    let stream = ["held.txt", "--packing", "stream", "--sequence", "16"];
    let found = eval(here, &[&["runs/tiny"], &stream[..]].concat());
    assert!((number(&found, "loss") / own - 1.0).abs() < 1e-6, "{found} {own}");
    assert!((number(&found, "perplexity") / own.exp() - 1.0).abs() < 1e-5, "{found}");
    succeed(here, &["convert", "runs/tiny/ckpt/step-00000004", "dcp", "--to", "dcp", "-q"], "");
    for other in [&["dcp"][..], &["runs/tiny", "-n", "2"], &["runs/tiny", "--batch", "1"]] {
        let other = eval(here, &[other, &stream[..]].concat());
        assert!((number(&other, "loss") / own - 1.0).abs() < 1e-5, "{other} {own}");
    }

    // Each document by itself, none of its tokens left out: the bytes of a document are predicted but its first, then its end.
    fs::write(here.join("held.csv"), "id,body\n1,every piece\n2,grows back\n").unwrap();
    let found = eval(here, &["runs/tiny", "held.csv", "--field", "body", "--sequence", "8"]);
    let bytes = "every piece".len() + "grows back".len();
    assert_eq!(number(&found, "tokens"), bytes as f64, "{found}");
    let (code, _, err) = run(here, &["eval", "runs/tiny", "held.txt", "--sequence", "99999999"], "");
    assert!(code == 2 && err.contains("max_position_embeddings"), "{err}");
}

#[test]
fn prompts_come_from_a_file_or_standard_input_with_their_token_ids() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let more = ["--tokens", "6"];
    let say = |text: &str| succeed(here, &[&["generate", "runs/tiny", text], &more[..]].concat(), "every ");
    // Nothing is said about sampling: the likeliest tokens, as `--temperature 0` takes them.
    let greedy = say("every ");
    assert_eq!(
        greedy,
        succeed(here, &["generate", "runs/tiny", "every ", "--tokens", "6", "--temperature", "0"], "")
    );
    assert_eq!(say("-"), greedy, "from standard input");

    fs::write(here.join("p.txt"), "every \n\npiece\n").unwrap();
    let both = succeed(here, &[&["generate", "runs/tiny", "--prompts", "p.txt"], &more[..]].concat(), "");
    assert_eq!(both, format!("{greedy}\n{}", say("piece")));
    let lines = "{\"prompt\":\"every \"}\n{\"prompt\":\"piece\"}\n";
    fs::write(here.join("p.jsonl"), lines).unwrap();
    let told = succeed(
        here,
        &[&["generate", "runs/tiny", "--prompts", "p.jsonl", "--json"], &more[..]].concat(),
        "",
    );
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), 2);
    // Bytes are their own ids.
    let ids = |value: &Value| -> Vec<u8> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u8).collect()
    };
    assert_eq!(ids(&told[0]["prompt_ids"]), b"every ");
    assert_eq!(String::from_utf8_lossy(&ids(&told[0]["ids"])), told[0]["text"].as_str().unwrap());
    assert_eq!((ids(&told[0]["ids"]).len(), &told[0]["finish"]), (6, &"length".into()), "{}", told[0]);

    for (args, words) in [
        (&["every ", "--top-p", "2"][..], "expected a share from 0 to 1"),
        (&["--prompts", "none.txt"], "cannot read 'none.txt'"),
        (&["--prompts", "tiny.toml", "x"], "cannot be used with"),
    ] {
        let (code, _, err) = run(here, &[&["generate", "runs/tiny"], args].concat(), "");
        assert!(code == 2 && err.contains(words), "{args:?}: {err}");
    }
}
