//! A rank of three MPI processes is killed in the middle of a step; the launcher goes on with two from the last
//! committed checkpoint, and the curve is that of a run nobody touched.
//! `cargo xtask test` runs it, after building the command beside it: `target/debug/examples/mpi_restart FOLDER`.

use anyhow::{Context, Result, bail, ensure};
use planaria_e2e::{Sandbox, tensors};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What both runs have in common: six samples a step, which two and three replicas can share.
const MORE: [&str; 4] = ["train.steps=60", "train.global_batch=6", "checkpoint.every=5", "checkpoint.keep=3"];

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("give a folder for the runs")?;
    let here = std::env::current_exe()?;
    let command = here.ancestors().nth(2).context("examples lie beside the command")?.join("planaria");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let sandbox = Sandbox::at(&folder)?;
    let file = folder.join("cut.toml");
    std::fs::write(&file, sandbox.config("cut", "dp=3", &MORE)?.to_toml()?)?;
    let mut launch = Command::new(command);
    launch.args(["launch", "-n", "3", "--engine", "mpi", "--max-restarts", "2", "--min-ranks", "2", "--"]);
    let mut job = launch.args(["planaria", "train"]).arg(&file).spawn()?;
    let run = sandbox.run_dir("cut");
    wait(|| losses(&run).len() > 12, "12 steps")?;
    let victim = process_of(&run, 1)?;
    ensure!(
        Command::new("kill").args(["-9", &victim.to_string()]).status()?.success(),
        "no process {victim}"
    );
    ensure!(job.wait()?.success(), "the launcher gave up");

    let whole = sandbox.train("whole", "", &MORE)?;
    let found = losses(&run);
    let expected: Vec<f64> = whole.outcome.losses.clone();
    ensure!(found.len() == expected.len(), "{} and {} steps", found.len(), expected.len());
    // Reading a number back from JSON may move its last bit; the weights are compared as they are.
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-14 * b;
    ensure!(found.values().zip(&expected).all(close), "{found:?}\n{expected:?}");
    let saved = tensors(&run.join("ckpt/step-00000060"))?;
    ensure!(saved == whole.tensors, "the weights differ");
    let started = starts(&run)?;
    ensure!(started.first() == Some(&3) && started.last() == Some(&2), "sessions of {started:?} ranks");
    println!("killed rank 1 of 3 after step 12; 60 steps, the same bits as without");
    Ok(())
}

fn wait(done: impl Fn() -> bool, what: &str) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(120);
    while !done() {
        if Instant::now() > limit {
            bail!("no {what} within two minutes");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Lines of a file of JSON lines.
fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Losses by step; of a step that was done twice, the last.
fn losses(run: &Path) -> BTreeMap<u64, f64> {
    let steps = lines(&run.join("metrics.jsonl")).into_iter();
    steps.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].as_f64()?))).collect()
}

/// The process that a rank said it is, in its log.
fn process_of(run: &Path, rank: usize) -> Result<u64> {
    let log = lines(&run.join(format!("log/rank-{rank:05}.jsonl")));
    log.iter().rev().find_map(|line| line["process"].as_u64()).context("the rank told no process")
}

/// Ranks of each session.
fn starts(run: &Path) -> Result<Vec<u64>> {
    let log = lines(&run.join("log/rank-00000.jsonl")).into_iter();
    Ok(log.filter(|line| line["message"] == "started").filter_map(|line| line["ranks"].as_u64()).collect())
}
