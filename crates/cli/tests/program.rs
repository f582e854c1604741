//! Models as programs: written, validated, and read again by the verbs of `program`.

use crate::common;
use common::{names, planaria, root, succeed, text};
use serde_json::Value;
use std::fs;
use std::io::Read;

const MODEL: &str = "testdata/qwen2-vl/model/tiny_a";

#[test]
fn a_model_becomes_programs_that_are_validated_with_other_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let model = root().join(MODEL);
    for (form, endings) in [("onnx", ["onnx", "onnx.data"]), ("paddle-program", ["json", "pdiparams"])] {
        let target = folder.path().join(form);
        let out = succeed(&["--json", "convert", text(&model), text(&target), "--to", form, "--validate"]);
        let told: Value = serde_json::from_str(&out).unwrap();
        let rows = told["outputs"].as_array().unwrap();
        assert!(told["equal"] == true && rows.iter().all(|row| row["by"] == "planaria"), "{told}");
        let sizes: Vec<&str> = rows.iter().filter_map(|row| row["inputs"].as_str()).collect();
        assert!(sizes.contains(&"random, 1 of 17") && sizes.contains(&"highest, 3 of 4"), "{sizes:?}");
        let programs = ["decode", "forward", "prompt", "vision"];
        let files = programs.iter().flat_map(|name| endings.map(|ending| format!("{name}.{ending}")));
        assert_eq!(names(&target), files.collect::<Vec<_>>());
        for name in programs {
            assert!(rows.iter().any(|row| row["program"] == name), "{name} is not compared");
        }
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
    // A file of somebody else stays, whatever its name.
    fs::create_dir(at("theirs")).unwrap();
    fs::write(at("theirs/manifest.json"), "mine").unwrap();
    let ran = planaria(&["program", "import", text(&decode), text(&at("theirs"))]);
    assert!(ran.code != Some(0) && ran.err.contains("manifest.json' is there already"), "{}", ran.err);
    assert_eq!(fs::read_to_string(at("theirs/manifest.json")).unwrap(), "mine");
    assert_eq!(fs::read_dir(at("theirs")).unwrap().count(), 1);
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

/// A packed file of the programs of Paddle in the test data.
fn unpacked(name: &str, to: &std::path::Path) {
    let packed = root().join("testdata/paddle-programs").join(format!("{name}.gz"));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(packed).unwrap()).read_to_end(&mut bytes).unwrap();
    fs::write(to, bytes).unwrap();
}

/// Its writer gave the batch of each input a name of its own.
#[test]
fn a_model_whose_equal_sizes_have_several_names_runs_on_the_inputs_given() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    unpacked("onnx/encoder.onnx", &at("encoder.onnx"));
    unpacked("encoder.io.safetensors", &at("io.safetensors"));
    let (model, io) = (at("encoder.onnx"), at("io.safetensors"));
    let call = ["program", "run", text(&model), "--inputs", text(&io), "--expect", text(&io)];
    let out = succeed(&[&call[..], &["--tolerance", "1e-4"]].concat());
    assert!(out.contains("near") && !out.contains("differs"), "{out}");
    assert!(succeed(&["program", "verify", text(&model)]).starts_with("sound:"));
    assert!(succeed(&["program", "show", text(&model), "--summary"]).contains("[?,?]"));

    let other = root().join("testdata/paddle-programs/mlp.io.safetensors");
    let ran = planaria(&["program", "run", text(&model), "--inputs", text(&other)]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("mask"), "{}", ran.err);
}
