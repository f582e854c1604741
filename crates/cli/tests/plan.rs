//! `planaria plan` as a script sees it.

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

const CONFIG: &str = "
mesh = \"pp=2 tp=2\"
[model]
hidden_size = 64
intermediate_size = 96
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = true
[data]
sequence = 32
[[data.source]]
path = \"there-is-no-such-file.txt\"
[train]
global_batch = 16
micro_batch = 2
";

fn plan(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.toml"), CONFIG).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(folder.path()).args(["plan", "small.toml"]).args(args).output().unwrap()
}

#[test]
fn a_plan_is_shown_and_counted_without_data() {
    let shown = plan(&[]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    for part in
        ["4 ranks as pp=2 dp=1 ep=1 tp=2", "pipeline: 1f1b", "memory at most", "sent on tp: activations"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let json = plan(&["--json", "-n", "8", "--set", "train.zero=1"]);
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&value["schema"], &value["ranks"]), (&"planaria/plan/1".into(), &8.into()));
    assert_eq!(value["stages"].as_array().unwrap().len(), 2);
    assert!(value["stages"][0]["memory"]["total"].as_u64().unwrap() > 0);
}

#[test]
fn limits_and_mistakes_have_their_exit_codes() {
    let code = |args: &[&str]| plan(args).status.code().unwrap();
    assert_eq!(code(&["--memory", "10GB"]), 0);
    assert_eq!(code(&["--memory", "10kB"]), 1);
    assert_eq!(code(&["-n", "3"]), 2);
    assert_eq!(code(&["--set", "train.micro_batch=5"]), 2);
    let said = String::from_utf8(plan(&["--set", "train.micro_batch=5"]).stderr).unwrap();
    assert!(said.contains("nearest that fit: global_batch 15 or 20"), "{said}");
}
