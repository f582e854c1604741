//! Models that see, by the command: pictures in a conversation, adapters that learned from pictures, and both kinds of names.

use crate::common::{command, planaria, root, succeed, text};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

const MODEL: &str = "qwen2-vl/model/tiny_a";
const PICTURE: &str = "qwen2-vl/model/tiny_a/images/a.png";

/// What `generate` makes of a picture.
fn seen(more: &[&str]) -> Value {
    let args = ["--image", PICTURE, "Describe the image.", "--tokens", "6", "--json"];
    let out = succeed(&[&["generate"], more, &args].concat());
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_conversation_shows_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("said.jsonl");
    let mut chat = command(&["chat", MODEL, "--image", PICTURE, "--tokens", "6", "--json"]);
    chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = chat.spawn().unwrap();
    let lines = format!(
        "Describe the image.\n/save {}\n/retry\n/undo\n/image README.md\n/image {PICTURE}\nDescribe the image.\nAnd now?\n/quit\n",
        saved.display()
    );
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = chat.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("README.md': this is not a valid PNG"), "{told}");
    let out = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), 4, "{out} {told}");
    let ids = seen(&[MODEL])["ids"].clone();
    // First, again, and once more after a picture was refused; the last question is another one.
    assert!(answers[..3].iter().all(|answer| answer["ids"] == ids), "{out}");
    assert_eq!(answers[3]["question"], "And now?");
    // What was said trains a model wherever it lies.
    let said: Value = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    let part = &said["messages"][0]["content"][0];
    assert!(std::path::Path::new(part["image"].as_str().unwrap()).is_absolute(), "{said}");
    let config = text(&root().join("examples/vision/sft.toml")).to_string();
    let set = [
        format!("data.source.path={}", saved.display()),
        format!("log.dir={}", folder.path().display()),
        "train.steps=1".to_string(),
    ];
    let set: Vec<&str> = set.iter().flat_map(|one| ["--set", one]).collect();
    succeed(&[&["train", &config, "-q"], &set[..]].concat());
}

#[test]
fn an_adapter_that_learned_from_pictures_is_merged() {
    let folder = tempfile::tempdir().unwrap();
    let [run, merged, today] =
        ["seeing", "merged", "today"].map(|name| text(&folder.path().join(name)).to_string());
    let config = text(&root().join("examples/vision/sft.toml")).to_string();
    let log = format!("log.dir={}", folder.path().display());
    // The tower, its merger and the text model.
    let modules = r#"lora.target_modules=["attn.qkv", "mlp.2", "fc1", "q_proj", "down_proj"]"#;
    succeed(&[
        "train",
        &config,
        "-q",
        "--set",
        &log,
        "--set",
        "lora.r=4",
        "--set",
        modules,
        "--set",
        "train.steps=6",
    ]);
    succeed(&["lora", "merge", MODEL, &run, &merged]);
    let adapted = seen(&[MODEL, "--lora", &run]);
    assert_ne!(adapted["ids"], seen(&[MODEL])["ids"]);
    assert_eq!(seen(&[&merged])["ids"], adapted["ids"]);
    succeed(&["convert", &merged, &today, "--to", "hf", "--names", "today"]);
    assert_eq!(seen(&[&today])["ids"], adapted["ids"]);
}

#[test]
fn both_kinds_of_names_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let [today, back] = ["today", "back"].map(|name| text(&folder.path().join(name)).to_string());
    succeed(&["convert", MODEL, &today, "--to", "hf", "--names", "today"]);
    let header = std::fs::read(format!("{today}/model.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&header).to_string();
    for name in ["model.language_model.layers.0.mlp.up_proj.weight", "model.visual.merger.mlp.2.bias"] {
        assert!(header.contains(&format!("\"{name}\"")), "{name}");
    }
    let config = |folder: &str| -> Value {
        let path = root().join("testdata").join(folder).join("config.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let nested = config(&today);
    assert_eq!(nested["text_config"]["rope_parameters"]["mrope_section"], serde_json::json!([2, 3, 3]));
    assert_eq!(
        (&nested["text_config"]["model_type"], &nested["hidden_size"]),
        (&"qwen2_vl_text".into(), &Value::Null)
    );
    assert_eq!(seen(&[&today]), seen(&[MODEL]));
    succeed(&["convert", &today, &back, "--to", "hf", "--names", "published"]);
    succeed(&["diff", MODEL, &back]);
    let (was, is) = (config(MODEL), config(&back));
    for key in ["hidden_size", "rope_theta", "tie_word_embeddings", "image_token_id", "num_key_value_heads"] {
        assert_eq!(was[key], is[key], "{key}");
    }
    // Asked for what is there, nothing changes.
    let same = text(&folder.path().join("same")).to_string();
    succeed(&["convert", &today, &same, "--to", "hf", "--names", "today"]);
    succeed(&["diff", &today, &same]);
    for (source, to, words) in
        [("lora/models/qwen2", "hf", "one kind of name"), (MODEL, "dcp", "`--names` is for `--to hf`")]
    {
        let ran =
            planaria(&["convert", source, text(&folder.path().join("no")), "--to", to, "--names", "today"]);
        assert!(ran.code == Some(2) && ran.err.contains(words), "{}", ran.err);
    }
}
