//! Two contestants in one run: who is measured first in a round, how many threads both have, and which version the other one is.

use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// Measures both, the other one first in every second round, so that a machine that slows down favours nobody.
pub fn in_turn<T>(
    round: usize,
    ours: impl FnOnce() -> Result<T>,
    theirs: impl FnOnce() -> Result<T>,
) -> Result<[T; 2]> {
    if round.is_multiple_of(2) {
        return Ok([ours()?, theirs()?]);
    }
    let theirs = theirs()?;
    Ok([ours()?, theirs])
}

/// Threads that each contestant has.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What an expression over imported packages of Python prints: their versions.
pub fn version(python: &Path, packages: &[&str]) -> Result<String> {
    let shown = packages.iter().map(|name| format!("{name}.__version__")).collect::<Vec<_>>().join(", ");
    let script = format!("import {}; print({shown}, sep=', ')", packages.join(", "));
    let printed = Command::new(python).args(["-c", &script]).output()?;
    Ok(String::from_utf8_lossy(&printed.stdout).trim().to_owned())
}
