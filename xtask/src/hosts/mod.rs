//! `cargo xtask hosts`: jobs on a test bed of several hosts, which are namespaces of this machine.

mod bed;
mod checks;
mod job;
mod places;
mod wire;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::{ask, cargo, run, target_folder};
use crate::summary::{Counts, Outcome};

/// Namespaces that go with the process that is started in them.
const NAMESPACES: [&str; 6] = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Buckets for the program that is run.
const CLI_FEATURES: &str = "planaria-cli/s3,planaria-cli/azure";

/// What a process inside them is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only checks whose names have this in them
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
    /// This process is in namespaces of its own: the program to run
    #[arg(long, hide = true, value_name = "FILE")]
    inside: Option<PathBuf>,
    /// The server of an object store, where there is one
    #[arg(long, hide = true, value_name = "FILE")]
    s3: Option<PathBuf>,
}

/// Why there can be no bed here; nothing where there can.
fn missing() -> Option<String> {
    if ask(Command::new("id").arg("-u")).as_deref() != Some("0") {
        return Some("namespaces with networks need root".into());
    }
    let tools = [("ip", "-V", "iproute2"), ("tc", "-V", "iproute2"), ("unshare", "--version", "util-linux")];
    for (tool, version, package) in tools {
        if ask(Command::new(tool).arg(version)).is_none() {
            return Some(format!("no `{tool}` here; install {package}"));
        }
    }
    let bridge = ["ip", "link", "add", "bridge0", "type", "bridge"];
    let tried = Command::new("unshare").args(NAMESPACES).args(bridge).output();
    match tried {
        Ok(told) if told.status.success() => None,
        Ok(told) => {
            let why = String::from_utf8_lossy(&told.stderr).trim().replace('\n', "; ");
            Some(format!("namespaces with a bridge are not allowed here: {why}"))
        }
        Err(error) => Some(format!("cannot start `unshare`: {error}")),
    }
}

/// The checks as a step of the test command.
pub(crate) fn step(root: &Path, features: &[&str], only: &str, s3: Option<&Path>) -> (Outcome, Counts) {
    if let Some(why) = missing() {
        return (Outcome::Skipped(why), Counts::default());
    }
    // What the checks of buckets have built is used again.
    let more: &[&str] =
        if s3.is_some() { &["--features", crate::s3::FEATURES, "--features", CLI_FEATURES] } else { &[] };
    if !run(cargo(root, ["build", "--quiet", "--bin", "planaria"]).args(features).args(more)).success {
        return (Outcome::Failed, Counts::default());
    }
    let Ok(own) = std::env::current_exe() else { return (Outcome::Failed, Counts::default()) };
    let target = target_folder(root);
    let mut bed = Command::new("unshare");
    bed.args(NAMESPACES).arg(own).args(["hosts", "--only", only, "--inside"]);
    bed.arg(target.join("debug").join("planaria")).current_dir(root);
    if let Some(s3) = s3 {
        bed.arg("--s3").arg(s3);
    }
    let ran = run(&mut bed);
    let count = |word: &str| ran.output.lines().filter(|line| line.starts_with(word)).count() as u64;
    let counts = Counts { passed: count("ok "), failed: count("FAILED ") };
    let passed = ran.success && counts.failed == 0 && counts.passed > 0;
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// `cargo xtask hosts`.
pub(crate) fn run_alone(root: &Path, features: &[&str], options: &Options) -> Result<bool> {
    if let Some(planaria) = &options.inside {
        return checks::run(planaria, &options.only, options.s3.as_deref());
    }
    if let Some(why) = missing() {
        eprintln!("skipped: {why}");
        return Ok(true);
    }
    let s3 = crate::s3::server(root);
    if let Err(why) = &s3 {
        eprintln!("no object store: {why}");
    }
    let (outcome, counts) = step(root, features, &options.only, s3.ok().as_deref());
    match &outcome {
        Outcome::Skipped(why) => eprintln!("skipped: {why}"),
        _ => eprintln!("{} passed, {} failed", counts.passed, counts.failed),
    }
    Ok(outcome != Outcome::Failed)
}
