//! The Python module for interpreters without a lock: it must compile for them, and its tests run where there is one.

use std::path::Path;
use std::process::Command;

use crate::process::{ask, cargo, run};
use crate::summary::{Counts, Outcome};

/// What a wheel is made for, the interpreter as pyo3 is told of it, and features of ours.
const TARGETS: &[(&str, &str, &[&str])] = &[
    // The first without a lock that pyo3 knows; it has no stable interface.
    ("cp314-cp314t", "version=3.14", &[]),
    // The stable interface of those that follow.
    ("abi3t-py315", "version=3.15", &["--features", "planaria-py/abi3t"]),
];

/// Compiles the module for every target; no interpreter is needed for that.
pub(crate) fn step(root: &Path) -> (Outcome, Counts) {
    let mut counts = Counts::default();
    for (name, version, features) in TARGETS {
        let told = root.join("target").join(format!("{name}.pyo3"));
        let text = format!(
            "implementation=CPython\n{version}\nshared=true\npointer_width=64\nbuild_flags=Py_GIL_DISABLED\n\
             suppress_build_script_link_lines=true\n"
        );
        if let Err(error) = std::fs::write(&told, text) {
            eprintln!("error: cannot write {}: {error}", told.display());
            return (Outcome::Failed, counts);
        }
        // The whole workspace is named so that what the step "features" checked is used again.
        let mut check = cargo(root, ["check", "--quiet", "--workspace", "--lib", "--bins"]);
        match run(check.args(*features).env("PYO3_CONFIG_FILE", &told)).success {
            true => counts.passed += 1,
            false => counts.failed += 1,
        }
    }
    match interpreter() {
        Ok(python) => match tested(root, &python) {
            true => counts.passed += 1,
            false => counts.failed += 1,
        },
        Err(reason) => eprintln!("skipped: the tests without a lock: {reason}"),
    }
    (if counts.failed == 0 { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// What the tests need; those of torch are skipped, which is too large to have twice.
const PACKAGES: &[&str] = &["maturin==1.16.0", "pytest==9.2.0", "numpy==2.4.6"];

/// What some skip without, where there is none for this interpreter.
const EXTRA: &str = "ml_dtypes==0.6.0";

/// Builds the wheel for an interpreter without a lock and runs the package's tests on it.
fn tested(root: &Path, python: &str) -> bool {
    let (venv, wheels) = (root.join("target/venv-free-threaded"), root.join("target/wheels-free-threaded"));
    let own = venv.join("bin").join("python");
    let pip = |packages: &[&str]| {
        run(Command::new(&own).args(["-m", "pip", "install", "--quiet"]).args(packages)).success
    };
    if !run(Command::new(python).args(["-m", "venv"]).arg(&venv)).success || !pip(PACKAGES) {
        return false;
    }
    pip(&[EXTRA]);
    let _ = std::fs::remove_dir_all(&wheels);
    let mut maturin = Command::new(&own);
    maturin.current_dir(root).args(["-m", "maturin", "build", "--quiet", "--interpreter"]).arg(&own);
    if !run(maturin.arg("--out").arg(&wheels)).success {
        return false;
    }
    let mut install = Command::new(&own);
    install.args(["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", "--no-index"]);
    if !run(install.arg("--find-links").arg(&wheels).arg("planaria")).success {
        return false;
    }
    let mut tests = Command::new(&own);
    // Outside the source tree, so that what is tested is what was installed.
    tests.current_dir(root.join("target")).args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    run(tests.arg("-rs").arg(root.join("python/tests"))).success
}

/// An interpreter without a lock, or why none was found.
fn interpreter() -> Result<String, String> {
    let lockless =
        "import sys, sysconfig; assert sysconfig.get_config_var('Py_GIL_DISABLED'); print(sys.executable)";
    let names = ["python3.14t", "python3.15t", "python3t"];
    let found = names.into_iter().find_map(|name| ask(Command::new(name).args(["-c", lockless])));
    found.ok_or_else(|| format!("no interpreter without a lock: none of {} is on the path", names.join(", ")))
}
