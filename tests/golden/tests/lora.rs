//! peft's answers on adapters are ours: matching, starts, training, merging, combining; and wrong answers are noticed.

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/lora")
}

#[test]
fn every_case_agrees() {
    let outcome = planaria_golden::run("lora", &testdata()).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed, outcome.skipped), (94, 0));
}

#[test]
fn a_wrong_answer_fails() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| {
        let to = folder.path().join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(testdata().join(from), to).unwrap();
    };
    for file in ["config.json", "model.safetensors"] {
        copy(&format!("models/llama/{file}"), &format!("models/llama/{file}"));
    }
    // The answer for one adapter is expected of another.
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        copy(&format!("adapters/combine-two/{file}"), &format!("adapters/qv/{file}"));
    }
    for case in ["train-qv", "merge-qv"] {
        for file in ["case.json", "tensors.safetensors"] {
            copy(&format!("cases/{case}/{file}"), &format!("cases/{case}/{file}"));
        }
    }
    // A refusal is expected of what is fine, and a module of what has none.
    let rows = concat!(
        r#"{"model": "models/llama", "config": {"target_modules": ["q_proj"]}, "error": "it is fine"}"#,
        "\n",
        r#"{"model": "models/llama", "config": {"target_modules": ["q_proj"]}, "modules": {}, "trainable": 0, "file": {}}"#,
        "\n"
    );
    std::fs::write(folder.path().join("matching.jsonl"), rows).unwrap();
    let outcome = planaria_golden::run("lora", folder.path()).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (0, 4), "{:?}", outcome.failures);
}
