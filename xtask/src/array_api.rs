//! The conformance suite of the array API standard, on the installed package.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::run;
use crate::summary::{Counts, Outcome};
use crate::wheel;

/// Names a checkout of data-apis/array-api-tests, with its submodule `array-api` in it.
const CHECKOUT: &str = "PLANARIA_ARRAY_API_TESTS";

/// How many inputs are tried for each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Examples {
    /// For every run of the test command.
    Few,
    /// As the suite does by itself.
    Many,
}

/// Runs the suite by itself, on a wheel that is built first; answers whether nothing failed.
pub(crate) fn run_alone(root: &Path) -> bool {
    let built = wheel::venv(root, &Err("not needed".into()));
    match built {
        Ok(python) if wheel::build(root, &python, wheel::Build::Test) => {}
        Ok(_) => return false,
        Err(reason) => {
            eprintln!("skipped: {reason}");
            return true;
        }
    }
    let (outcome, counts) = step(root, Examples::Many);
    match outcome {
        Outcome::Skipped(reason) => eprintln!("skipped: {reason}"),
        _ => println!("{} passed, {} failed", counts.passed, counts.failed),
    }
    counts.failed == 0
}

/// Runs the suite on the package that the step before installed.
pub(crate) fn step(root: &Path, examples: Examples) -> (Outcome, Counts) {
    let skipped = |reason: String| (Outcome::Skipped(reason), Counts::default());
    let Some(checkout) = std::env::var_os(CHECKOUT).map(PathBuf::from) else {
        return skipped(format!("{CHECKOUT} names no checkout of data-apis/array-api-tests"));
    };
    let python = root.join("target").join("venv-python").join("bin").join("python");
    if !python.exists() {
        return skipped("the package was not built".into());
    }
    let none = root.join("python").join("tests").join("array_api_xfails.txt");
    let mut suite = Command::new(&python);
    suite.current_dir(&checkout).args(["-m", "pytest", "-q", "-p", "array_api_plugin", "array_api_tests"]);
    suite.args(["--disable-extension", "fft", "linalg", "--xfails-file"]).arg(none);
    if examples == Examples::Few {
        suite.args(["--max-examples", "3"]);
    }
    suite
        .env("PYTHONPATH", root.join("python").join("tests"))
        .env("ARRAY_API_TESTS_MODULE", "planaria.array_api")
        .env("ARRAY_API_TESTS_VERSION", "2025.12")
        .env("ARRAY_API_TESTS_SKIP_DTYPES", "complex64,complex128");
    let ran = run(&mut suite);
    let counts = wheel::pytest_counts(&ran.output);
    let passed = ran.success && counts.failed == 0 && counts.passed > 0;
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}
