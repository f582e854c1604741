//! A rank of three MPI processes is killed in the middle of a step; the launcher continues with two from the last
//! committed checkpoint, and the curve is that of a run nobody touched.
//! `cargo xtask test` runs it, after building the command beside it: `target/debug/examples/mpi_restart FOLDER`.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{Sandbox, job, tensors};
use std::path::PathBuf;
use std::process::Command;

/// What both runs have in common: six samples a step, which two and three replicas can share.
const MORE: [&str; 4] = ["train.steps=60", "train.global_batch=6", "checkpoint.every=5", "checkpoint.keep=3"];

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("give a folder for the runs")?;
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let sandbox = Sandbox::at(&folder)?;
    let file = folder.join("cut.toml");
    std::fs::write(&file, sandbox.config("cut", "dp=3", &MORE)?.to_toml()?)?;
    let mut launch = Command::new(job::command()?);
    launch.args(["launch", "-n", "3", "--engine", "mpi", "--max-restarts", "2", "--min-ranks", "2", "--"]);
    let mut launcher = launch.args(["planaria", "train"]).arg(&file).spawn()?;
    let run = sandbox.run_dir("cut");
    job::wait("12 steps", || job::losses(&run).len() > 12)?;
    let victim = job::processes(&run, 1).pop().context("the rank told no process")?;
    job::signal("KILL", &victim.to_string())?;
    ensure!(launcher.wait()?.success(), "the launcher gave up");

    let whole = sandbox.train("whole", "", &MORE)?;
    let found = job::losses(&run);
    let expected: Vec<f64> = whole.outcome.losses.clone();
    ensure!(found.len() == expected.len(), "{} and {} steps", found.len(), expected.len());
    // Reading a number back from JSON may move its last bit; the weights are compared as they are.
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * b;
    ensure!(found.values().zip(&expected).all(close), "{found:?}\n{expected:?}");
    let saved = tensors(&run.join("ckpt/step-00000060"))?;
    ensure!(saved == whole.tensors, "the weights differ");
    let started = job::starts(&run);
    ensure!(started.first() == Some(&3) && started.last() == Some(&2), "sessions of {started:?} ranks");
    println!("killed rank 1 of 3 after step 12; 60 steps, the same bits as without");
    Ok(())
}
