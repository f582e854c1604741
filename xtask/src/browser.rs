//! The page of runs in a browser: headless Chromium, as Debian has it.

use std::path::Path;
use std::process::Command;

use crate::process::{ask, cargo, run};
use crate::summary::{Counts, Outcome};

/// Names that Chromium goes by.
const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome"];

/// Finds a browser, or installs one where this process may.
pub(crate) fn find() -> Result<&'static str, String> {
    let here = || NAMES.iter().copied().find(|name| ask(Command::new(name).arg("--version")).is_some());
    if let Some(name) = here() {
        return Ok(name);
    }
    let is_root = ask(Command::new("id").arg("-u")).as_deref() == Some("0");
    if !is_root || ask(Command::new("apt-get").arg("--version")).is_none() {
        return Err("no Chromium here; install the package chromium".into());
    }
    run(Command::new("apt-get").args(["install", "-y", "-qq", "--no-install-recommends", "chromium"]));
    here().ok_or_else(|| "apt-get install chromium failed".into())
}

/// Looks at every view of the page; pictures of them stay in `target/board`.
pub(crate) fn step(root: &Path, features: &[&str], browser: &Result<&str, String>) -> (Outcome, Counts) {
    let browser = match browser {
        Ok(browser) => browser,
        Err(reason) => return (Outcome::Skipped(reason.clone()), Counts::default()),
    };
    let built = run(cargo(root, ["build", "--quiet", "--bin", "planaria"]).args(features)).success;
    let mut page = cargo(root, ["run", "--quiet", "--example", "page"]);
    let passed = built && run(page.args(features).args(["--", browser])).success;
    let counts = Counts { passed: u64::from(passed), failed: u64::from(!passed) };
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}
