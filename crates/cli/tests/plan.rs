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
fn sizes_beyond_all_machines_are_refused() {
    let huge = "4611686018427387904";
    let set = |key: &str, value: &str| ["--set".to_string(), format!("train.{key}={value}")];
    for value in [huge, "16777216"] {
        let args: Vec<String> = [set("global_batch", value), set("micro_batch", value)].concat();
        let args: Vec<&str> =
            args.iter().map(String::as_str).chain(["--set", "data.sequence=131072"]).collect();
        let refused = plan(&args);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("`train.global_batch` is"), "{said}");
    }
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

#[test]
fn hosts_are_shown_with_the_axes_between_them_and_what_they_send_each_other() {
    let told = |args: &[&str]| -> Value {
        let shown = plan(&[&["--json"], args].concat());
        assert!(shown.status.success(), "{args:?}: {}", String::from_utf8_lossy(&shown.stderr));
        serde_json::from_slice(&shown.stdout).unwrap()
    };
    let value = told(&["--hosts", "a:3,b:3"]);
    assert_eq!(
        value["hosts"],
        serde_json::json!([{"name": "a", "ranks": [0, 1]}, {"name": "b", "ranks": [2, 3]}])
    );
    assert_eq!(value["crossing"], serde_json::json!(["pp"]));
    // Every rank of the first stage sends its activations to the one behind it, and every one of the second sends back.
    let sent = |stage: usize, axis: &str| -> u64 {
        let traffic = value["stages"][stage]["traffic"].as_array().unwrap();
        traffic.iter().filter(|one| one["axis"] == axis).map(|one| one["bytes"].as_u64().unwrap()).sum()
    };
    for (link, stage) in [(0, 0), (1, 1)] {
        assert_eq!(value["links"][link]["bytes"].as_u64().unwrap(), 2 * sent(stage, "pp"));
    }
    // Filled as they come, a group of `tp` lies on both.
    let value = told(&["--hosts", "a:3,b:3", "--together", "1"]);
    assert_eq!(value["crossing"], serde_json::json!(["pp", "tp"]));
    let said = String::from_utf8(plan(&["--hosts", "a:2,b:2"]).stdout).unwrap();
    assert!(
        said.contains(
            "hosts: a has ranks 0 to 1, b has ranks 2 to 3\ninside a host: tp\nbetween hosts: pp\na to b: "
        ),
        "{said}"
    );
    let refused = plan(&["--hosts", "a:2"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("4 ranks are more than the 2 that the hosts take")
    );
}
