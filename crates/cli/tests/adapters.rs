//! Adapters as files: merged and taken out again bit for bit, and from one layout to the other.

use crate::common::{command, planaria, root, succeed, text};
use std::fs;
use std::path::Path;

/// Models with adapters that touch them in every way: factors, lengths, biases, whole modules, tables, a tied head.
const PAIRS: [(&str, &str); 8] = [
    ("llama", "qv"),
    ("llama16", "dora"),
    ("qwen2", "dora-bias"),
    ("llama", "embedding"),
    ("qwen2", "lora-bias"),
    ("llama", "save-modules"),
    ("qwen2-tied", "tied"),
    ("gpt2", "conv1d"),
];

/// Merges with what is needed to take the adapter out again: the result and what was kept.
fn merged(at: &Path, model: &str, adapter: &str) -> [String; 2] {
    let [out, kept] = ["merged", "kept"].map(|name| text(&at.join(name)).to_string());
    let adapter = format!("lora/adapters/{adapter}");
    succeed(&["lora", "merge", &format!("lora/models/{model}"), &adapter, &out, "--originals", &kept]);
    [out, kept]
}

#[test]
fn an_adapter_is_taken_out_again_bit_for_bit() {
    for (model, adapter) in PAIRS {
        let folder = tempfile::tempdir().unwrap();
        let [out, kept] = merged(folder.path(), model, adapter);
        let model = format!("lora/models/{model}");
        assert_eq!(planaria(&["diff", &model, &out]).code, Some(1), "{adapter} changes nothing");
        let back = folder.path().join("back");
        succeed(&["lora", "unmerge", &out, &kept, text(&back)]);
        succeed(&["diff", &model, text(&back)]);
        let config = |folder: &Path| fs::read(folder.join("config.json")).unwrap();
        assert_eq!(config(&back), config(&root().join("testdata").join(&model)), "{adapter}");
        // What merging left as it was is not kept a second time.
        let size = |folder: &str| fs::metadata(Path::new(folder).join("model.safetensors")).unwrap().len();
        assert!(size(&kept) < size(&out), "{adapter}: {} of {}", size(&kept), size(&out));
    }
}

/// A model of a few steps and an adapter on it, in a folder.
fn trained(folder: &Path) {
    let line = |i: usize| format!("{i}: every piece grows back.\n");
    fs::write(folder.join("text.txt"), (0..80).map(line).collect::<String>()).unwrap();
    let rest =
        "[data]\nsequence = 16\n[[data.source]]\npath = \"text.txt\"\n[train]\nsteps = 2\nglobal_batch = 4\n";
    let model =
        "[model]\nhidden_size = 16\nintermediate_size = 24\nnum_hidden_layers = 2\nnum_attention_heads = 2\n";
    fs::write(folder.join("base.toml"), format!("name = \"base\"\n{model}{rest}")).unwrap();
    let lora = "[lora]\nr = 2\ntarget_modules = \"all-linear\"\n";
    let tuned = format!("name = \"tuned\"\nmodel.init = \"runs/base\"\n{rest}{lora}");
    fs::write(folder.join("tuned.toml"), tuned).unwrap();
}

#[test]
fn an_adapter_goes_on_only_with_the_model_it_was_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let train = |args: &[&str]| {
        let args = [&["train", "-q"], args].concat();
        let done = command(&args).current_dir(folder.path()).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(train(&["base.toml"]).0, Some(0));
    assert_eq!(train(&["base.toml", "--set", "name=other", "--set", "train.seed=7"]).0, Some(0));
    assert_eq!(train(&["tuned.toml"]), (Some(0), String::new()));
    let on = |init: &str| format!("model.init={init}");
    let (code, said) = train(&["tuned.toml", "--set", "train.steps=3", "--set", &on("runs/other")]);
    assert_eq!(code, Some(2), "{said}");
    let expected = "the weights of 'runs/other' are not those that the adapter was trained on";
    assert!(said.contains(expected) && said.contains("lora.adapter"), "{said}");
    // The same weights elsewhere, in another form and on another mesh, are the same model.
    let convert =
        command(&["convert", "runs/base", "copied", "--to", "hf"]).current_dir(folder.path()).output();
    assert!(convert.unwrap().status.success());
    for (steps, mesh) in [("3", "tp=2"), ("4", "dp=2"), ("5", "")] {
        let steps = format!("train.steps={steps}");
        let mut args = vec!["tuned.toml", "--set", &steps, "--set", "model.init=copied"];
        let mesh = format!("mesh={mesh}");
        if mesh != "mesh=" {
            args.extend(["-n", "2", "--set", &mesh, "--set", "train.zero=3"]);
        }
        assert_eq!(train(&args).0, Some(0), "{mesh}: {}", train(&args).1);
    }
}

#[test]
fn a_name_that_no_module_has_is_told() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path());
    let train = |args: &[&str]| {
        let done = command(&[&["train"], args].concat()).current_dir(folder.path()).output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(train(&["base.toml"]).0, Some(0));
    let targets = "lora.target_modules=[\"q_proj\", \"w_proj\"]";
    let (code, said) = train(&["tuned.toml", "--set", targets]);
    assert_eq!(code, Some(0), "{said}");
    let told: Vec<&str> = said.lines().filter(|line| line.contains("no module of the model has")).collect();
    assert!(told.len() == 1 && told[0].contains("'w_proj'"), "{said}");
}

#[test]
fn what_was_changed_since_is_not_taken_for_a_merged_model() {
    let folder = tempfile::tempdir().unwrap();
    let [out, kept] = merged(folder.path(), "llama", "qv");
    let back = folder.path().join("back");
    let refused = |merged: &str, kept: &str| {
        let ran = planaria(&["lora", "unmerge", merged, kept, text(&back)]);
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        assert!(!back.exists());
        ran.err
    };
    assert!(refused("lora/models/llama", &kept).contains("is not what it was when the adapter was merged"));
    assert!(refused(&out, &out).contains("`lora merge --originals` keeps them"));
    let tied = refused("lora/models/qwen2-tied", &kept);
    assert!(tied.contains("is missing") || tied.contains("was not there"), "{tied}");
    // One bit, in the merged model and in what was kept.
    for broken in [&out, &kept] {
        let file = Path::new(broken).join("model.safetensors");
        let whole = fs::read(&file).unwrap();
        let mut bytes = whole.clone();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(refused(&out, &kept).contains("is not what it was"));
        fs::write(&file, whole).unwrap();
    }
    succeed(&["lora", "unmerge", &out, &kept, text(&back)]);
    // A place that is taken is found before anything is kept.
    let second = folder.path().join("second");
    let args = ["lora", "merge", "lora/models/llama", "lora/adapters/qv", &out, "--originals", text(&second)];
    assert_eq!(planaria(&args).code, Some(2));
    assert!(!second.exists());
}

#[test]
fn adapters_go_to_paddle_and_back_and_add_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_string();
    for (model, adapter) in [("llama", "qv"), ("llama", "all-linear-rslora"), ("llama", "paddle")] {
        let [paddle, peft, one, two] =
            ["paddle", "peft", "one", "two"].map(|name| at(&format!("{name}-{adapter}")));
        let (model, adapter) = (format!("lora/models/{model}"), format!("lora/adapters/{adapter}"));
        succeed(&["lora", "convert", &adapter, &paddle, "--layout", "paddle"]);
        assert!(Path::new(&paddle).join("peft_model.safetensors.index.json").is_file());
        succeed(&["lora", "convert", &paddle, &peft, "--layout", "peft"]);
        succeed(&["lora", "merge", &model, &adapter, &one]);
        succeed(&["lora", "merge", &model, &peft, &two]);
        succeed(&["diff", &one, &two]);
    }
    // Paddle's own file comes back with the bytes it had.
    succeed(&["diff", "lora/adapters/paddle", &at("paddle-paddle")]);
    for (adapter, said) in [("dora", "DoRA"), ("patterns", "of its own"), ("embedding", "token vectors")] {
        let args = ["lora", "convert", &format!("lora/adapters/{adapter}"), &at("no"), "--layout", "paddle"];
        let ran = planaria(&args);
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        assert!(ran.err.contains(said) && !Path::new(&at("no")).exists(), "{}", ran.err);
    }
}
