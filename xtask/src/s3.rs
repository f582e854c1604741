//! Buckets: the store's checks against real servers; that of S3 is moto's, installed in a venv of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{ask, cargo, run};
use crate::summary::{Counts, Outcome, counts};

/// The server, as pip names it.
const SERVER: &str = "moto[server]==5.2.5";

/// What the store needs to reach buckets.
pub(crate) const FEATURES: &str = "planaria-store/s3,planaria-store/azure";

/// A provider of buckets: the module of its checks, and the variable that tells them where its server is.
#[derive(Clone, Copy)]
pub(crate) struct Provider(&'static str, &'static str);

pub(crate) const S3: Provider = Provider("s3::", "PLANARIA_MOTO");
pub(crate) const AZURE: Provider = Provider("azure::", "PLANARIA_AZURITE");

/// Runs the checks of one of them; skipped with the reason where the server cannot be had.
pub(crate) fn step(
    root: &Path,
    features: &[&str],
    provider: Provider,
    server: &Result<PathBuf, String>,
) -> (Outcome, Counts) {
    let server = match server {
        Ok(server) => server,
        Err(reason) => return (Outcome::Skipped(reason.clone()), Counts::default()),
    };
    let mut test = cargo(root, ["test", "--quiet", "--test", "clouds"]);
    test.args(["--features", FEATURES]).args(features);
    let ran = run(test.args(["--", provider.0]).env(provider.1, server));
    let counts = counts(&ran.output);
    let passed = ran.success && counts.failed == 0 && counts.passed > 0;
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// The server program, installed when missing.
pub(crate) fn server(root: &Path) -> Result<PathBuf, String> {
    let venv = root.join("target").join("venv-moto");
    let server = venv.join("bin").join("moto_server");
    let is_here = || ask(Command::new(&server).arg("--help")).is_some();
    if is_here() {
        return Ok(server);
    }
    if !run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).success {
        return Err("python3 -m venv failed; install python3 with its venv module".into());
    }
    let python = venv.join("bin").join("python");
    let installed = run(Command::new(python).args(["-m", "pip", "install", "--quiet", SERVER])).success;
    match installed && is_here() {
        true => Ok(server),
        false => Err(format!("pip install {SERVER} failed")),
    }
}
