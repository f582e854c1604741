//! Converting: every format there and back, cut and whole, and nothing half done.

use crate::common;
use common::{command, names, peak_of, planaria, root, sparse, succeed, text, top};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

fn same(first: &Path, second: &Path) {
    succeed(&["diff", text(first), text(second)]);
}

#[test]
fn every_format_goes_to_every_other_and_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let first = root().join("testdata/torch-dcp/dtensor2");
    let mut before = first.clone();
    for (number, form) in ["hf", "planaria", "dcp", "paddle-unified", "planaria", "hf"].iter().enumerate() {
        let target = folder.path().join(format!("{number}-{form}"));
        succeed(&["convert", text(&before), text(&target), "--to", form, "--max-shard-size", "600B"]);
        same(&first, &target);
        before = target;
    }
}

#[test]
fn ranks_divide_a_conversion_and_write_the_bytes_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let source = root().join("testdata/torch-dcp/fsdp2_2");
    for form in ["planaria", "dcp"] {
        let [alone, ranks] = ["alone", "ranks"].map(|name| folder.path().join(format!("{form}-{name}")));
        let convert = |to: &Path| {
            ["convert", text(&source), text(to), "--to", form, "--max-shard-size", "1kB"].map(String::from)
        };
        let run = |launch: &[&str], to: &Path| {
            let args = convert(to);
            let words: Vec<&str> = launch.iter().copied().chain(args.iter().map(String::as_str)).collect();
            succeed(&words)
        };
        run(&[], &alone);
        let said = run(&["launch", "-n", "3", "--engine", "processes", "--", "planaria"], &ranks);
        assert_eq!(said.lines().count(), 1, "one rank speaks for all: {said}");
        let files = names(&alone);
        assert!(files.len() > 4 && files == names(&ranks), "{files:?}");
        for name in files {
            assert!(
                fs::read(alone.join(&name)).unwrap() == fs::read(ranks.join(&name)).unwrap(),
                "{form} {name}"
            );
        }
    }
    let args = [
        "launch",
        "-n",
        "2",
        "--engine",
        "processes",
        "--",
        "planaria",
        "convert",
        "nowhere",
        "x",
        "--to",
        "hf",
    ];
    let ran = planaria(&args);
    assert_eq!((ran.code, ran.err.matches("does not exist").count()), (Some(2), 1), "{}", ran.err);
}

#[test]
fn a_training_state_keeps_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let source = root().join("testdata/formats/unified");
    let ours = folder.path().join("ours");
    succeed(&["convert", text(&source), text(&ours), "--to", "planaria"]);
    same(&source, &ours);
    let files = names(&ours);
    for name in ["COMMIT", "manifest.json", "config.json", "optimizer-00001-of-00001.safetensors"] {
        assert!(files.iter().any(|file| file == name), "{name} in {files:?}");
    }
    let back = folder.path().join("back");
    succeed(&["convert", text(&ours), text(&back), "--to", "paddle-unified"]);
    same(&source, &back);
}

#[test]
fn a_hugging_face_folder_holds_the_model_alone_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("hf");
    let ran = planaria(&["convert", "formats/unified", text(&target), "--to", "hf"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.err.starts_with("warning: left out 4 tensors ('master_weights:k' is one"), "{}", ran.err);
    assert_eq!(names(&target), ["config.json", "model.safetensors"]);
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("hf");
    let out = succeed(&["convert", "torch-dcp/single", text(&target), "--to", "hf", "--dry-run"]);
    assert!(out.contains("model.safetensors") && out.contains("would write 7 tensors in 1 file"), "{out}");
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn what_is_there_is_replaced_only_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out");
    let args = ["convert", "torch-dcp/single", text(&target), "--to", "hf"];
    succeed(&args);
    let ran = planaria(&args);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.ends_with("hint: choose another place, or add `--yes` to replace it\n"), "{}", ran.err);
    let object: Value = serde_json::from_str(&succeed(&[
        "convert",
        "torch-dcp/single",
        text(&target),
        "--to",
        "dcp",
        "--yes",
        "--json",
    ]))
    .unwrap();
    assert_eq!((&object["schema"], &object["written"]), (&"planaria/convert/1".into(), &true.into()));
    assert!(names(&target).contains(&".metadata".to_string()));
    assert!(!names(&target).contains(&"model.safetensors".to_string()), "the old one is gone");
}

#[test]
fn a_mapping_that_does_not_hold_is_underlined() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.aoa");
    fs::write(&file, "no.such.tensor -> x\n").unwrap();
    let target = folder.path().join("out");
    let ran =
        planaria(&["convert", "torch-dcp/single", text(&target), "--to", "hf", "--mapping", text(&file)]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("no.such.tensor") && ran.err.contains("^^^"), "{}", ran.err);
    assert!(ran.err.contains(&format!("the mapping '{}' does not hold", text(&file))), "{}", ran.err);
    assert!(!target.exists());
}

#[test]
fn the_json_of_an_aoa_configuration_is_a_mapping() {
    let folder = tempfile::tempdir().unwrap();
    let data = root().join("testdata/paddle-checkpoints");
    let (source, json) = (data.join("hf_qwen2_tiny"), data.join("hf_qwen2_tiny/aoa_load.json"));
    let back = folder.path().join("back.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let list = folder.path().join("list.json");
    fs::write(&list, config["aoa_statements"].to_string()).unwrap();
    (config["aoa_config_reverse"], config["enable_traceback"]) = (true.into(), false.into());
    fs::write(&back, config.to_string()).unwrap();
    for (parts, mapping) in [("1", &json), ("2", &json), ("1", &list)] {
        let there = folder.path().join("there");
        let last = ["--to", "hf", "--parts", parts, "--yes", "--mapping"];
        succeed(&[&["convert", text(&source), text(&there)], &last[..], &[text(mapping)]].concat());
        same(&data.join(format!("hf_qwen2_tiny.model_tp{parts}.expected.safetensors")), &there);
        let again = folder.path().join("again");
        succeed(&[&["convert", text(&there), text(&again)], &last[..], &[text(&back)]].concat());
        same(&source, &again);
    }
}

#[test]
fn an_aoa_configuration_is_read_leniently_and_named_when_it_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.json");
    let target = folder.path().join("out");
    let convert = |content: &str| {
        fs::write(&file, content).unwrap();
        let to = ["--to", "hf", "--dry-run", "--mapping", text(&file)];
        planaria(&[&["convert", "torch-dcp/single", text(&target)], &to[..]].concat())
    };
    let statement = "no.$N.such -> x.$N";
    let ran = convert(&format!("[\"{statement}\"]"));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("warning: ") && ran.err.contains(statement), "{}", ran.err);
    let ran = convert(statement);
    assert_eq!(ran.code, Some(2), "our own text is strict: {}", ran.err);
    for wrong in ["{\"statements\": []}", "[1]", "{", "[\"no.such.tensor -> x\"]", "[\"a -> -> b\"]"] {
        let ran = convert(wrong);
        assert_eq!(ran.code, Some(2), "{wrong}: {}", ran.err);
        assert!(
            ran.err.starts_with(&format!("error: the mapping '{}' ", text(&file))),
            "{wrong}: {}",
            ran.err
        );
    }
}

#[test]
fn the_configuration_tells_the_new_type_and_small_files_go_along() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let data = root().join("testdata/formats/unified");
    for name in names(&data) {
        fs::copy(data.join(&name), source.join(&name)).unwrap();
    }
    fs::write(source.join("config.json"), r#"{"model_type": "tiny", "torch_dtype": "float16"}"#).unwrap();
    let along = ["chat_template.jinja", "modeling_tiny.py", "qwen.tiktoken", "spiece.model"];
    let alone = ["rng_state_0.pth", "scheduler.pt", "trainer_state.json", "training_args.bin"];
    along.iter().chain(&alone).for_each(|name| fs::write(source.join(name), name).unwrap());
    for form in ["hf", "planaria"] {
        let target = folder.path().join(form);
        succeed(&["convert", text(&source), text(&target), "--to", form, "--dtype", "bf16"]);
        let config: Value = serde_json::from_slice(&fs::read(target.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["torch_dtype"], "bfloat16");
        let files = names(&target);
        assert!(
            along.iter().all(|name| fs::read(target.join(name)).unwrap() == name.as_bytes()),
            "{files:?}"
        );
        assert!(alone.iter().all(|name| !target.join(name).exists()), "{files:?}");
        succeed(&["verify", text(&target)]);
    }
    // Beside a single file there may be anything.
    let target = folder.path().join("one");
    let file = source.join("model-00001-of-00002.safetensors");
    succeed(&["convert", text(&file), text(&target), "--to", "hf"]);
    assert_eq!(names(&target), ["chat_template.jinja", "config.json", "model.safetensors"]);
}

#[test]
fn reshard_cuts_as_a_mesh_holds() {
    let folder = tempfile::tempdir().unwrap();
    let source = root().join("testdata/paddle-checkpoints/hf_qwen2_tiny");
    for form in ["planaria", "dcp"] {
        let target = folder.path().join(form);
        let args = ["reshard", text(&source), text(&target), "--mesh", "dp=2 tp=2", "--to", form];
        let rules = ["--layout", "*.q_proj.weight=tp:S0", "--layout", "*.o_proj.weight=dp:S0 tp:S1"];
        succeed(&[&args[..], &rules[..]].concat());
        same(&source, &target);
        let tree = succeed(&["inspect", text(&target)]);
        let line = |name: &str| tree.lines().find(|line| line.contains(name)).unwrap().to_string();
        assert!(line("o_proj").contains("2x2 tiles, 4 files"), "{tree}");
        assert!(!line("gate_proj").contains("tiles"), "{tree}");
    }
    let ran = planaria(&["reshard", text(&source), "x", "--mesh", "tp=2", "--layout", "nothing=tp:S0"]);
    assert_eq!((ran.code, ran.err.contains("no tensor is cut by 'nothing'")), (Some(2), true), "{}", ran.err);
    let ran = planaria(&["reshard", text(&source), "x", "--mesh", "tp=2", "--layout", "*norm.weight=tp:S1"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
}

#[test]
fn damage_in_our_own_folders_is_found_before_anything_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    succeed(&["convert", "torch-dcp/single", text(&ours), "--to", "planaria"]);
    let file = ours.join("model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let target = folder.path().join("hf");
    let ran = planaria(&["convert", text(&ours), text(&target), "--to", "hf"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(ran.err.contains("is damaged: block 0 of 'model-00001-of-00001.safetensors'"), "{}", ran.err);
    assert_eq!(names(folder.path()).iter().filter(|name| !name.starts_with("ours/")).count(), 0);
}

#[test]
fn a_killed_conversion_leaves_no_checkpoint_and_an_interrupted_one_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("big.safetensors");
    sparse(&source, 16, 4096, 4096);
    let target = folder.path().join("out");
    for (signal, code) in [("KILL", None), ("INT", Some(130)), ("TERM", Some(143))] {
        let args = ["convert", text(&source), text(&target), "--to", "hf", "--max-shard-size", "64MB"];
        let parts =
            || top(folder.path()).into_iter().filter(|name| name.ends_with(".planaria")).collect::<Vec<_>>();
        let before = parts();
        let mut child = command(&args).spawn().unwrap();
        let start = Instant::now();
        while parts().iter().all(|part| before.contains(part)) && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sent = std::process::Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status()
            .unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        assert!(!target.exists(), "{signal}: the target must not appear");
        // What a killed run leaves, the next one takes away; an interrupted one leaves nothing.
        assert_eq!(parts().len(), usize::from(signal == "KILL"), "{signal}");
    }
    let small = folder.path().join("small.safetensors");
    sparse(&small, 1, 4, 4);
    succeed(&["convert", text(&small), text(&target), "--to", "hf"]);
    assert_eq!(top(folder.path()), ["big.safetensors", "out", "small.safetensors"]);
}

#[test]
fn memory_stays_below_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("big.safetensors");
    sparse(&source, 2, 8192, 4096);
    fs::write(folder.path().join("m.aoa"), "t0^T -> a\nt1 -> b\n").unwrap();
    let target = folder.path().join("out");
    let mapping = folder.path().join("m.aoa");
    let args = [
        "convert",
        text(&source),
        text(&target),
        "--to",
        "hf",
        "--dtype",
        "bf16",
        "--mapping",
        text(&mapping),
        "--max-memory",
        "64MB",
    ];
    // Beside the bound: the program itself, and what the allocator keeps.
    let peak = peak_of(&args);
    assert!(peak < 64_000 + 48_000, "{peak} kB at the peak, of 256 MB read");
}

#[test]
fn a_mapping_carries_the_state_of_its_tensors_and_names_what_it_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let (map, target) = (folder.path().join("m.aoa"), folder.path().join("out"));
    fs::write(&map, "q^T -> turned\nk -> _\n_ -> fresh\n").unwrap();
    let ran = planaria(&[
        "convert",
        "formats/unified",
        text(&target),
        "--to",
        "paddle-unified",
        "--map",
        text(&map),
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("left out 1 tensor ('fresh': the mapping declares it"), "{}", ran.err);
    let shown = succeed(&["inspect", text(&target)]);
    for name in ["turned/moment1_0", "turned/beta1_pow_acc_0", "turned  "] {
        assert!(shown.contains(name), "{name} in {shown}");
    }
    let refused = planaria(&["convert", "formats/unified", "x", "--to", "dcp", "--betas", "0.9"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("0.9,0.999"), "{}", refused.err);
}

/// Writes a file below a folder.
fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_a_conversion_leaves_out_stands_in_its_last_line() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    // sentence-transformers: parts of the model in folders of their own.
    let (model, dense) = (here.join("st/model.safetensors"), here.join("st/2_Dense/model.safetensors"));
    put(here, "st/modules.json", br#"[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]"#);
    put(here, "st/1_Pooling/config.json", b"{}");
    put(here, "st/2_Dense/config.json", b"{}");
    put(here, "st/onnx/model.onnx", b"x");
    put(here, "st/optimizer.pt", b"x");
    sparse(&model, 1, 4, 4);
    sparse(&dense, 1, 2, 2);
    let ran = planaria(&["convert", text(&here.join("st")), text(&here.join("hf")), "--to", "hf"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(ran.err.lines().last().unwrap(), "warning: left out 2 files ('onnx/' is one)");
    let kept = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "model.safetensors",
        "modules.json",
    ];
    assert_eq!(names(&here.join("hf")), kept);
    assert_eq!(fs::read(here.join("hf/2_Dense/model.safetensors")).unwrap(), fs::read(&dense).unwrap());
    let ours = here.join("ours");
    let json = succeed(&["convert", text(&here.join("st")), text(&ours), "--to", "planaria", "--json"]);
    let told: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(told["left_out_files"], json!(["1_Pooling/", "2_Dense/", "onnx/", "optimizer.pt"]));
    // Megatron keeps what is not sharded beside a distributed checkpoint.
    for file in [".metadata", "__0_0.distcp"] {
        put(
            here,
            &format!("megatron/{file}"),
            &fs::read(root().join("testdata/torch-dcp/single").join(file)).unwrap(),
        );
    }
    put(here, "megatron/common.pt", b"common");
    succeed(&["convert", text(&here.join("megatron")), text(&here.join("m")), "--to", "planaria"]);
    succeed(&["convert", text(&here.join("m")), text(&here.join("back")), "--to", "dcp"]);
    assert_eq!(fs::read(here.join("back/common.pt")).unwrap(), b"common");
    let ran = planaria(&["convert", text(&here.join("m")), text(&here.join("m-hf")), "--to", "hf"]);
    assert!(ran.err.ends_with("left out 1 file ('common.pt')\n"), "{}", ran.err);
    // A numpy array in a file of torch is a value, which a folder of weights has no place for.
    let ran = planaria(&["convert", "formats/numpy.pt", text(&here.join("n")), "--to", "hf"]);
    assert!(ran.err.ends_with("left out 1 value ('array')\n"), "{}", ran.err);
    let ran = planaria(&["convert", "formats/numpy.pt", text(&here.join("n-dcp")), "--to", "dcp"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

#[test]
fn adapters_and_parts_of_pipelines_keep_the_names_that_their_libraries_look_for() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let cases = [
        ("adapter_model", "adapter_config.json", r#"{"peft_type": "LORA"}"#),
        ("diffusion_pytorch_model", "config.json", r#"{"_diffusers_version": "0.30.0"}"#),
    ];
    for (stem, config, json) in cases {
        let name = |what: &str| here.join(format!("{stem}{what}"));
        put(&name(""), config, json.as_bytes());
        sparse(&name("").join(format!("{stem}.safetensors")), 1, 4, 4);
        succeed(&["convert", text(&name("")), text(&name("-hf")), "--to", "hf"]);
        succeed(&["convert", text(&name("")), text(&name("-ours")), "--to", "planaria"]);
        succeed(&["convert", text(&name("-ours")), text(&name("-back")), "--to", "hf"]);
        for there in [name("-hf"), name("-back")] {
            assert!(there.join(format!("{stem}.safetensors")).exists(), "{}", there.display());
        }
    }
}

#[test]
fn damage_in_a_torch_archive_is_named_and_exits_3() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("nested.pt");
    let mut bytes = fs::read(root().join("testdata/formats/nested.pt")).unwrap();
    // In the first float of the bf16 tensor or its neighbour: any byte of a data member will do.
    let at = bytes.windows(6).position(|window| window == b"data/0").unwrap() + 200;
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let ran = planaria(&["verify", text(&file)]);
    assert_eq!(ran.code, Some(3), "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(" damaged: member ") && ran.out.contains("CRC-32"), "{}", ran.out);
    let ran = planaria(&["convert", text(&file), text(&folder.path().join("out")), "--to", "hf"]);
    assert_eq!((ran.code, top(folder.path())), (Some(3), vec!["nested.pt".to_string()]), "{}", ran.err);
}

#[test]
fn a_project_around_a_checkpoint_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.safetensors");
    sparse(&source, 1, 4, 4);
    let target = folder.path().join("project");
    fs::create_dir_all(target.join("src")).unwrap();
    fs::write(target.join("src/main.py"), "x").unwrap();
    fs::copy(&source, target.join("model.safetensors")).unwrap();
    let ran = planaria(&["convert", text(&source), text(&target), "--to", "hf", "--yes"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("holds more than a checkpoint: 'src/main.py'"), "{}", ran.err);
    assert_eq!(fs::read_to_string(target.join("src/main.py")).unwrap(), "x");
}
