//! A model that only the example knows: the promises hold for it as for ours, and the guide shows what the example runs.

use anyhow::{Result, ensure};
use planaria_e2e::{Run, Sandbox};
use planaria_train::Trainer;

#[allow(dead_code, unreachable_pub)]
#[path = "../../../examples/04_own_model.rs"]
mod example;

fn train(sandbox: &Sandbox, until: u64, mesh: &str, more: &[&str]) -> Result<Run> {
    let config = example::config(sandbox.path(), mesh, more)?;
    let outcome = Trainer::new(config).models(example::SideBySide::models()).until(until).run(None)?;
    sandbox.finished("own", outcome)
}

#[test]
fn a_model_of_ones_own_is_the_same_bits_on_every_mesh() -> Result<()> {
    let alone = train(&Sandbox::new()?, 8, "", &[])?;
    ensure!(alone.tensors.contains_key("model:blocks.3.attention.q_proj.weight"), "its own names");
    ensure!(!alone.tensors.contains_key("model:head.weight"), "a tied head is not stored");
    for (mesh, more) in [
        ("dp=2", &["train.zero=3"][..]),
        ("pp=2", &["train.recompute=full"]),
        ("pp=2 dp=2", &["train.zero=3", "train.stages=[3, 1]"]),
        ("pp=4", &["train.schedule=zb_h1"]),
    ] {
        train(&Sandbox::new()?, 8, mesh, more)?.same_bits(&alone)?;
    }
    train(&Sandbox::new()?, 8, "tp=2", &["train.sequence_parallel=true"])?.close_losses(&alone, 2e-5)
}

#[test]
fn a_model_of_ones_own_resumes_on_another_mesh_with_the_same_bits() -> Result<()> {
    let whole = train(&Sandbox::new()?, 8, "", &[])?;
    let sandbox = Sandbox::new()?;
    let mut losses = Vec::new();
    let mut last = None;
    for (until, mesh, more) in [
        (2, "pp=2", &["train.stages=[1, 3]"][..]),
        (4, "dp=2", &["train.zero=3"]),
        (6, "pp=2 dp=2", &["train.stages=[4, 0]"]),
        (8, "", &[]),
    ] {
        let run = train(&sandbox, until, mesh, more)?;
        losses.extend(run.outcome.losses.clone());
        last = Some(run);
    }
    ensure!(losses == whole.outcome.losses, "{losses:?} instead of {:?}", whole.outcome.losses);
    last.map_or(Ok(()), |last| last.same_tensors(&whole))
}

#[test]
fn a_program_without_the_model_refuses_its_checkpoints_by_name() -> Result<()> {
    let sandbox = Sandbox::new()?;
    train(&sandbox, 1, "", &[])?;
    let error = planaria_train::Generator::open(&sandbox.run_dir("own")).unwrap_err().to_string();
    ensure!(error.contains("\"side_by_side\"") && error.contains("llama, qwen2, qwen2_moe"), "{error}");
    let error = Trainer::new(example::config(sandbox.path(), "", &[])?).run(None).unwrap_err().to_string();
    ensure!(error.contains("`model.kind` is \"side_by_side\""), "{error}");
    Ok(())
}

#[test]
fn the_guide_shows_what_the_example_runs() -> Result<()> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = ["examples/own_model/side_by_side.rs", "examples/04_own_model.rs"];
    let example = files.iter().map(|file| std::fs::read_to_string(root.join(file)));
    let example = example.collect::<std::io::Result<String>>()?;
    let guide = std::fs::read_to_string(root.join("docs/guide/own-model.md"))?;
    let shown: Vec<&str> =
        guide.split("```rust,ignore\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    ensure!(shown.len() >= 4, "{} pieces of code", shown.len());
    for code in shown {
        ensure!(example.contains(code), "the example has not:\n{code}");
    }
    Ok(())
}
