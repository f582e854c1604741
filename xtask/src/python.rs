//! What other programs make of our files: the scripts in `tests/python` and `tests/programs`, each run with our command as
//! its argument.

use std::path::{Path, PathBuf};

use crate::array_api;
use crate::free_threaded;
use crate::peers;
use crate::process::{cargo, run};
use crate::summary::{Counts, Outcome, counts};
use crate::wheel;

/// Where the scripts are that open files.
pub(crate) const SCRIPTS: &str = "python";

/// Where the scripts are that run programs.
pub(crate) const PROGRAM_SCRIPTS: &str = "programs";

/// Runs the tests of the package, of its namespace and of its module without a lock, and the scripts by themselves; answers whether nothing failed.
pub(crate) fn run_alone(root: &Path) -> bool {
    let torch = peers::torch_python(root);
    let steps = [
        wheel::step(root, &torch),
        array_api::step(root, array_api::Examples::Few),
        free_threaded::step(root),
        step(root, &[], &torch, SCRIPTS),
        step(root, &[], &peers::program_python(root), PROGRAM_SCRIPTS),
    ];
    for (outcome, counts) in &steps {
        match outcome {
            Outcome::Skipped(reason) => eprintln!("skipped: {reason}"),
            _ => println!("{} passed, {} failed", counts.passed, counts.failed),
        }
    }
    steps.iter().all(|(outcome, _)| !matches!(outcome, Outcome::Failed))
}

/// Runs every script; skipped with the reason where there is no interpreter with what they import.
pub(crate) fn step(
    root: &Path,
    features: &[&str],
    python: &Result<PathBuf, String>,
    folder: &str,
) -> (Outcome, Counts) {
    let python = match python {
        Ok(python) => python,
        Err(reason) => return (Outcome::Skipped(reason.clone()), Counts::default()),
    };
    let mut total = Counts::default();
    let mut passed = true;
    for script in scripts(root, folder) {
        let out = root.join("target").join("python-out");
        let _ = std::fs::remove_dir_all(&out);
        if let Err(error) = std::fs::create_dir_all(&out) {
            eprintln!("error: cannot create {}: {error}", out.display());
            return (Outcome::Failed, total);
        }
        // As the runner of our command, the script gets the path of the command first.
        let runner = format!("target.'cfg(all())'.runner = [{:?}, {:?}]", text(python), text(&script));
        let mut ours = cargo(root, ["run", "--quiet", "--bin", "planaria", "--config", &runner]);
        let ran = run(ours.args(features).arg("--").arg(root.join("testdata")).arg(&out));
        let found = counts(&ran.output);
        // A script that says why it compares nothing is no failure, and no success either.
        let skips = ran.output.lines().any(|line| line.starts_with("skipped: "));
        passed &= ran.success && found.failed == 0 && (found.passed > 0 || skips);
        total.passed += found.passed;
        total.failed += found.failed;
    }
    (if passed { Outcome::Passed } else { Outcome::Failed }, total)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn scripts(root: &Path, folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("tests").join(folder)).into_iter().flatten().flatten();
    let mut scripts: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "py"))
        .collect();
    scripts.sort();
    scripts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_are_found() {
        for (folder, script) in [(SCRIPTS, "formats.py"), (PROGRAM_SCRIPTS, "validate.py")] {
            let found = scripts(&crate::repository_root(), folder);
            assert!(found.iter().any(|path| path.ends_with(script)), "{found:?}");
        }
    }
}
