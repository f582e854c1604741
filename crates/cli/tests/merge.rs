//! Merging: whole or not at all, the same bytes whoever reads and however many work, bounded memory.

use crate::common;
use common::{command, names, peak_of, planaria, succeed, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file of random-looking tensors of this many rows of 4096 values of bf16.
fn model(path: &Path, tensors: usize, rows: usize, salt: u32) {
    let each = rows * 4096 * 2;
    let entries: Vec<String> = (0..tensors)
        .map(|i| {
            let (start, end) = (i * each, (i + 1) * each);
            format!(r#""t{i}":{{"dtype":"BF16","shape":[{rows},4096],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let mut state = salt.wrapping_mul(2_654_435_761) | 1;
    bytes.extend((0..tensors * each / 2).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        // Between 1 and 2 in magnitude, either sign.
        ((state >> 16 & 0x807f | 0x3f80) as u16).to_le_bytes()
    }));
    fs::write(path, bytes).unwrap();
}

fn recipe(folder: &Path, method: &str, extra: &str) -> PathBuf {
    let path = folder.join("recipe.yml");
    let model = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let parameters = "parameters: {weight: 0.5, density: 0.4}";
    let text = format!(
        "merge_method: {method}\nbase_model: {}\nmodels:\n- model: {}\n  {parameters}\n- model: {}\n  {parameters}\n{extra}\n",
        model("base.safetensors"),
        model("a.safetensors"),
        model("b.safetensors")
    );
    fs::write(&path, text).unwrap();
    path
}

fn three(folder: &Path, tensors: usize, rows: usize) {
    for (salt, name) in ["base.safetensors", "a.safetensors", "b.safetensors"].iter().enumerate() {
        model(&folder.join(name), tensors, rows, salt as u32 + 1);
    }
}

#[test]
fn random_methods_give_the_same_bytes_on_any_threads_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 2, 96);
    for method in ["dare_ties", "della", "ties", "model_stock"] {
        let recipe = recipe(folder.path(), method, "");
        let mut first: Option<Vec<u8>> = None;
        for (number, (cores, memory)) in
            [("0", "512MiB"), ("0-15", "64MB"), ("0-15", "1GB")].iter().enumerate()
        {
            let target = folder.path().join(format!("{method}-{number}"));
            let args = ["merge", text(&recipe), text(&target), "--inputs", "tensors", "--memory", memory];
            let mut pinned = std::process::Command::new("taskset");
            let ran = pinned.args(["-c", cores, env!("CARGO_BIN_EXE_planaria")]).args(args).output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            let bytes = fs::read(target.join("model.safetensors")).unwrap();
            assert!(first.get_or_insert_with(|| bytes.clone()) == &bytes, "{method}, {cores}, {memory}");
        }
    }
}

#[test]
fn a_killed_merge_leaves_no_checkpoint_and_an_interrupted_one_nothing() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 8, 256);
    let (recipe, target) = (recipe(folder.path(), "ties", ""), folder.path().join("out"));
    let args = ["merge", text(&recipe), text(&target), "--inputs", "tensors", "--max-shard-size", "4MB"];
    let parts = || {
        let entries = fs::read_dir(folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".planaria")).collect::<Vec<_>>()
    };
    for (signal, code) in [("KILL", None), ("INT", Some(130)), ("TERM", Some(143))] {
        let before = parts();
        let mut child = command(&args).spawn().unwrap();
        let start = Instant::now();
        while parts().iter().all(|part| before.contains(part)) && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        assert!(!target.exists(), "{signal}: the target must not appear");
        assert_eq!(parts().len(), usize::from(signal == "KILL"), "{signal}");
    }
    succeed(&args);
    assert!(parts().is_empty() && target.join("model.safetensors.index.json").is_file());
}

#[test]
fn memory_stays_below_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 1, 2048);
    let (recipe, target) = (recipe(folder.path(), "ties", ""), folder.path().join("out"));
    let args = ["merge", text(&recipe), text(&target), "--inputs", "tensors", "--memory", "64MB"];
    let peak = peak_of(&args);
    assert!(peak < 64_000 + 48_000, "{peak} kB at the peak, of 50 MB read, 200 MB as numbers");
}

#[test]
fn every_format_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 3, 2);
    let linear = recipe(folder.path(), "task_arithmetic", "");
    let whole = folder.path().join("hf");
    succeed(&["merge", text(&linear), text(&whole), "--inputs", "tensors"]);
    for form in ["dcp", "paddle-unified", "planaria"] {
        let target = folder.path().join(form);
        succeed(&["merge", text(&linear), text(&target), "--inputs", "tensors", "--to", form]);
        succeed(&["diff", text(&whole), text(&target)]);
        // What was written is an input like any other: half of it and half of itself in another format.
        let text_of = |path: &Path| path.to_str().unwrap().to_string();
        let again = folder.path().join("again.yml");
        let half = "parameters: {weight: 0.5}";
        let lines = format!(
            "merge_method: linear\nmodels:\n- model: {}\n  {half}\n- model: {}\n  {half}\n",
            text_of(&whole),
            text_of(&target)
        );
        fs::write(&again, lines).unwrap();
        let same = folder.path().join(format!("{form}-again"));
        succeed(&["merge", text(&again), text(&same), "--inputs", "tensors"]);
        succeed(&["diff", text(&whole), text(&same)]);
    }
}

#[test]
fn tensors_are_left_out_by_pattern_and_the_size_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 3, 2);
    let recipe = recipe(folder.path(), "ties", "remove_keys: ['t2']");
    let target = folder.path().join("out");
    let ran = planaria(&["merge", text(&recipe), text(&target), "--inputs", "tensors", "--drop", "t?1"]);
    assert_eq!(ran.code, Some(2), "a pattern that matches nothing: {}", ran.err);
    assert!(ran.err.contains("'t?1' matches no tensor") && !target.exists(), "{}", ran.err);
    let all = ["merge", text(&recipe), text(&target), "--inputs", "tensors", "--max-shard-size", "1B"];
    let ran = planaria(&all);
    assert!(ran.err.contains("left out as asked: 't2', 16.4 kB"), "{}", ran.err);
    let index = fs::read(target.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], 2 * 2 * 4096 * 2);
    assert_eq!(index["weight_map"].as_object().unwrap().len(), 2);
}

#[test]
fn a_dry_run_says_what_it_would_do_and_inputs_are_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 2, 2);
    let recipe = recipe(folder.path(), "linear", "parameters: {weight: 1, norlamize: 2}");
    let target = folder.path().join("out");
    let ran = planaria(&["merge", text(&recipe), text(&target), "--inputs", "tensors", "--dry-run"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("no parameter 'norlamize'") && ran.err.contains("'normalize'?"), "{}", ran.err);
    assert!(ran.out.contains("would read 98.3 kB, write 2 tensors in "), "{}", ran.out);
    assert!(!target.exists());
    let strict = planaria(&["merge", text(&recipe), text(&target), "--inputs", "tensors", "--strict"]);
    assert_eq!(strict.code, Some(2), "{}", strict.err);
    let over = planaria(&["merge", text(&recipe), text(folder.path()), "--inputs", "tensors", "--yes"]);
    assert_eq!(over.code, Some(2));
    assert!(names(folder.path()).len() == 4, "{:?}", names(folder.path()));
}
