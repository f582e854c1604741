//! What else must compile: the features one by one, and the oldest compiler that `rust-version` promises.

use std::path::Path;
use std::process::Command;

use crate::process::{ask, cargo, run};
use crate::summary::{Counts, Outcome};

/// Packages and features that the other steps do not build like this. With MPI everything is built, linted and run.
const SETS: &[(&str, &[&str])] = &[
    ("planaria-cli", &[]),
    ("planaria-store", &["--features", "s3"]),
    ("planaria-store", &["--features", "gcs"]),
    ("planaria-store", &["--features", "azure"]),
    ("planaria-cli", &["--features", "azure,gcs,parquet,s3"]),
    ("planaria-ckpt", &["--all-targets", "--features", "s3"]),
    ("planaria-py", &["--features", "azure,gcs,s3"]),
    ("planaria", &["--no-default-features"]),
    ("planaria", &["--no-default-features", "--features", "telemetry"]),
];

/// Sets of features whose tests no other step runs: the fuzz targets give the workspace Parquet.
const TESTED: &[(&str, &[&str])] = &[("planaria-data", &["--lib", "documents"])];

/// Checks every set of features, and the workspace as it is by default where the other steps build it `with_mpi`.
pub(crate) fn features(root: &Path, with_mpi: bool) -> (Outcome, Counts) {
    let mut checks: Vec<_> =
        SETS.iter().map(|(package, features)| (["--package", *package], *features)).collect();
    if with_mpi {
        checks.push((["--workspace", "--lib"], &["--bins"]));
    }
    let mut counts = Counts::default();
    for (selected, features) in checks {
        match run(cargo(root, ["check", "--quiet"]).args(selected).args(features)).success {
            true => counts.passed += 1,
            false => counts.failed += 1,
        }
    }
    // Beside the communicator with MPI the crates below are those that are built already.
    let beside: &[&str] =
        if with_mpi { &["--package", "planaria-comm", "--features", "planaria-comm/mpi"] } else { &[] };
    for (package, features) in TESTED {
        let mut test = cargo(root, ["test", "--quiet", "--package", *package]);
        match run(test.args(*features).args(beside)).success {
            true => counts.passed += 1,
            false => counts.failed += 1,
        }
    }
    (if counts.failed == 0 { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// Checks the workspace with the oldest compiler promised; nothing is left to do where this run uses it.
pub(crate) fn oldest(root: &Path) -> (Outcome, Counts) {
    let none = Counts::default();
    let Some(promised) = promised(&std::fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default())
    else {
        eprintln!("error: Cargo.toml names no rust-version");
        return (Outcome::Failed, none);
    };
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = ask(Command::new(rustc).arg("--version")).unwrap_or_default();
    if minor(version.split(' ').nth(1).unwrap_or_default()) == minor(&promised) {
        eprintln!("every step runs on {version}, the oldest promised");
        return (Outcome::Passed, none);
    }
    let with = |args: &[&str]| {
        let mut command = Command::new("rustup");
        command.current_dir(root).args(["run", &promised, "cargo"]).args(args);
        command
    };
    if ask(&mut with(&["--version"])).is_none() {
        let reason =
            format!("this run uses {version}; `rustup toolchain install {promised}` would check that");
        return (Outcome::Skipped(reason), none);
    }
    let folder = root.join("target").join("oldest").display().to_string();
    let passed = run(&mut with(&["check", "--quiet", "--workspace", "--target-dir", &folder])).success;
    (if passed { Outcome::Passed } else { Outcome::Failed }, none)
}

fn promised(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("rust-version = "))?;
    line.split('"').nth(1).map(str::to_owned)
}

fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_first_two_numbers() {
        assert_eq!(minor("1.95.0"), minor("1.95"));
        assert_ne!(minor("1.96.0"), minor("1.95"));
        assert_eq!(minor("nightly"), None);
    }

    #[test]
    fn the_manifest_promises_a_version() {
        let manifest =
            std::fs::read_to_string(crate::repository_root().join("Cargo.toml")).unwrap_or_default();
        assert!(promised(&manifest).is_some_and(|version| minor(&version).is_some()));
    }
}
