//! Weights that others wrote, or that were converted for them: training starts from them, `generate` speaks from them.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A tiny run of four steps that keeps averages, with what starts from it beside it.
fn prepare(folder: &Path) {
    let line = |i: usize| format!("{i}: every piece grows back whole, also piece {}.\n", i * i % 89);
    fs::write(folder.join("text.txt"), (0..200).map(line).collect::<String>()).unwrap();
    let config = r#"
        [model]
        hidden_size = 16
        intermediate_size = 24
        num_hidden_layers = 2
        num_attention_heads = 4
        num_key_value_heads = 2
        max_position_embeddings = 64
        tie_word_embeddings = true
        [data]
        sequence = 16
        [[data.source]]
        path = "text.txt"
        [train]
        steps = 4
        global_batch = 4
        [optim]
        lr = 2e-2
        ema = 0.5
        [log]
        tensorboard = false
        "#;
    fs::write(folder.join("tiny.toml"), config).unwrap();
    let tuned = "[[data.source]]\npath=\"text.txt\"\n[data]\nsequence=16\n[train]\nsteps=1\nglobal_batch=4\n\
        [log]\ntensorboard=false\n";
    fs::write(folder.join("tuned.toml"), tuned).unwrap();
    succeed(folder, &["train", "tiny.toml", "-q"]);
}

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

/// The loss of the first step from these weights.
fn first_loss(folder: &Path, init: &str, name: &str) -> f64 {
    let (init, named) = (format!("model.init={init}"), format!("name={name}"));
    succeed(folder, &["train", "tuned.toml", "-q", "--set", &init, "--set", &named]);
    let text = fs::read_to_string(folder.join(format!("runs/{name}/metrics.jsonl"))).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line["loss"].as_f64()).next().unwrap()
}

fn say<'a>(folder: &Path, from: &'a str, more: &[&'a str]) -> String {
    succeed(folder, &[&["generate", from, "every ", "--tokens", "12", "--temperature", "0"], more].concat())
}

const CHECKPOINT: &str = "runs/tiny/ckpt/step-00000004";

#[test]
fn weights_of_every_format_are_a_start_and_a_voice() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    for (target, more) in [
        ("single", &["--to", "hf"][..]),
        ("sharded", &["--to", "hf", "--max-shard-size", "10kB"]),
        ("dcp", &["--to", "dcp"]),
        ("unified", &["--to", "paddle-unified"]),
    ] {
        succeed(here, &[&["convert", CHECKPOINT, target, "-q"], more].concat());
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            fs::copy(here.join(CHECKPOINT).join(file), here.join(target).join(file)).unwrap();
        }
        assert!(!here.join(target).join("COMMIT").exists());
    }
    assert!(here.join("sharded/model.safetensors.index.json").exists());
    let (loss, text) = (first_loss(here, CHECKPOINT, "from"), say(here, CHECKPOINT, &[]));
    assert!(loss < 5.0, "it has learnt something: {loss}");
    for form in
        ["single", "sharded", "dcp", "unified", "runs/tiny", "runs/tiny/ckpt", "single/model.safetensors"]
    {
        let name = form.replace('/', "-");
        assert_eq!(first_loss(here, form, &format!("of-{name}")), loss, "{form}");
        assert_eq!(say(here, form, &[]), text, "{form}");
    }
    assert_eq!(say(here, "sharded", &["-n", "2"]), text);
    let dtype: Value =
        serde_json::from_str(&fs::read_to_string(here.join(CHECKPOINT).join("config.json")).unwrap())
            .unwrap();
    assert_eq!((&dtype["dtype"], &dtype["torch_dtype"]), (&"float32".into(), &"float32".into()));
}

#[test]
fn the_running_average_is_served_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let trained = succeed(here, &["convert", CHECKPOINT, "plain", "--to", "hf"]);
    let averaged = succeed(here, &["convert", CHECKPOINT, "averaged", "--to", "hf", "--ema"]);
    assert_eq!(trained.replace("plain", ""), averaged.replace("averaged", ""), "as many tensors and bytes");
    let (code, _, _) = run(here, &["diff", "plain", "averaged"]);
    assert_eq!(code, 1, "other values");
    assert_eq!(say(here, "averaged", &[]), say(here, "runs/tiny", &["--ema"]));
    let (code, out, err) = run(here, &["generate", "plain", "every ", "--ema"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(
        err.contains("'plain'") && err.contains("no running average") && err.contains("optim.ema"),
        "{err}"
    );
    let (code, _, err) = run(here, &["convert", "plain", "none", "--to", "hf", "--ema"]);
    assert!(code == 2 && err.contains("'plain' has no running average"), "{err}");

    // The command that writes averages alone gives the same weights, and says which there are.
    assert_eq!(succeed(here, &["average", "runs/tiny", "alone"]), "alone\n");
    succeed(here, &["diff", "averaged", "alone"]);
    let (code, _, err) = run(here, &["average", "runs/tiny", "alone"]);
    assert!(code == 2 && err.contains("already exists"), "{code} {err}");
    let (code, _, err) = run(here, &["average", "runs/tiny", "other", "--number", "1"]);
    assert!(code == 2 && err.contains("below 1"), "{code} {err}");
    assert!(!here.join("other").exists());
}

#[test]
fn what_cannot_be_said_is_refused_before_anything_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    let long = "x".repeat(64);
    fs::create_dir(here.join("empty")).unwrap();
    for (args, words) in [
        (&["runs/tiny", "a", "-n", "3"][..], &["4 heads", "tp=3", "[1, 2, 4]"][..]),
        (&["runs/tiny", &long], &["64 tokens", "max_position_embeddings"]),
        (&["nowhere", "a"], &["nowhere", "no such"]),
        (&["empty", "a"], &["'empty'", "config.json"]),
    ] {
        let (code, out, err) = run(here, &[&["generate"], args].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(words.iter().all(|word| err.contains(word)), "{args:?}: {err}");
    }
    let (code, _, err) = run(here, &["train", "tuned.toml", "--set", "model.init=empty"]);
    assert!(code == 2 && err.contains("'empty'"), "{err}");
    let (code, out, err) = run(here, &["generate", "runs/tiny", &long[..60], "--temperature", "0"]);
    assert!(code == 0 && err.contains("only 4 more tokens fit"), "{out} {err}");
}

#[test]
fn a_generation_config_ends_texts_and_goes_along() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    prepare(here);
    succeed(here, &["convert", CHECKPOINT, "hf", "--to", "hf"]);
    let text = say(here, "hf", &[]);
    let third = text.as_bytes()[8];
    let generation = serde_json::json!({
        "bos_token_id": 256, "eos_token_id": [257, third], "do_sample": false, "top_k": 20, "max_new_tokens": 5,
    });
    fs::write(here.join("hf/generation_config.json"), generation.to_string()).unwrap();
    let stopped = say(here, "hf", &[]);
    assert!(stopped.len() <= 9 && text.starts_with(stopped.trim_end()), "{stopped:?} of {text:?}");
    let defaults = succeed(here, &["generate", "hf", "every "]);
    assert!(defaults.trim_end() == stopped.trim_end(), "greedy unless said otherwise: {defaults:?}");

    first_loss(here, "hf", "tuned");
    let kept = here.join("runs/tuned/ckpt/step-00000001/generation_config.json");
    let kept: Value = serde_json::from_str(&fs::read_to_string(kept).unwrap()).unwrap();
    assert_eq!((&kept["eos_token_id"], &kept["top_k"]), (&serde_json::json!([257, third]), &20.into()));
    assert_eq!(kept["pad_token_id"], 258, "what it did not say comes from the tokenizer");
}
