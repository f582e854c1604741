//! What goes wrong while a run goes on: a disk that fills up, a rank that dies, gradients that are not numbers.

use anyhow::{Result, ensure};
use planaria_e2e::{Recorder, Sandbox, tensors};
use planaria_train::Trainer;
use planaria_train::event::Event;

/// Saves fail from some step on, because a file stands where their folder should be; the run goes on to its end and
/// the last good checkpoint stays.
#[test]
fn a_failed_save_does_not_stop_training() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let more = ["checkpoint.every=1", "checkpoint.keep=9", "checkpoint.final_save=false"];
    std::fs::create_dir_all(sandbox.run_dir("run").join("ckpt"))?;
    for step in 2..=4 {
        std::fs::write(sandbox.run_dir("run").join(format!("ckpt/step-{step:08}")), "in the way")?;
    }
    let recorder = Recorder::shared();
    let config = sandbox.config("run", "dp=2", &more)?;
    let outcome = Trainer::new(config).observer(recorder.clone()).run(None)?;
    assert_eq!((outcome.step, outcome.losses.len()), (4, 4));
    assert_eq!(outcome.checkpoint.as_deref(), Some("ckpt/step-00000001"));
    let failed = recorder.events().iter().filter(|e| matches!(e, Event::SaveFailed { .. })).count();
    assert_eq!(failed, 2, "{:?}", recorder.events());
    tensors(&sandbox.run_dir("run").join("ckpt/step-00000001"))?;

    for step in 2..=4 {
        std::fs::remove_file(sandbox.run_dir("run").join(format!("ckpt/step-{step:08}")))?;
    }
    let resumed = sandbox.train("run", "dp=2", &[])?;
    assert_eq!(resumed.outcome.losses, outcome.losses[1..]);
    resumed.same_tensors(&Sandbox::new()?.train("run", "", &[])?)
}

#[test]
fn a_step_whose_gradient_is_no_number_changes_nothing() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // A loss scale past the range of f16 overflows until it has come down far enough.
    let more = ["train.precision=f16", "optim.loss_scale=1e30", "train.steps=2"];
    let recorder = Recorder::shared();
    let config = sandbox.config("run", "dp=2", &more)?;
    Trainer::new(config).observer(recorder.clone()).run(None)?;
    let reports = recorder.events().into_iter().filter_map(|event| match event {
        Event::Step(report) => Some((report.skipped, report.loss)),
        _ => None,
    });
    let reports: Vec<(bool, f64)> = reports.collect();
    ensure!(reports.iter().all(|(skipped, _)| *skipped), "{reports:?}");
    ensure!(reports.iter().all(|(_, loss)| loss.is_finite()), "{reports:?}");
    let folder = sandbox.run_dir("run").join("ckpt/step-00000002");
    let untouched = Sandbox::new()?;
    let first = untouched.train("run", "", &["train.precision=f16", "optim.lr=0", "train.steps=1"])?;
    let saved = tensors(&folder)?;
    for (name, bytes) in first.tensors.iter().filter(|(name, _)| name.starts_with("model:")) {
        ensure!(saved[name] == *bytes, "`{name}` has moved");
    }
    Ok(())
}
