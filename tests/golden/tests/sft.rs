//! The public cases of supervised fine-tuning pass, and wrong ones are noticed.

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/sft")
}

#[test]
fn every_public_case_passes() {
    let outcome = planaria_golden::run("sft", &testdata()).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!(outcome.passed, 236 + 47 + 1);
}

#[test]
fn wrong_answers_are_noticed() {
    let messages = r#"[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]"#;
    let render = |text: &str, ids: &str| {
        format!(
            r#"{{"id": "x", "fn": "render", "in": {{"tokenizer": "qwen2", "template": "chatml", "messages": {messages},
               "tools": null, "kwargs": {{}}, "add_generation_prompt": false}}, "out": {{"text": "{text}", "input_ids": {ids}}}}}"#
        )
        .replace('\n', " ")
    };
    let right = "<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\nHi<|im_end|>\\n";
    let ids = "[377,84,82,258,198,363,75,78,378,198,377,316,345,198,39,72,378,198]";
    let cases = [
        render(right, ids),
        render("Hello", ids),
        render(right, "[377]"),
        r#"{"id": "y", "fn": "pack", "in": {"lengths": [3, 2], "capacity": 5, "strategy": "best-fit", "overflow": "split"}, "out": {"bins": [[[0, 0, 3]], [[1, 0, 2]]]}}"#.into(),
        r#"{"id": "z", "fn": "truncate", "in": {"input_ids": [1, 2], "labels": [1, -100], "max_length": 2, "mode": "drop"}, "out": {"error": {"kind": "no-trained-token"}}}"#.into(),
        r#"{"id": "z", "fn": "unknown", "in": {}, "out": {}}"#.into(),
    ];
    let path = std::env::temp_dir().join(format!("planaria-sft-{}.jsonl", std::process::id()));
    std::fs::write(&path, cases.join("\n")).unwrap();
    let outcome = planaria_golden::run("sft", &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (2, 4), "{:#?}", outcome.failures);
}
