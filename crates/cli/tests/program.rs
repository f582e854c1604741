//! Models as programs: written, validated, and read again by the verbs of `program`.

use crate::common;
use common::{names, planaria, root, succeed, text};
use serde_json::Value;
use std::fs;

const MODEL: &str = "testdata/qwen2-vl/model/tiny_a";

#[test]
fn a_model_becomes_programs_that_are_validated_with_other_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let model = root().join(MODEL);
    for (form, files) in [
        ("onnx", ["decode.onnx", "decode.onnx.data", "forward.onnx", "forward.onnx.data"]),
        ("paddle-program", ["decode.json", "decode.pdiparams", "forward.json", "forward.pdiparams"]),
    ] {
        let target = folder.path().join(form);
        let out = succeed(&["--json", "convert", text(&model), text(&target), "--to", form, "--validate"]);
        let told: Value = serde_json::from_str(&out).unwrap();
        let rows = told["outputs"].as_array().unwrap();
        assert!(told["equal"] == true && rows.iter().all(|row| row["by"] == "planaria"), "{told}");
        let sizes: Vec<&str> = rows.iter().filter_map(|row| row["inputs"].as_str()).collect();
        assert!(sizes.contains(&"random, 1 of 17") && sizes.contains(&"highest, 3 of 4"), "{sizes:?}");
        assert_eq!(names(&target), files);
    }
    let strict = folder.path().join("strict");
    let call = ["convert", text(&model), text(&strict), "--to", "onnx", "--sizes", "1x5", "--validate"];
    let ran = planaria(&[&call[..], &["--tolerance", "0"]].concat());
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.out.contains("outputs differ by more than 0e0"), "{}", ran.out);
}

#[test]
fn programs_with_open_sizes_go_through_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    succeed(&["convert", text(&root().join(MODEL)), text(&at("m")), "--to", "onnx", "--longest", "100"]);
    let decode = at("m/decode.onnx");
    let shown = succeed(&["program", "show", text(&decode), "--summary"]);
    assert!(shown.contains("i64[?,1]") && shown.contains("past.0.key"), "{shown}");
    assert!(!shown.contains("visual"), "{shown}");
    assert!(succeed(&["program", "verify", text(&decode)]).starts_with("sound:"));
    succeed(&["program", "show", text(&decode), "--svg", text(&at("d.svg"))]);
    assert!(fs::read_to_string(at("d.svg")).unwrap().ends_with("</svg>\n"));
    succeed(&["program", "import", text(&decode), text(&at("ours"))]);
    succeed(&["program", "export", text(&at("ours")), text(&at("p.json"))]);
    assert_eq!(
        succeed(&["program", "diff", text(&at("ours")), text(&at("p.json"))]),
        "the programs are equal\n"
    );
    assert!(at("p.pdiparams").exists());
    let ran = planaria(&["program", "diff", text(&at("p.json")), text(&at("m/forward.onnx"))]);
    assert_eq!(ran.code, Some(1));
}
