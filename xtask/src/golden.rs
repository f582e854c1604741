//! `cargo xtask golden KIND PATH`: runs oracle cases from any path through the golden package.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::process;
use crate::summary::{Counts, Outcome, counts};

/// Runs the cases with the terminal attached and hands the exit code on.
pub(crate) fn run(root: &Path, kind: &str, path: &Path, assets: Option<&Path>) -> ExitCode {
    // The path is the caller's, so the runner starts in the caller's folder.
    let here = std::env::current_dir().unwrap_or_else(|_| root.to_path_buf());
    let mut command = command(root, &[], kind, path);
    if let Some(assets) = assets {
        command.arg("--assets").arg(assets);
    }
    match command.current_dir(here).status() {
        Ok(status) => {
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        Err(error) => {
            eprintln!("error: cannot start cargo: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the cases as a step of the test command.
pub(crate) fn step(root: &Path, features: &[&str], kind: &str, path: &Path) -> (Outcome, Counts) {
    let ran = process::run(&mut command(root, features, kind, path));
    let counts = counts(&ran.output);
    if ran.success && counts.passed > 0 && counts.failed == 0 {
        return (Outcome::Passed, counts);
    }
    if ran.success && counts == Counts::default() {
        eprintln!("the runner printed no `N passed, M failed` line");
    }
    (Outcome::Failed, counts)
}

/// Kinds whose cases are a folder each: `testdata/KIND/`.
const FOLDERS: &[&str] = &[
    "embeddings",
    "lora",
    "merge",
    "paddle-checkpoints",
    "paddle-programs",
    "pipeline",
    "qwen2-vl",
    "rl",
    "sft",
    "torch-dcp",
];

/// The public cases: `testdata/KIND.jsonl.gz`, or one of [`FOLDERS`].
pub(crate) fn public_cases(root: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(root.join("testdata")).into_iter().flatten().flatten();
    let mut cases: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let folder = FOLDERS.contains(&name.as_str()).then_some(name.as_str());
            let kind = name.strip_suffix(".jsonl.gz").or(folder)?.to_owned();
            Some((kind, Path::new("testdata").join(&name)))
        })
        .collect();
    cases.sort();
    cases
}

fn command(root: &Path, features: &[&str], kind: &str, path: &Path) -> Command {
    // The dev profile optimises the kernels and is what the tests have built already.
    let mut command = process::cargo(root, ["run", "--quiet", "--bin", "planaria-golden"]);
    command.args(features).arg("--manifest-path").arg(root.join("Cargo.toml")).args(["--", kind]).arg(path);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_public_cases_are_found() {
        let kinds: Vec<_> =
            public_cases(&crate::repository_root()).into_iter().map(|(kind, _)| kind).collect();
        for kind in [
            "indexing",
            "lora",
            "merge",
            "reshard",
            "paddle-checkpoints",
            "paddle-programs",
            "pipeline",
            "sft",
            "torch-dcp",
        ] {
            assert!(kinds.iter().any(|found| found == kind), "{kind} is not among {kinds:?}");
        }
    }
}
