//! The Python package: a wheel built as its users build it, installed in a venv of its own, and its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mpi;
use crate::process::{ask, run};
use crate::summary::{Counts, Outcome};

/// What builds and tests the package; torch and transformers come from the interpreter of the peers.
const PACKAGES: &[&str] =
    &["maturin==1.16.0", "pytest==9.2.0", "numpy==2.4.6", "ml_dtypes==0.6.0", "mypy==2.4.1"];

/// What some tests need and skip without: types, notebooks, pictures, the array API suite.
const EXTRAS: &[&str] = &[
    "pyright==1.1.414",
    "nbclient==0.11.0",
    "ipykernel==7.4.0",
    "matplotlib==3.11.2",
    "hypothesis==6.170.15",
    "ndindex==1.10.1",
];

/// Builds the wheel and runs the tests; skipped with the reason where there is no Python.
pub(crate) fn step(root: &Path, torch: &Result<PathBuf, String>) -> (Outcome, Counts) {
    let python = match venv(root, torch) {
        Ok(python) => python,
        Err(reason) => return (Outcome::Skipped(reason), Counts::default()),
    };
    if !build(root, &python, Build::Test) {
        return (Outcome::Failed, Counts { passed: 0, failed: 1 });
    }
    let mut tests = Command::new(&python);
    // Outside the source tree, so that what is tested is what was installed.
    tests.current_dir(root.join("target")).args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]);
    let ran = run(tests.arg(root.join("python").join("tests")));
    let counts = pytest_counts(&ran.output);
    let passed = ran.success && counts.failed == 0 && counts.passed > 0;
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// The interpreter of a venv with everything but the package itself.
pub(crate) fn venv(root: &Path, torch: &Result<PathBuf, String>) -> Result<PathBuf, String> {
    let venv = root.join("target").join("venv-python");
    let python = venv.join("bin").join("python");
    let extras = venv.join("extras");
    let listed = EXTRAS.join(" ");
    let tools = "import maturin, pytest, numpy, ml_dtypes, mypy, sys; assert sys.version_info >= (3, 11)";
    let complete = || ask(Command::new(&python).args(["-c", tools])).is_some();
    if !complete() {
        if !run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).success {
            return Err("python3 -m venv failed; install Python 3.11 or later with its venv module".into());
        }
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES));
        if !complete() {
            return Err(format!("pip install {} failed, or Python is older than 3.11", PACKAGES.join(" ")));
        }
    }
    // Tried once for each list: what the registry lacks, tests skip by name.
    if std::fs::read_to_string(&extras).ok().as_deref() != Some(&listed) {
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(EXTRAS));
        let _ = std::fs::write(&extras, listed);
    }
    if let Ok(torch) = torch {
        borrow(&python, torch);
    }
    Ok(python)
}

/// Builds a wheel for others into `target/wheels`, against the C library of 2014 by way of zig; answers whether that worked.
pub(crate) fn release(root: &Path) -> bool {
    let python = match venv(root, &Err("not needed".into())) {
        Ok(python) => python,
        Err(reason) => {
            eprintln!("error: {reason}");
            return false;
        }
    };
    let zig = Command::new(&python).args(["-m", "pip", "install", "--quiet", ZIG]).status();
    if !zig.is_ok_and(|status| status.success()) {
        eprintln!("error: pip install {ZIG} failed");
        return false;
    }
    let mut maturin = Command::new(&python);
    maturin.current_dir(root).args(["-m", "maturin", "build", "--release", "--zig"]);
    run(maturin.args(["--compatibility", "manylinux2014", "--out"]).arg(root.join("target").join("wheels")))
        .success
}

/// The linker of wheels for others.
const ZIG: &str = "ziglang==0.17.0";

/// Lets the venv see the packages of the interpreter with torch, behind its own: torch is too large to have twice.
fn borrow(python: &Path, torch: &Path) {
    let place = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"];
    if let (Some(own), Some(theirs)) =
        (ask(Command::new(python).args(place)), ask(Command::new(torch).args(place)))
        && let Err(error) = std::fs::write(Path::new(&own).join("torch-peer.pth"), theirs)
    {
        eprintln!("error: cannot write to {own}: {error}");
    }
}

/// How a wheel is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// As the tests of the crates are: where there is MPI with it, so that the crates are not built anew.
    Test,
    /// As users of this machine have it.
    Release,
}

/// Builds the wheel and installs it.
pub(crate) fn build(root: &Path, python: &Path, how: Build) -> bool {
    let wheels = root.join("target").join("wheels");
    let _ = std::fs::remove_dir_all(&wheels);
    let mut maturin = Command::new(python);
    maturin.current_dir(root).args(["-m", "maturin", "build", "--quiet", "--out"]).arg(&wheels);
    match how {
        Build::Release => drop(maturin.arg("--release")),
        // What is installed on this machine is not packed into the wheel, which stays here.
        Build::Test if mpi::is_here() => drop(maturin.args(["--features", "mpi", "--auditwheel", "skip"])),
        Build::Test => {}
    }
    if !run(&mut maturin).success {
        return false;
    }
    let found = std::fs::read_dir(&wheels).into_iter().flatten().flatten().map(|entry| entry.path());
    let Some(wheel) = found.filter(|path| path.extension().is_some_and(|e| e == "whl")).min() else {
        eprintln!("error: maturin left no wheel in {}", wheels.display());
        return false;
    };
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]);
    run(pip.arg(wheel)).success
}

/// The numbers of pytest's last line: `2 failed, 30 passed, 1 skipped in 3.21s`.
pub(crate) fn pytest_counts(output: &str) -> Counts {
    let Some(line) = output.lines().rev().find(|line| line.contains(" in ") && line.contains("passed"))
    else {
        return Counts { passed: 0, failed: 1 };
    };
    let line = line.trim_matches(|c: char| c == '=' || c == ' ');
    let list = line.split(" in ").next().unwrap_or_default();
    let number = |label: &str| {
        let words = list.split(", ").filter_map(|item| item.split_once(' '));
        words.filter(|(_, word)| *word == label).filter_map(|(n, _)| n.parse::<u64>().ok()).sum::<u64>()
    };
    Counts { passed: number("passed"), failed: number("failed") + number("error") + number("errors") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_pytest() {
        let cases = [
            ("30 passed in 3.21s", 30, 0),
            ("===== 2 failed, 30 passed, 1 skipped in 3.21s =====", 30, 2),
            ("1 failed, 3 passed, 2 errors in 0.5s", 3, 3),
            ("no tests ran", 0, 1),
        ];
        for (line, passed, failed) in cases {
            assert_eq!(pytest_counts(line), Counts { passed, failed }, "{line}");
        }
    }
}
