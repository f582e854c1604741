//! Every parser replays its corpus and a fixed number of mutations of it.

use planaria_fuzz::{TARGETS, attack, corpus};

fn survives(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("the target is listed");
    assert!(!corpus(target).is_empty(), "{name} has no corpus");
    if let Err(crash) = attack(target, target.runs, 1) {
        panic!("input {} of {name} panics: {:?}", crash.run, String::from_utf8_lossy(&crash.bytes));
    }
}

#[test]
fn aoa_survives() {
    survives("aoa");
}

#[test]
fn adapter_survives() {
    survives("adapter");
}

#[test]
fn archive_survives() {
    survives("archive");
}

#[test]
fn dcp_survives() {
    survives("dcp");
}

#[test]
fn index_survives() {
    survives("index");
}

#[test]
fn manifest_survives() {
    survives("manifest");
}

#[test]
fn paddle_survives() {
    survives("paddle");
}

#[test]
fn parameters_survives() {
    survives("parameters");
}

#[test]
fn peer_survives() {
    survives("peer");
}

#[test]
fn pickle_survives() {
    survives("pickle");
}

#[test]
fn program_survives() {
    survives("program");
}

#[test]
fn recipe_survives() {
    survives("recipe");
}

#[test]
fn safetensors_survives() {
    survives("safetensors");
}

#[test]
fn settings_survives() {
    survives("settings");
}

#[test]
fn text_survives() {
    survives("text");
}

#[test]
fn costs_survives() {
    survives("costs");
}

#[test]
fn documents_survives() {
    survives("documents");
}

#[test]
fn model_survives() {
    survives("model");
}

#[test]
fn onnx_survives() {
    survives("onnx");
}

#[test]
fn patch_survives() {
    survives("patch");
}

#[test]
fn picture_survives() {
    survives("picture");
}

#[test]
fn preprocessor_survives() {
    survives("preprocessor");
}

#[test]
fn row_survives() {
    survives("row");
}

#[test]
fn run_survives() {
    survives("run");
}

#[test]
fn sentences_survives() {
    survives("sentences");
}

#[test]
fn url_survives() {
    survives("url");
}

#[test]
fn template_survives() {
    survives("template");
}

#[test]
fn tokenizer_survives() {
    survives("tokenizer");
}

#[test]
fn tokenizer_config_survives() {
    survives("tokenizer_config");
}

#[test]
fn tokens_survives() {
    survives("tokens");
}

#[test]
fn answer_survives() {
    survives("answer");
}

#[test]
fn arguments_survives() {
    survives("arguments");
}

#[test]
fn bucket_survives() {
    survives("bucket");
}

#[test]
fn converted_survives() {
    survives("converted");
}

#[test]
fn distcp_survives() {
    survives("distcp");
}

#[test]
fn kernels_survives() {
    survives("kernels");
}

#[test]
fn mapping_survives() {
    survives("mapping");
}

#[test]
fn marks_survives() {
    survives("marks");
}

#[test]
fn merged_survives() {
    survives("merged");
}

#[test]
fn names_survives() {
    survives("names");
}

#[test]
fn pairs_survives() {
    survives("pairs");
}

#[test]
fn places_survives() {
    survives("places");
}

#[test]
fn products_survives() {
    survives("products");
}

#[test]
fn prompts_survives() {
    survives("prompts");
}

#[test]
fn request_survives() {
    survives("request");
}

#[test]
fn saved_survives() {
    survives("saved");
}

#[test]
fn schedule_survives() {
    survives("schedule");
}

#[test]
fn sharded_survives() {
    survives("sharded");
}

#[test]
fn unified_survives() {
    survives("unified");
}

#[test]
fn every_target_is_replayed() {
    let text = include_str!("replay.rs");
    for target in TARGETS {
        assert!(text.contains(&format!("survives(\"{}\")", target.name)), "{} is not replayed", target.name);
    }
}
