//! A run that is cut anywhere grows back whole: the same bits as one that was never interrupted, on any mesh that the
//! exactness promise covers.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{MOE, Recorder, Sandbox};
use planaria_train::event::Event;
use planaria_train::{Requests, Trainer};

/// Stops before every step, continuing each time on another mesh.
#[test]
fn cut_at_every_step_and_resumed_on_another_mesh_it_is_the_same_run() -> Result<()> {
    let whole = Sandbox::new()?.train("run", "", &["train.steps=6"])?;
    let meshes: [(&str, &[&str]); 6] = [
        ("dp=2", &["train.zero=1"]),
        ("pp=2 dp=2", &["train.zero=3", "train.stages=[1, 3]"]),
        ("", &[]),
        ("pp=4", &["train.schedule=zb_h1", "train.stages=[0, 3, 1, 0]"]),
        ("dp=4", &["train.zero=2"]),
        ("pp=2", &["train.schedule=interleaved", "train.chunks=2"]),
    ];
    let sandbox = Sandbox::new()?;
    let mut losses = Vec::new();
    let mut last = None;
    for (step, (mesh, more)) in (1..).zip(meshes) {
        let more = [more, &["train.steps=6", "checkpoint.keep=1"][..]].concat();
        let run = sandbox.train_until(step, "run", mesh, &more).with_context(|| mesh.to_string())?;
        losses.extend(run.outcome.losses.iter().copied());
        last = Some(run);
    }
    let last = last.context("there were meshes")?;
    ensure!(losses == whole.outcome.losses, "{losses:?} instead of {:?}", whole.outcome.losses);
    last.same_tensors(&whole)
}

/// Everything that a run keeps besides f32 weights and moments is in its checkpoints.
#[test]
fn whatever_is_trained_a_cut_changes_no_bit() -> Result<()> {
    let cases: [(&[&str], &str); 7] = [
        (&MOE, "dp=2"),
        (&["train.precision=bf16", "optim.ema=0.9"], "dp=2"),
        // The scale comes down in the first steps and is part of the state.
        (&["train.precision=f16", "optim.loss_scale=1e9"], "pp=2"),
        (&["optim.kind=sgd", "optim.lr=0.3", "optim.ema=0.5"], "pp=2 dp=2"),
        (
            &["train.precision=bf16", "optim.averages=[{ sigma = 0.1 }, { decay = 0.9, every = 2 }]"],
            "pp=2 dp=2",
        ),
        (&["model.hidden_dropout=0.2", "train.recompute=full"], "dp=4"),
        (&["model.tie_word_embeddings=true", "optim.schedule=wsd"], "pp=2"),
    ];
    for (more, mesh) in cases {
        let what = || format!("{more:?} on {mesh}");
        let whole = Sandbox::new()?.train("run", "", more).with_context(what)?;
        let sandbox = Sandbox::new()?;
        let first = [more, &["train.zero=3"]].concat();
        let begun = sandbox.train_until(2, "run", mesh, &first).with_context(what)?;
        let rest = sandbox.train("run", "", more).with_context(what)?;
        let losses = [begun.outcome.losses, rest.outcome.losses.clone()].concat();
        ensure!(losses == whole.outcome.losses, "{}: {losses:?}", what());
        rest.same_tensors(&whole).with_context(what)?;
    }
    Ok(())
}

#[test]
fn frozen_parameters_stay_and_have_no_state_on_any_mesh() -> Result<()> {
    // The first stage of two has nothing to learn.
    let freeze = "train.freeze=[\"model.embed_tokens.*\", \"model.layers.0.*\", \"model.layers.1.*\"]";
    let whole = Sandbox::new()?.train("run", "", &[freeze])?;
    let start = Sandbox::new()?.train("run", "", &["optim.lr=0", "train.steps=1"])?;
    for (name, bytes) in &whole.tensors {
        let frozen = ["embed_tokens.", "layers.0.", "layers.1."].iter().any(|part| name.contains(part));
        ensure!(!(frozen && name.starts_with("optimizer:")), "`{name}` has state");
        if name.starts_with("model:") {
            ensure!((start.tensors[name] == *bytes) == frozen, "`{name}`");
        }
    }
    for (mesh, more) in [
        ("dp=2", &["train.zero=1"][..]),
        ("dp=2", &["train.zero=3"]),
        ("pp=2", &["train.schedule=zb_h1"]),
        ("pp=2 dp=2", &["train.zero=2", "train.recompute=full"]),
        ("pp=4", &[]),
    ] {
        let sandbox = Sandbox::new()?;
        let more = [more, &[freeze]].concat();
        let begun = sandbox.train_until(2, "run", mesh, &more).with_context(|| mesh.to_string())?;
        let rest = sandbox.train("run", "", &[freeze])?;
        let losses = [begun.outcome.losses, rest.outcome.losses.clone()].concat();
        ensure!(losses == whole.outcome.losses, "{mesh}: {losses:?}");
        rest.same_tensors(&whole).with_context(|| mesh.to_string())?;
    }
    let tied = ["model.tie_word_embeddings=true", "train.freeze=[\"lm_head.*\"]"];
    let alone = Sandbox::new()?.train("run", "", &tied)?;
    Sandbox::new()?.train("run", "pp=2", &tied)?.same_bits(&alone)?;
    // Another choice needs other state.
    let sandbox = Sandbox::new()?;
    sandbox.train_until(2, "run", "", &[freeze])?;
    let error = format!("{:#}", sandbox.train("run", "", &[]).unwrap_err());
    ensure!(error.contains("train.freeze"), "{error}");
    Ok(())
}

#[test]
fn another_batch_size_goes_on_where_the_data_stopped() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.train_until(2, "run", "", &[])?;
    let recorder = Recorder::shared();
    let config = sandbox.config("run", "dp=2", &["train.global_batch=4"])?;
    Trainer::new(config).observer(recorder.clone()).run(None)?;
    let samples: Vec<u64> = recorder.events().iter().filter_map(samples_of).collect();
    assert_eq!(samples, [20, 24], "two steps of 8 samples before, two of 4 now");
    Ok(())
}

fn samples_of(event: &Event) -> Option<u64> {
    if let Event::Step(report) = event { Some(report.samples) } else { None }
}

#[test]
fn other_data_under_a_run_is_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.train_until(2, "run", "", &[])?;
    std::fs::write(sandbox.path().join("text.txt"), "something else entirely\n".repeat(300))?;
    let error = sandbox.train("run", "", &[]).unwrap_err();
    ensure!(format!("{error:#}").contains("number of samples"), "{error:#}");
    Ok(())
}

#[test]
fn a_background_save_holds_the_state_of_its_own_step() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let more = ["checkpoint.every=1", "checkpoint.behind=wait", "checkpoint.keep=9"];
    let whole = sandbox.train("run", "dp=2", &more)?;
    // Every intermediate checkpoint leads to the same end.
    for step in 1..4 {
        let copy = Sandbox::new()?;
        let folder = format!("ckpt/step-{step:08}");
        copy_folder(&sandbox.run_dir("run").join(&folder), &copy.run_dir("run").join(&folder))?;
        let resumed = copy.train("run", "", &[])?;
        ensure!(resumed.outcome.losses == whole.outcome.losses[step..], "from step {step}");
        resumed.same_tensors(&whole).with_context(|| format!("from step {step}"))?;
    }
    Ok(())
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name()))?,
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name()))?),
        }
    }
    Ok(())
}

#[test]
fn requests_save_and_stop_between_steps() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let requests = Requests::default();
    requests.save();
    let recorder = Recorder::shared();
    let config = sandbox.config("run", "dp=2", &["checkpoint.keep=9"])?;
    let trainer = Trainer::new(config).requests(requests.clone()).observer(recorder.clone());
    trainer.run(None)?;
    let saved = |event: &Event| if let Event::Saved { step, .. } = event { Some(*step) } else { None };
    let steps: Vec<u64> = recorder.events().iter().filter_map(saved).collect();
    assert_eq!(steps, [1, 4], "once on request, once at the end");

    let stopped = Sandbox::new()?;
    requests.stop();
    let config = stopped.config("run", "dp=2 tp=2", &[])?;
    let outcome = Trainer::new(config).requests(requests).run(None)?;
    assert!(outcome.stopped && outcome.step == 1, "{outcome:?}");
    let rest = stopped.train("run", "dp=2 tp=2", &[])?;
    let whole = Sandbox::new()?.train("run", "tp=2", &[])?;
    assert_eq!(rest.outcome.losses, whole.outcome.losses[1..]);
    rest.same_tensors(&whole)
}

#[test]
fn weights_of_another_folder_are_a_start() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let first = sandbox.train("first", "tp=2", &[])?;
    let folder = sandbox.run_dir("first").join(first.outcome.checkpoint.as_deref().unwrap_or_default());
    let init = format!("model.init={}", folder.display());
    let second = sandbox.train("second", "dp=2", &[&init, "train.steps=1"])?;
    ensure!(second.outcome.losses[0] < first.outcome.losses[3] + 0.3, "{:?}", second.outcome.losses);
    ensure!(second.outcome.losses[0] < first.outcome.losses[0] - 0.3, "{:?}", second.outcome.losses);
    Ok(())
}
