//! Jobs of several processes: the command to start them with, what their files tell, signals, patience.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The `planaria` command, built beside the example that asks.
pub fn command() -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    Ok(here.ancestors().nth(2).context("examples lie beside the command")?.join("planaria"))
}

/// Waits until something is so.
pub fn wait(what: &str, done: impl Fn() -> bool) -> Result<()> {
    let limit = Instant::now() + Duration::from_secs(120);
    while !done() {
        if Instant::now() > limit {
            bail!("no {what} within two minutes");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Sends a signal to a process, or with a minus to a group.
pub fn signal(name: &str, process: &str) -> Result<()> {
    let sent = Command::new("sh").args(["-c", &format!("kill -s {name} -- {process}")]).status()?;
    ensure!(sent.success(), "no process {process}");
    Ok(())
}

/// Lines of a file of JSON lines.
pub fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Losses by step; of a step that was done twice, the last.
pub fn losses(run: &Path) -> BTreeMap<u64, f64> {
    let steps = lines(&run.join("metrics.jsonl")).into_iter();
    steps.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].as_f64()?))).collect()
}

/// The processes that a rank said it was, in its log, one for each session.
pub fn processes(run: &Path, rank: usize) -> Vec<u64> {
    let log = lines(&run.join(format!("log/rank-{rank:05}.jsonl")));
    log.iter().filter_map(|line| line["process"].as_u64()).collect()
}

/// Ranks of each session.
pub fn starts(run: &Path) -> Vec<u64> {
    let log = lines(&run.join("log/rank-00000.jsonl")).into_iter();
    log.filter(|line| line["message"] == "started").filter_map(|line| line["ranks"].as_u64()).collect()
}
