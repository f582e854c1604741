//! Looking at checkpoints: inspect and diff, their texts, JSON and exit codes.

use crate::common;
use common::{command, names, planaria, root, succeed, text};
use serde_json::Value;
use std::io::Read;
use std::process::Stdio;

#[test]
fn inspect_shows_a_tree_with_shapes_sizes_and_cuts() {
    let text = succeed(&["inspect", "torch-dcp/fsdp2_2", "--filter", "model.*"]);
    assert_eq!(
        text,
        "\
torch-dcp: 5 tensors, 140 parameters, 560 B in 2 files

model
  ├ 0
  │ ├ bias    f32[10]     40 B  2 tiles, 2 files
  │ └ weight  f32[10,6]  240 B  2x1 tiles, 2 files
  ├ 1
  │ ├ bias    f32[10]     40 B  2 tiles, 2 files
  │ └ weight  f32[10]     40 B  2 tiles, 2 files
  └ 2.weight  f32[5,10]  200 B  2x1 tiles, 2 files
"
    );
}

#[test]
fn equal_layers_share_their_lines_unless_all_are_asked_for() {
    let folded = succeed(&["inspect", "paddle-checkpoints/hf_qwen2_tiny"]);
    assert!(folded.contains("layers.0..1 "), "{folded}");
    let all = succeed(&["inspect", "paddle-checkpoints/hf_qwen2_tiny", "--all"]);
    assert!(!all.contains("0..1") && all.lines().count() > folded.lines().count());
}

#[test]
fn parts_of_a_training_state_have_headings() {
    let text = succeed(&["inspect", "formats/unified"]);
    for heading in ["model:", "master_weights:", "optimizer:"] {
        assert!(text.lines().any(|line| line.starts_with(heading)), "{heading} in {text}");
    }
}

#[test]
fn inspect_json_is_one_object_with_a_schema() {
    let object: Value = serde_json::from_str(&succeed(&["inspect", "torch-dcp/single", "--json"])).unwrap();
    assert_eq!(object["schema"], "planaria/inspect/1");
    assert_eq!((&object["format"], &object["total"]["tensors"]), (&"torch-dcp".into(), &7.into()));
    let a = object["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == "a").unwrap();
    assert_eq!(
        (&a["dtype"], &a["bytes"], &a["tiles"][0]["region"]),
        (&"f32".into(), &192.into(), &"[0..8, 0..6]".into())
    );
    assert_eq!(a["shape"], serde_json::json!([8, 6]));
}

#[test]
fn stats_are_those_of_the_values() {
    let text = succeed(&["inspect", "torch-dcp/single", "--stats", "--filter", "strided"]);
    assert!(text.contains("0 .. 23, mean 11.5, std 6.922"), "{text}");
    let json = succeed(&["inspect", "torch-dcp/single", "--stats", "--json", "--filter", "i"]);
    let object: Value = serde_json::from_str(&json).unwrap();
    let found = object["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == "i").unwrap();
    assert_eq!((&found["stats"]["min"], &found["stats"]["nan"]), (&30.0.into(), &0.into()));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = command(&["inspect", "paddle-checkpoints/hf_qwen2_tiny", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn mistakes_have_a_hint_and_exit_code_2() {
    let cases: [(&[&str], &str); 4] = [
        (
            &["inspect", "nowhere"],
            "error: 'nowhere' does not exist\n\nhint: name a folder, a file or a URL that holds a checkpoint\n",
        ),
        (
            &["inspect", "indexing.jsonl.gz"],
            "error: 'indexing.jsonl.gz' is not a checkpoint of a known format: known files end in .safetensors, .pdparams, \
             .pdopt, .pt, .pth, .bin or .ckpt\n\nhint: name a checkpoint folder, or a file that holds tensors\n",
        ),
        (
            &["inspect", "torch-dcp/single", "--filter", "nothing"],
            "error: no tensor has such a name\n\nhint: leave `--filter` out to see all names\n",
        ),
        (
            &["inspect", "s3://bucket/x"],
            "error: cannot open 's3://bucket': this build lacks the feature 's3'; build it with --features s3\n",
        ),
    ];
    for (args, message) in cases {
        let ran = planaria(args);
        assert_eq!((ran.code, ran.err.as_str(), ran.out.as_str()), (Some(2), message, ""), "{args:?}");
    }
}

#[test]
fn a_path_that_does_not_exist_is_a_mistake_to_every_verb() {
    let all = "inspect none|verify none|convert none out --to hf|reshard none out --mesh dp=2 --layout *=dp:S0|diff none none|\
               merge none out|program show none|lora merge none none out|lora unmerge none none out|lora convert none out --layout peft|generate none x|chat none|eval none none|\
               embed none none|plot none|export none|average none out|tokenize none -o out.tokens|train none|plan none|\
               explain none|drill none|data show none|config show none|launch -- planaria train none";
    for line in all.split('|') {
        let ran = planaria(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.err);
        assert!(ran.err.starts_with("error: ") && ran.err.contains("none"), "{line}: {}", ran.err);
    }
}

#[test]
fn a_run_stands_for_its_newest_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    for (source, step) in [("torch-dcp/single", 3), ("torch-dcp/fsdp2_2", 20)] {
        let target = run.join(format!("ckpt/step-{step:08}"));
        succeed(&["convert", source, text(&target), "--to", "planaria"]);
    }
    let newest = run.join("ckpt/step-00000020");
    assert_eq!(succeed(&["inspect", text(&run)]), succeed(&["inspect", text(&newest)]));
    assert_eq!(succeed(&["inspect", text(&run.join("ckpt"))]), succeed(&["inspect", text(&newest)]));
    assert!(succeed(&["verify", text(&run)]).starts_with("sound: "));
    succeed(&["diff", text(&run), text(&newest)]);
    let target = folder.path().join("out");
    let ran = planaria(&["convert", text(&run), text(&target), "--to", "hf"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("its newest checkpoint, ckpt/step-00000020"), "{}", ran.err);
}

#[test]
fn a_run_agrees_with_its_torch_checkpoint_whose_optimizer_counts_steps() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    super::heal::prepare(here);
    let args = ["train", "tiny.toml", "-q", "--set", "mesh=", "--set", "train.steps=4"];
    let (code, err) = super::heal::run(here, &args, &[]);
    assert_eq!(code, 0, "{err}");
    let (run, older) = (here.join("runs/tiny"), here.join("runs/tiny/ckpt/step-00000002"));
    let dcp = here.join("dcp");
    succeed(&["convert", text(&run), text(&dcp), "--to", "dcp"]);
    let tensors = succeed(&["inspect", text(&dcp), "--all"]);
    assert!(tensors.contains("step"), "{tensors}");
    let agree = succeed(&["diff", text(&run), text(&dcp)]);
    assert!(agree.ends_with(" tensors agree\n"), "{agree}");
    succeed(&["diff", text(&dcp), text(&run)]);
    assert_eq!(planaria(&["diff", text(&older), text(&dcp)]).code, Some(1));
}

#[test]
fn inspect_counts_the_parameters_and_nothing_else() {
    let text = succeed(&["inspect", "formats/unified"]);
    let json: Value = serde_json::from_str(&succeed(&["inspect", "formats/unified", "--json"])).unwrap();
    let model = json["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["part"] == "model");
    let sizes = |tensor: &Value| -> u64 {
        tensor["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).product()
    };
    let expected: u64 = model.map(sizes).sum();
    assert_eq!(json["total"]["parameters"], expected);
    assert!(text.lines().next().unwrap().contains(&format!(", {expected} parameters, ")), "{text}");
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_by_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("at");
    let names = [".metadata", "__0_0.distcp"];
    for (source, name) in
        [("torch-dcp/single", names[0]), ("torch-dcp/single", names[1]), ("formats/unified", "config.json")]
    {
        std::fs::create_dir(&at).unwrap();
        for file in std::fs::read_dir(root().join("testdata").join(source)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), at.join(file.file_name())).unwrap();
        }
        std::fs::remove_file(at.join(name)).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at.join(name)).status().unwrap();
        assert!(made.success());
        let out = folder.path().join("out");
        let mut verbs: Vec<Vec<&str>> = vec![vec!["convert", text(&at), text(&out), "--to", "planaria"]];
        if name != "config.json" {
            verbs.extend([vec!["inspect", text(&at)], vec!["verify", text(&at)]]);
        }
        for args in verbs {
            let ran = planaria(&args);
            assert_eq!(ran.code, Some(2), "{name} {args:?}: {}", ran.err);
            assert!(ran.err.contains(&format!("{name}' is a pipe, not a file")), "{}", ran.err);
        }
        std::fs::remove_dir_all(&at).unwrap();
    }
}

#[test]
fn a_lost_manifest_is_damage_to_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("at");
    succeed(&["convert", "torch-dcp/single", text(&at), "--to", "planaria"]);
    std::fs::remove_file(at.join("manifest.json")).unwrap();
    for verb in ["inspect", "verify"] {
        let ran = planaria(&[verb, text(&at)]);
        assert_eq!(ran.code, Some(3), "{verb}: {}{}", ran.out, ran.err);
        assert!((ran.out + &ran.err).contains("no manifest.json"), "{verb}");
    }
}

#[test]
fn names_from_files_reach_the_terminal_without_their_escape_codes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let name = "red\\u001b[31m\\u001b[2J";
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    let write = |data: &[u8]| {
        let head = (header.len() as u64).to_le_bytes();
        std::fs::write(&file, [&head[..], header.as_bytes(), data].concat()).unwrap();
    };
    write(&[0; 4]);
    let shown = succeed(&["inspect", text(&file), "--color", "always"]);
    assert!(shown.contains("red\\u{1b}[31m\\u{1b}[2J"), "{shown:?}");
    assert!(shown.starts_with("\x1b[1;36mhugging-face\x1b[0m:"), "our own colours stay: {shown:?}");
    write(&[0; 3]);
    for verb in ["inspect", "verify"] {
        let ran = planaria(&[verb, text(&file)]);
        assert_eq!(ran.code, Some(3));
        assert!(!ran.out.contains('\x1b') && !ran.err.contains('\x1b'), "{ran:?}");
        assert!((ran.out + &ran.err).contains("red\\u{1b}[31m"));
    }
}

#[test]
fn torn_checkpoints_exit_with_3() {
    let ran = planaria(&["inspect", "paddle-checkpoints/torn_meta_only2"]);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(
        ran.err.starts_with("error: the checkpoint is torn: ") && ran.err.contains("\nhint: "),
        "{}",
        ran.err
    );
}

#[test]
fn diff_agrees_across_formats_and_cuts() {
    let text = succeed(&["diff", "torch-dcp/dtensor2", "torch-dcp/dtensor2.expected.safetensors"]);
    assert_eq!(text, "13 tensors agree\n");
    let json = succeed(&[
        "diff",
        "paddle-checkpoints/big1",
        "paddle-checkpoints/big1.expected.safetensors",
        "--json",
    ]);
    let object: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&object["schema"], &object["different"]), (&"planaria/diff/1".into(), &0.into()));
}

#[test]
fn diff_names_what_differs_and_exits_with_1() {
    let ran = planaria(&["diff", "torch-dcp/dtensor2", "torch-dcp/dtensor2_filepertensor"]);
    assert_eq!(ran.code, Some(1));
    let last = ran.out.lines().last().unwrap();
    assert!(last.ends_with("agree") && last.contains("differ"), "{}", ran.out);
    assert!(ran.out.contains("only in the first"), "{}", ran.out);
}

#[test]
fn completions_name_every_verb() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeed(&["completions", shell]);
        for verb in ["inspect", "diff", "convert", "reshard", "verify"] {
            assert!(script.contains(verb), "{verb} in {shell}");
        }
    }
}

#[test]
fn color_comes_only_when_asked_for() {
    assert!(!succeed(&["inspect", "torch-dcp/single"]).contains('\x1b'));
    assert!(succeed(&["inspect", "torch-dcp/single", "--color", "always"]).contains('\x1b'));
}

#[test]
fn verify_finds_a_flipped_bit_and_names_tensor_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    succeed(&["convert", "torch-dcp/single", text(&ours), "--to", "planaria"]);
    let sound = succeed(&["verify", text(&ours)]);
    assert!(sound.starts_with("sound: 7 tensors in 2 files, "), "{sound}");
    let file = ours.join("model-00001-of-00001.safetensors");
    let whole = std::fs::read(&file).unwrap();
    for at in [0, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&file, bytes).unwrap();
        let ran = planaria(&["verify", text(&ours)]);
        assert_eq!(ran.code, Some(3), "byte {at}: {}{}", ran.out, ran.err);
        assert!(
            ran.out.contains("damaged: tensors 'a', 'b', 'c' and 4 more are damaged")
                && ran.out.contains("(bytes 0.."),
            "{}",
            ran.out
        );
    }
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let json = planaria(&["verify", text(&ours), "--json"]);
    let object: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&object["schema"], &object["sound"]), (&"planaria/verify/1".into(), &false.into()));
    assert!(object["problems"][0].as_str().unwrap().contains("torn"), "{object}");
    std::fs::remove_file(ours.join("COMMIT")).unwrap();
    std::fs::write(ours.join("SAVING"), "").unwrap();
    let ran = planaria(&["verify", text(&ours)]);
    assert_eq!((ran.code, ran.out.contains("has no COMMIT mark")), (Some(3), true), "{}{}", ran.out, ran.err);
}

#[test]
fn verify_checks_the_structure_of_other_formats() {
    let sound = succeed(&["verify", "torch-dcp/dtensor2"]);
    assert_eq!(sound, "sound: 13 tensors in 2 files, 6.4 kB compared with their checksums\n");
    let sound = succeed(&["verify", "paddle-checkpoints/tp2"]);
    assert!(sound.ends_with("structure checked; this format has no checksums\n"), "{sound}");
    let ran = planaria(&["verify", "paddle-checkpoints/torn_meta_only2"]);
    assert_eq!(ran.code, Some(3), "{}", ran.out);
    assert!(ran.out.starts_with("damaged: the checkpoint is torn: "), "{}", ran.out);
    assert_eq!(planaria(&["verify", "nowhere"]).code, Some(2));
    let ran = planaria(&["verify", "torch-dcp/dtensor2/__0_0.distcp"]);
    assert!(ran.code == Some(2) && ran.err.contains("name its folder"), "{}", ran.err);
}

#[test]
fn verify_tells_what_it_left_out_and_a_wrong_total() {
    let folder = tempfile::tempdir().unwrap();
    for name in names(&root().join("testdata/formats/unmerged")) {
        std::fs::copy(root().join("testdata/formats/unmerged").join(&name), folder.path().join(&name))
            .unwrap();
    }
    let ran = planaria(&["verify", text(folder.path())]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(
        ran.err.starts_with("warning: left out optimizer.tp00_pp01.safetensors: each rank"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("total_size"), "{}", ran.err);
    let index = folder.path().join("model.safetensors.index.json");
    let right = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, right.replace("\"total_size\": 32", "\"total_size\": 64")).unwrap();
    let ran = planaria(&["verify", text(folder.path()), "--json"]);
    assert_eq!(ran.code, Some(0), "the tensors are sound: {}", ran.err);
    assert!(ran.err.contains("gives a total_size of 64, but its tensors have 32 bytes"), "{}", ran.err);
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&object["sound"], object["warnings"].as_array().unwrap().len()),
        (&true.into(), 2),
        "{object}"
    );
    // Nothing but what has to be left out.
    std::fs::remove_file(index).unwrap();
    std::fs::remove_file(folder.path().join("model-00001-of-00001.safetensors")).unwrap();
    let ran = planaria(&["verify", text(folder.path())]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
    assert_eq!(ran.out, "nothing to check: no tensor was found in 0 files\n");
}
