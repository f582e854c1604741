//! How a run begins in a folder that is not empty: what it resumes from, what it refuses, and what it says.

use anyhow::{Result, ensure};
use planaria_e2e::{Recorder, Sandbox};
use planaria_train::event::Event;
use planaria_train::{Error, Trainer};
use std::path::Path;

/// Why a run of this configuration is refused, found without training and again with it.
fn refusal(sandbox: &Sandbox, mesh: &str, more: &[&str]) -> Result<Error> {
    let trainer = Trainer::new(sandbox.config("run", mesh, more)?);
    let checked = trainer.check(1).unwrap_err();
    let error = trainer.run(None).unwrap_err();
    ensure!(error.to_string().ends_with(&checked.to_string()), "{error} and {checked}");
    Ok(error)
}

fn says(error: &Error, words: &[&str]) -> Result<()> {
    let text = format!("{error}; {}", error.hint().unwrap_or_default());
    ensure!(words.iter().all(|word| text.contains(word)), "{text}");
    Ok(())
}

#[test]
fn another_function_of_the_same_weights_is_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.train_until(2, "run", "", &[])?;
    for (more, words) in [
        (
            "model.rope_theta=500",
            &["model.rope_theta 10000 -> 500", "model.init = \"", "runs/run/ckpt/step-0"][..],
        ),
        ("model.rms_norm_eps=1e-3", &["model.rms_norm_eps 0.000001 -> 0.001"]),
        ("model.hidden_size=32", &["model.hidden_size 16 -> 32", "ckpt/step-00000002"]),
        ("optim.kind=sgd", &["optim.kind adamw -> sgd"]),
        ("optim.ema=0.9", &["optim.ema none -> 0.9"]),
        ("train.precision=bf16", &["train.precision f32 -> bf16"]),
        ("checkpoint.resume=false", &["up to step 2", "checkpoint.resume = false", "another `name`"]),
        ("checkpoint.from=step-00000007", &["step-00000007", "step-00000002"]),
    ] {
        let error = refusal(&sandbox, "", &[more])?;
        ensure!(error.is_usage(), "{error}");
        says(&error, words)?;
    }
    Ok(())
}

#[test]
fn what_else_is_changed_is_told() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.train_until(2, "run", "", &[])?;
    let recorder = Recorder::shared();
    let more = ["optim.lr=5e-3", "model.hidden_dropout=0.1", "checkpoint.keep=3"];
    let config = sandbox.config("run", "dp=2", &more)?;
    Trainer::new(config).observer(recorder.clone()).run(None)?;
    let changed = recorder.events().into_iter().find_map(|event| match event {
        Event::Resumed { changed, .. } => Some(changed),
        _ => None,
    });
    assert_eq!(changed.unwrap_or_default(), ["optim.lr 0.01 -> 0.005", "model.hidden_dropout 0 -> 0.1"]);
    Ok(())
}

fn saved(sandbox: &Sandbox) -> Result<Vec<String>> {
    let names = std::fs::read_dir(sandbox.run_dir("run").join("ckpt"))?;
    let mut names: Vec<String> =
        names.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

#[test]
fn a_run_goes_back_to_an_earlier_checkpoint() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let keep = ["checkpoint.every=1", "checkpoint.behind=wait", "checkpoint.keep=9"];
    let whole = sandbox.train("run", "", &keep)?;
    let back = [&keep[..], &["checkpoint.from=step-00000002"]].concat();
    let half = sandbox.train_until(3, "run", "dp=2", &back)?;
    assert_eq!(half.outcome.losses, whole.outcome.losses[2..3]);
    assert_eq!(
        saved(&sandbox)?,
        ["step-00000001", "step-00000002", "step-00000003"],
        "4 was of another future"
    );
    // The same command continues with what came of it, and does not begin again.
    let rest = sandbox.train("run", "", &back)?;
    assert_eq!(rest.outcome.losses, whole.outcome.losses[3..]);
    rest.same_tensors(&whole)?;

    // A path: another run begins with the whole state of the first.
    let from = format!("checkpoint.from={}", sandbox.run_dir("run").join("ckpt/step-00000002").display());
    let fork = sandbox.train("fork", "", &[&from])?;
    assert_eq!(fork.outcome.losses, whole.outcome.losses[2..]);
    fork.same_tensors(&whole)
}

/// Changes a byte in the middle of a file.
fn damage(file: &Path) -> Result<()> {
    let mut bytes = std::fs::read(file)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    Ok(std::fs::write(file, bytes)?)
}

#[test]
fn a_damaged_checkpoint_names_the_one_before_it() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let keep = ["checkpoint.every=2", "checkpoint.keep=9"];
    let whole = sandbox.train("run", "", &keep)?;
    damage(&sandbox.run_dir("run").join("ckpt/step-00000004/optimizer-00001-of-00001.safetensors"))?;
    let config = sandbox.config("run", "dp=2", &["train.steps=5"])?;
    let error = Trainer::new(config).run(None).unwrap_err();
    ensure!(!error.is_usage());
    says(&error, &["ckpt/step-00000004", "damaged", " more", "checkpoint.from=step-00000002"])?;
    ensure!(error.to_string().len() < 500, "{error}");
    let back = sandbox.train("run", "dp=2", &["checkpoint.from=step-00000002"])?;
    assert_eq!(back.outcome.losses, whole.outcome.losses[2..]);
    back.same_tensors(&whole)
}

#[test]
fn two_processes_do_not_share_a_folder() -> Result<()> {
    let sandbox = Sandbox::new()?;
    std::fs::create_dir_all(sandbox.run_dir("run"))?;
    let file = sandbox.run_dir("run").join("LOCK");
    std::fs::write(&file, "process 4711 on elsewhere\n")?;
    let held = std::fs::File::open(&file)?;
    held.lock()?;
    let config = sandbox.config("run", "dp=2", &[])?;
    let checked = Trainer::new(config.clone()).check(2).unwrap_err();
    let error = Trainer::new(config).run(None).unwrap_err();
    // What every rank would say has no rank before it.
    ensure!(error.is_usage() && checked.to_string() == error.to_string(), "{checked} and {error}");
    says(&error, &["is in use by process 4711 on elsewhere", "another `name`"])?;
    drop(held);
    sandbox.train("run", "dp=2", &[])?;
    Ok(())
}

#[test]
fn weights_that_are_not_those_of_the_model_are_refused_before_training() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let first = sandbox.train("first", "", &["train.steps=1", "model.hidden_size=32"])?;
    let folder = sandbox.run_dir("first").join(first.outcome.checkpoint.unwrap_or_default());
    let init = format!("model.init={}", folder.display());
    let trainer = |more: &[&str]| Ok::<_, anyhow::Error>(Trainer::new(sandbox.config("run", "", more)?));
    says(&trainer(&[&init])?.check(1).unwrap_err(), &["model.init", "[259,32]", "[259,16]"])?;
    assert_eq!(trainer(&[&init, "model.hidden_size=32"])?.check(1)?, None);
    Ok(())
}
