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

#[test]
fn patterns_of_a_row_keep_their_order_and_unknown_words_are_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str| {
        let to = folder.path().join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(testdata().join(name), to).unwrap();
    };
    copy("models/llama/config.json");
    for adapter in ["combine-one", "combine-two"] {
        ["adapter_config.json", "adapter_model.safetensors"]
            .iter()
            .for_each(|file| copy(&format!("adapters/{adapter}/{file}")));
    }
    // The first pattern counts, though the second comes first in the alphabet.
    let module = "model.layers.0.self_attn.q_proj";
    let rows = format!(
        r#"{{"model": "models/llama", "config": {{"target_modules": ["{module}"], "rank_pattern": {{"q_proj": 2, ".*": 4}}}}, "modules": {{"{module}": {{"r": 2, "alpha": 8, "scaling": 4.0}}}}, "trainable": 64, "file": {{"base_model.model.{module}.lora_A.weight": [2, 16], "base_model.model.{module}.lora_B.weight": [16, 2]}}}}"#
    );
    std::fs::write(folder.path().join("matching.jsonl"), rows).unwrap();
    for (name, field, word) in
        [("majority", "majority_sign_method", "mode"), ("way", "combination_type", "median")]
    {
        let case = folder.path().join("cases").join(name);
        std::fs::create_dir_all(&case).unwrap();
        let about = format!(
            r#"{{"kind": "combine", "adapters": ["adapters/combine-one", "adapters/combine-two"], "weights": [1, 1], "{field}": "{word}", "error": "no such word"}}"#
        );
        std::fs::write(case.join("case.json"), about).unwrap();
    }
    let outcome = planaria_golden::run("lora", folder.path()).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (3, 0), "{:?}", outcome.failures);
}
