//! The public recipes for merging are answered as expected, and wrong answers are noticed.

use std::path::{Path, PathBuf};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/merge")
}

#[test]
fn every_recipe_agrees() {
    let outcome = planaria_golden::run("merge", &testdata()).unwrap();
    assert_eq!(outcome.failed, 0, "{:#?}", outcome.failures);
    assert_eq!((outcome.passed, outcome.alone), (65, 2));
}

#[test]
fn a_wrong_value_and_an_accepted_mistake_fail() {
    let folder = tempfile::tempdir().unwrap();
    let case = |name: &str| folder.path().join("cases").join(name);
    let copy = |from: &str, to: PathBuf| {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(testdata().join(from), to).unwrap();
    };
    for model in ["tok-a", "tok-b"] {
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            let inner = format!("models/{model}/{file}");
            copy(&inner, folder.path().join(&inner));
        }
    }
    // The weights of one input are expected of a merge of two.
    let recipe = "merge_method: linear\nmodels:\n- {model: models/tok-a, parameters: {weight: 1}}\n- {model: models/tok-b, parameters: {weight: 1}}\n";
    std::fs::create_dir_all(case("wrong").join("expected")).unwrap();
    std::fs::write(case("wrong").join("recipe.yml"), recipe).unwrap();
    let about =
        r#"{"tool": "merge", "status": "follow", "tolerance": {"against": "expected", "rel_max": 1e-6}}"#;
    std::fs::write(case("wrong").join("case.json"), about).unwrap();
    copy("models/tok-a/model.safetensors", case("wrong").join("expected/model.safetensors"));
    std::fs::create_dir_all(case("accepted")).unwrap();
    std::fs::write(case("accepted").join("recipe.yml"), recipe).unwrap();
    std::fs::write(
        case("accepted").join("case.json"),
        r#"{"tool": "merge", "status": "error", "why": "it is fine"}"#,
    )
    .unwrap();
    // What is refused only when the values are seen is a refusal too.
    std::fs::create_dir_all(case("overflows")).unwrap();
    let recipe =
        format!("{recipe}parameters: {{normalize: false}}\n").replace("weight: 1", "weight: 1.0e+300");
    std::fs::write(case("overflows").join("recipe.yml"), recipe).unwrap();
    std::fs::write(
        case("overflows").join("case.json"),
        r#"{"tool": "merge", "status": "error", "why": "the result is not finite"}"#,
    )
    .unwrap();
    let outcome = planaria_golden::run("merge", folder.path()).unwrap();
    assert_eq!((outcome.passed, outcome.failed), (1, 2), "{:?}", outcome.failures);
}
