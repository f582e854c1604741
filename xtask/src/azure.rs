//! Azure: its emulator Azurite, installed by npm in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{ask, run};

/// The server, as npm names it.
const SERVER: &str = "azurite@3.37.0";

/// The server program, installed when missing.
pub(crate) fn server(root: &Path) -> Result<PathBuf, String> {
    let folder = root.join("target").join("azurite");
    let server = folder.join("node_modules").join(".bin").join("azurite-blob");
    let is_here = || ask(Command::new(&server).arg("--version")).is_some();
    if is_here() {
        return Ok(server);
    }
    if ask(Command::new("npm").arg("--version")).is_none() {
        return Err("no npm here; install node and npm".into());
    }
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--loglevel", "error", "--prefix"]).arg(&folder);
    match run(install.arg(SERVER)).success && is_here() {
        true => Ok(server),
        false => Err(format!("npm install {SERVER} failed")),
    }
}
