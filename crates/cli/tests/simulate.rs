//! `planaria measure` and `planaria simulate` as a script sees them. The guide to clusters is run in `pages`.

use crate::common;
use common::{command, planaria, root, succeed, text};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn big(more: &[&str]) -> Vec<String> {
    let file = |name: &str| root().join("examples/cluster").join(name).display().to_string();
    let fixed = ["simulate".to_string(), file("llama-405b.toml"), "--costs".into(), file("costs.toml")];
    fixed.into_iter().chain(more.iter().map(ToString::to_string)).collect()
}

fn told(more: &[&str]) -> Value {
    let args = big(more);
    let args: Vec<&str> = ["--json"].into_iter().chain(args.iter().map(String::as_str)).collect();
    serde_json::from_str(&succeed(&args)).unwrap()
}

#[test]
fn sixteen_thousand_ranks_are_simulated_alike_for_a_seed() {
    let day = told(&["--ranks", "16384", "--mtbf", "4h", "--seed", "3"]);
    assert_eq!((&day["schema"], &day["ranks"]), (&"planaria/simulate/1".into(), &16384.into()));
    assert!((4.0e11..4.1e11).contains(&day["parameters"].as_f64().unwrap()));
    let goodput = day["goodput"].as_f64().unwrap();
    assert!((0.5..1.0).contains(&goodput) && day["failures"].as_u64().unwrap() > 0, "{day}");
    assert_eq!(day, told(&["--mtbf", "4h", "--seed", "3"]));
    assert_ne!(day["lost"], told(&["--mtbf", "4h", "--seed", "4"])["lost"]);
    let calm = told(&["--tiers", "folder=100"]);
    assert_eq!((&calm["failures"], &calm["lost"]["again"]), (&0.into(), &0.0.into()));
    assert_eq!(calm["places"].as_array().unwrap().len(), 1);
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let refused = |args: &[&str], said: &str| {
        let ran = planaria(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{args:?}: {}", ran.err);
    };
    let config = root().join("examples/cluster/llama-405b.toml");
    let config = text(&config);
    refused(&["simulate", config], "planaria measure CONFIG -o FILE");
    refused(&["simulate", config, "--flops", "0"], "`flops` is 0");
    refused(&["simulate", config, "--flops", "1e14"], "`links.");
    refused(&["simulate", config, "--flops", "1e14", "--link", "10GB"], "`places.");
    let with = |more: &[&str], said: &str| {
        let args = big(more);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), said);
    };
    with(&["--ranks", "1000"], "1000 ranks cannot make the mesh");
    with(&["--mtbf", "4x"], "'x' is not a unit");
    with(&["--tiers", "tape=3"], "folder, memory, peer, local and remote");
    with(&["--days", "0"], "above 0");
    with(&["--days", "1e9", "--mtbf", "1h"], "fewer days, or longer between them");
}

#[test]
fn costs_of_a_small_job_are_measured_and_taken() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text.txt"), "the quick brown fox jumps over the lazy dog\n".repeat(200))
        .unwrap();
    let config = "mesh = \"dp=2\"\n[model]\nhidden_size = 32\nintermediate_size = 64\nnum_hidden_layers = 1\nnum_attention_heads = 2\n\
        [data]\nsequence = 32\n[[data.source]]\npath = \"text.txt\"\n[train]\nsteps = 7\nglobal_batch = 4\nmicro_batch = 2\n\
        [checkpoint]\nevery = 4\n";
    fs::write(folder.path().join("small.toml"), config).unwrap();
    let run = |args: &[&str], folder: &Path| {
        let end = command(args).current_dir(folder).output().unwrap();
        assert!(end.status.success(), "{args:?}: {}", String::from_utf8_lossy(&end.stderr));
        String::from_utf8(end.stdout).unwrap()
    };
    run(&["measure", "small.toml", "--steps", "3", "-o", "costs.json"], folder.path());
    assert_eq!(fs::read_dir(folder.path().join("runs")).unwrap().count(), 0, "nothing is left");
    let args =
        ["simulate", "small.toml", "-n", "2", "--costs", "costs.json", "--mtbf", "10m", "--days", "0.1"];
    let shown = run(&args, folder.path());
    assert!(shown.contains("2 ranks as pp=1 dp=2 ep=1 tp=1") && shown.contains("folder"), "{shown}");
}
