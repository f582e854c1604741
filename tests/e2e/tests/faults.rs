//! What goes wrong during a run: a disk that fills up, a rank that dies, gradients that are not numbers.

use anyhow::{Result, ensure};
use planaria_e2e::{Recorder, Sandbox, tensors};
use planaria_store::{Entry, Local, PutMode, Reader, Sharing, Store, Writer};
use planaria_train::Trainer;
use planaria_train::event::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A disk with room for so many bytes.
#[derive(Debug)]
struct Small {
    disk: Local,
    room: AtomicU64,
}

impl Small {
    fn take(&self, name: &str, bytes: u64) -> planaria_store::Result<()> {
        let taken = self.room.fetch_update(Relaxed, Relaxed, |room| room.checked_sub(bytes));
        let full = |_| planaria_store::Error::Io {
            name: name.to_string(),
            op: "write",
            kind: std::io::ErrorKind::StorageFull,
            message: "no space left on device".to_string(),
        };
        taken.map(drop).map_err(full)
    }
}

impl Store for Small {
    fn address(&self) -> String {
        self.disk.address()
    }

    fn list(&self, folder: &str) -> planaria_store::Result<Vec<Entry>> {
        self.disk.list(folder)
    }

    fn reader(&self, name: &str) -> planaria_store::Result<Box<dyn Reader>> {
        self.disk.reader(name)
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> planaria_store::Result<Box<dyn Writer>> {
        self.take(name, len)?;
        self.disk.writer(name, len, sharing)
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> planaria_store::Result<()> {
        self.take(name, bytes.len() as u64)?;
        self.disk.put(name, bytes, mode)
    }

    fn delete(&self, name: &str) -> planaria_store::Result<()> {
        self.disk.delete(name)
    }
}

#[test]
fn a_disk_that_fills_up_does_not_stop_training() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let more =
        ["checkpoint.every=1", "checkpoint.behind=wait", "checkpoint.keep=9", "checkpoint.final_save=false"];
    let recorder = Recorder::shared();
    let config = sandbox.config("run", "dp=2", &more)?;
    // One checkpoint is about 300 kB: the second stops half way.
    let disk = Small { disk: Local::new(sandbox.run_dir("run")), room: AtomicU64::new(450_000) };
    let outcome = Trainer::new(config).store(Arc::new(disk)).observer(recorder.clone()).run(None)?;
    assert_eq!((outcome.step, outcome.losses.len()), (4, 4));
    assert_eq!(outcome.checkpoint.as_deref(), Some("ckpt/step-00000001"), "{:?}", recorder.events());
    let failed = recorder.events().into_iter().filter_map(|event| match event {
        Event::SaveFailed { error, .. } => Some(error),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    ensure!(failed.len() == 2 && failed.iter().all(|e| e.contains("no space left")), "{failed:?}");
    // Where there is room again, the run resumes from the last good checkpoint.
    let resumed = sandbox.train("run", "dp=2", &[])?;
    assert_eq!(resumed.outcome.losses, outcome.losses[1..]);
    resumed.same_tensors(&Sandbox::new()?.train("run", "", &[])?)
}

#[test]
fn a_last_state_that_is_not_saved_is_a_failure() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let config = sandbox.config(
        "run",
        "dp=2",
        &["checkpoint.every=1", "checkpoint.behind=wait", "checkpoint.keep=9"],
    )?;
    let disk = Small { disk: Local::new(sandbox.run_dir("run")), room: AtomicU64::new(450_000) };
    let error = Trainer::new(config).store(Arc::new(disk)).run(None).unwrap_err();
    ensure!(!error.is_usage());
    let text = error.to_string();
    for word in ["step 4 is not saved", "no space left", "newest checkpoint is 'ckpt/step-00000001'"] {
        ensure!(text.contains(word), "{text}");
    }
    Ok(())
}

#[test]
fn a_run_that_diverges_fails_and_keeps_what_was_good() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // A few steps go well, then a rate that throws the weights out of range.
    let more = [
        "checkpoint.every=1",
        "checkpoint.behind=wait",
        "checkpoint.keep=2",
        "train.steps=30",
        "train.max_skipped=5",
    ];
    sandbox.train_until(3, "run", "dp=2", &more)?;
    let bad = [&more[..], &["optim.lr=1e38", "optim.clip=0", "optim.schedule=constant"]].concat();
    let config = sandbox.config("run", "dp=2", &bad)?;
    let error = Trainer::new(config).run(None).unwrap_err();
    ensure!(!error.is_usage() && error.to_string().contains("last 5 steps up to step"), "{error}");
    let checkpoints = std::fs::read_dir(sandbox.run_dir("run").join("ckpt"))?.flatten();
    let mut names: Vec<String> = checkpoints.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    ensure!(names.first().is_some_and(|name| name == "step-00000003"), "{names:?}");
    let metrics = std::fs::read_to_string(sandbox.run_dir("run").join("metrics.jsonl"))?;
    let skipped = metrics.lines().filter(|line| line.contains("\"skipped\":1")).count();
    assert_eq!(skipped, 5, "{metrics}");
    Ok(())
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

/// Peak memory of later steps is that of the first few: nothing of a step outlives it.
#[test]
fn memory_does_not_grow_with_the_steps() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let recorder = Recorder::shared();
    let config = sandbox.config("run", "", &["train.steps=30", "model.tie_word_embeddings=true"])?;
    Trainer::new(config).observer(recorder.clone()).run(None)?;
    let peaks = recorder.events().into_iter().filter_map(|event| match event {
        Event::Step(report) => Some(report.peak_bytes),
        _ => None,
    });
    let peaks: Vec<u64> = peaks.collect();
    ensure!(peaks[29] < peaks[4] + peaks[4] / 4, "{peaks:?}");
    Ok(())
}
