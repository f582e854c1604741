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

/// Folders in which results are prepared beside their places.
fn prepared(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".planaria")).collect()
}

/// Starts a merge and sends a signal once `ready` says so; its exit code.
fn cut_off(args: &[&str], signal: &str, ready: impl Fn() -> bool) -> Option<i32> {
    let mut child = command(args).spawn().unwrap();
    let start = Instant::now();
    while !ready() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn an_interrupted_merge_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 8, 256);
    let (recipe, target) = (recipe(folder.path(), "ties", ""), folder.path().join("out"));
    let args = ["merge", text(&recipe), text(&target), "--inputs", "tensors", "--max-shard-size", "4MB"];
    for (signal, code) in [("INT", Some(130)), ("TERM", Some(143))] {
        assert_eq!(cut_off(&args, signal, || !prepared(folder.path()).is_empty()), code, "{signal}");
        assert!(!target.exists() && prepared(folder.path()).is_empty(), "{signal}");
    }
}

#[test]
fn a_killed_merge_is_continued_and_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    three(at, 6, 64);
    let recipe = recipe(at, "ties", "");
    let args = |target: &Path, to: &str| {
        // So little memory that one thread works: parts are finished one after the other.
        let fixed = ["--inputs", "tensors", "--max-shard-size", "530kB", "--memory", "36MB", "--to", to];
        let all = [&["merge", text(&recipe), text(target)][..], &fixed].concat();
        all.into_iter().map(str::to_string).collect::<Vec<String>>()
    };
    let finished = || {
        let journal =
            |folder: &String| fs::read_to_string(at.join(folder).join("parts-0")).unwrap_or_default();
        prepared(at).iter().map(journal).map(|text| text.lines().count()).max().unwrap_or(0)
    };
    for to in ["hf", "planaria", "dcp"] {
        let (target, whole) = (at.join(to), at.join(format!("{to}-whole")));
        let list = args(&target, to);
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        assert_eq!(cut_off(&list, "KILL", || finished() >= 2), None);
        assert!(!target.exists() && prepared(at).len() == 1, "{to}");
        // What was finished and is not what it was is made again.
        let left = at.join(&prepared(at)[0]).join("result");
        let files = names(&left).into_iter().filter(|name| name.contains("00001"));
        for name in files.filter(|_| to == "hf") {
            let mut bytes = fs::read(left.join(&name)).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(left.join(&name), bytes).unwrap();
        }
        let ran = planaria(&list);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(ran.err.contains("continued: "), "{to}: {}", ran.err);
        assert!(prepared(at).is_empty());
        let list = args(&whole, to);
        let ran = planaria(&list.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(ran.code == Some(0) && !ran.err.contains("continued"), "{}", ran.err);
        assert_eq!(names(&target), names(&whole), "{to}");
        // They may say when they were made.
        let told_apart = ["manifest.json", "COMMIT", ".metadata"];
        for name in names(&target).iter().filter(|name| !told_apart.contains(&name.as_str())) {
            assert!(
                fs::read(target.join(name)).unwrap() == fs::read(whole.join(name)).unwrap(),
                "{to}: {name}"
            );
        }
        succeed(&["diff", text(&target), text(&whole)]);
        succeed(&["verify", text(&target)]);
    }
}

#[test]
fn a_merge_of_other_inputs_does_not_continue_a_killed_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    three(at, 6, 256);
    let (recipe, target) = (recipe(at, "ties", ""), at.join("out"));
    let fixed = ["--inputs", "tensors", "--max-shard-size", "2100kB", "--memory", "36MB"];
    let args = [&["merge", text(&recipe), text(&target)][..], &fixed].concat();
    let begun = || {
        prepared(at)
            .iter()
            .any(|name| fs::metadata(at.join(name).join("parts-0")).is_ok_and(|about| about.len() > 0))
    };
    assert_eq!(cut_off(&args, "KILL", begun), None);
    model(&at.join("a.safetensors"), 6, 256, 77);
    let ran = planaria(&args);
    assert!(ran.code == Some(0) && !ran.err.contains("continued"), "{}", ran.err);
    let fresh = at.join("fresh");
    succeed(&["merge", text(&recipe), text(&fresh), "--inputs", "tensors"]);
    succeed(&["diff", text(&target), text(&fresh)]);
    assert!(prepared(at).is_empty());
}

#[test]
fn ranks_divide_a_merge_and_write_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // Two files of two parts: boxes of one tensor go to several ranks.
    three(at, 2, 2304);
    let recipe = recipe(at, "task_arithmetic", "");
    for to in ["hf", "planaria", "dcp"] {
        let (one, many) = (at.join(format!("{to}-1")), at.join(format!("{to}-3")));
        let fixed = ["--inputs", "tensors", "--max-shard-size", "20MB", "--to", to];
        succeed(&[&["merge", text(&recipe), text(&one)][..], &fixed].concat());
        let launch = ["launch", "-n", "3", "--engine", "processes", "--", "planaria", "merge", text(&recipe)];
        let ran = planaria(&[&launch[..], &[text(&many)], &fixed].concat());
        assert_eq!(ran.code, Some(0), "{to}: {}", ran.err);
        assert_eq!(ran.out.matches("wrote 2 tensors").count(), 1, "one rank reports: {}", ran.out);
        assert_eq!(names(&one), names(&many), "{to}");
        for name in
            names(&one).iter().filter(|name| name.contains("safetensors") || name.ends_with(".distcp"))
        {
            assert!(fs::read(one.join(name)).unwrap() == fs::read(many.join(name)).unwrap(), "{to}: {name}");
        }
        succeed(&["verify", text(&many)]);
        for folder in [one, many] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
    let wrong = at.join("wrong.yml");
    fs::write(&wrong, "merge_method: tie\nmodels: []\n").unwrap();
    let launch =
        ["launch", "-n", "2", "--engine", "processes", "--", "planaria", "merge", text(&wrong), "out"];
    let ran = planaria(&launch);
    assert_eq!((ran.code, ran.err.matches("no such method").count()), (Some(2), 1), "{}", ran.err);
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
    for (line, what) in [
        ("read:", "the inputs come first"),
        ("base.safetensors (hugging-face): 2 tensors, 32.8 kB", "an input"),
        ("    a.safetensors  ", "a file of an input"),
        ("compute:", "then what is made of them"),
        (": weight 0.5, 0.5, 1: 2 tensors, 32.8 kB", "a method with its parameters"),
        ("write:", "then the result"),
        ("  model.safetensors  ", "a file of the result"),
    ] {
        assert!(ran.out.lines().any(|found| found.contains(line)), "{what}: {line:?} in\n{}", ran.out);
    }
    assert!(!target.exists());
    let strict = planaria(&["merge", text(&recipe), text(&target), "--inputs", "tensors", "--strict"]);
    assert_eq!(strict.code, Some(2), "{}", strict.err);
    let over = planaria(&["merge", text(&recipe), text(folder.path()), "--inputs", "tensors", "--yes"]);
    assert_eq!(over.code, Some(2));
    assert!(names(folder.path()).len() == 4, "{:?}", names(folder.path()));
}

#[test]
fn a_plan_names_the_sources_and_parameters_of_every_tensor() {
    let folder = tempfile::tempdir().unwrap();
    three(folder.path(), 2, 2);
    let recipe = recipe(folder.path(), "linear", "parameters: {weight: 1}");
    let ran = planaria(&["merge", text(&recipe), "--inputs", "tensors", "--plan"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ran.out);
    assert!(lines[1].starts_with("t1 bf16 [2,4096]: linear of "), "{}", ran.out);
    assert!(lines[1].ends_with("base.safetensors: weight 0.5, 0.5, 1"), "{}", ran.out);
    assert_eq!(names(folder.path()).len(), 4, "nothing was written");
    assert_eq!(planaria(&["merge", text(&recipe)]).code, Some(2), "a result needs a place");
}

/// The hashes of the inputs that a result names, in its card and below its recipe.
fn hashes(folder: &Path) -> Vec<String> {
    let found = |file: &str| -> Vec<String> {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let after = |line: &str| Some(line.split_once(", hash ")?.1.to_string());
        text.lines().filter_map(after).collect()
    };
    let (card, recipe) = (found("README.md"), found("mergekit_config.yml"));
    assert_eq!(card, recipe);
    assert!(card.len() == 3 && card.iter().all(|hash| hash.len() == 16), "{card:?}");
    card
}

#[test]
fn a_result_names_hashes_of_all_that_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    three(at, 2, 40);
    let merged = |name: &str, method: &str, more: &[&str]| {
        let (recipe, target) = (recipe(at, method, "parameters: {weight: 1}"), at.join(name));
        succeed(&[&["merge", text(&recipe), text(&target), "--inputs", "tensors"], more].concat());
        hashes(&target)
    };
    let first = merged("first", "linear", &[]);
    assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2], "{first:?}");
    // However often and in which order tensors are read, and whether they are.
    assert_eq!(merged("ties", "ties", &["--memory", "40MB"]), first);
    assert_eq!(merged("part", "linear", &["--drop", "t1"]), first);
    // The same tensors in other files are the same.
    succeed(&[
        "convert",
        text(&at.join("a.safetensors")),
        text(&at.join("cut")),
        "--to",
        "hf",
        "--max-shard-size",
        "1B",
    ]);
    fs::remove_file(at.join("a.safetensors")).unwrap();
    fs::rename(at.join("cut"), at.join("a.safetensors")).unwrap();
    assert_eq!(merged("cut-up", "linear", &[]), first);
    // One bit is another model.
    let mut bytes = fs::read(at.join("b.safetensors")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(at.join("b.safetensors"), bytes).unwrap();
    let other = merged("bit", "linear", &[]);
    assert_eq!(other.iter().zip(&first).filter(|(one, other)| one != other).count(), 1);
}

/// A file of f32 tensors, each counted up from a number of its own.
fn counted(path: &Path, tensors: &[(&str, &[usize], f32)]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, first) in tensors {
        let begin = data.len();
        let values = (0..shape.iter().product::<usize>()).map(|i| first + i as f32 / 8.0);
        data.extend(values.flat_map(f32::to_le_bytes));
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert((*name).to_string(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length[..], &header, &data].concat()).unwrap();
}

/// The values of a tensor in the one file of a folder.
fn values(folder: &Path, name: &str) -> Vec<f32> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let at = |i: usize| 8 + length + header[name]["data_offsets"][i].as_u64().unwrap() as usize;
    let numbers = bytes[at(0)..at(1)].chunks_exact(4);
    numbers.map(|number| f32::from_le_bytes(number.try_into().unwrap())).collect()
}

#[test]
fn an_adapter_of_a_tied_head_leaves_the_embedding_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (base, adapter, out) =
        (folder.path().join("base"), folder.path().join("adapter"), folder.path().join("out"));
    [&base, &adapter].into_iter().for_each(|path| fs::create_dir(path).unwrap());
    let config = serde_json::json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4, "intermediate_size": 2,
        "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 6, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8, "tie_word_embeddings": true, "dtype": "float32"
    });
    fs::write(base.join("config.json"), config.to_string()).unwrap();
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let attention = ["q", "k", "v", "o"].map(|name| layer(&format!("self_attn.{name}_proj")));
    let norms =
        [layer("input_layernorm"), layer("post_attention_layernorm"), "model.norm.weight".to_string()];
    let inner = [layer("mlp.gate_proj"), layer("mlp.up_proj")];
    let down = layer("mlp.down_proj");
    let mut tensors: Vec<(&str, &[usize], f32)> =
        vec![("model.embed_tokens.weight", &[6, 4], 3.0), (&down, &[4, 2], 1.0)];
    tensors.extend(attention.iter().map(|name| (name.as_str(), &[4usize, 4][..], 0.5)));
    tensors.extend(norms.iter().map(|name| (name.as_str(), &[4usize][..], 1.0)));
    tensors.extend(inner.iter().map(|name| (name.as_str(), &[2usize, 4][..], 0.25)));
    counted(&base.join("model.safetensors"), &tensors);
    let about =
        serde_json::json!({"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["lm_head"]});
    fs::write(adapter.join("adapter_config.json"), about.to_string()).unwrap();
    let factors: [(&str, &[usize], f32); 2] = [
        ("base_model.model.lm_head.lora_A.weight", &[1, 4], 1.0),
        ("base_model.model.lm_head.lora_B.weight", &[6, 1], 2.0),
    ];
    counted(&adapter.join("adapter_model.safetensors"), &factors);

    succeed(&["lora", "merge", text(&base), text(&adapter), text(&out)]);
    let embedding = values(&base, "model.embed_tokens.weight");
    assert_eq!(values(&out, "model.embed_tokens.weight"), embedding);
    let expected = embedding.iter().enumerate().map(|(i, base)| {
        let (row, column) = ((i / 4) as f32, (i % 4) as f32);
        base + 2.0 * (2.0 + row / 8.0) * (1.0 + column / 8.0)
    });
    assert_eq!(values(&out, "lm_head.weight"), expected.collect::<Vec<f32>>());
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["tie_word_embeddings"], false);
}
