//! `cargo xtask asan`: the tests of the crates with unsafe code, under the address sanitizer or valgrind.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process;
use crate::summary::{Counts, Outcome, counts};

/// Packages with files in the unsafe list; their tests run.
const PACKAGES: &[&str] = &["planaria-array"];

/// Packages compiled with the sanitizer.
const INSTRUMENTED: &[&str] = &["planaria-layout", "planaria-array"];

/// Integration tests that, with the unit tests, reach every listed unsafe file; the others would only cost time.
const REACHING: &[&str] = &["fuzz", "indexing", "views"];

/// What checks memory accesses on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Checker {
    /// The address sanitizer, whose runtime ships with the compiler on most targets.
    Asan,
    /// valgrind, which knows no AVX-512: there the kernels take their narrower paths.
    Valgrind,
    /// Nothing, for this reason.
    Missing(String),
}

impl Checker {
    /// The best one at hand.
    pub(crate) fn find() -> Self {
        let rustc = || Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let version = process::ask(rustc().arg("-vV")).unwrap_or_default();
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
        let libraries = process::ask(rustc().args(["--print", "target-libdir"])).unwrap_or_default();
        let has_runtime = std::fs::read_dir(&libraries).is_ok_and(|mut files| {
            files.any(|file| file.is_ok_and(|f| f.file_name().to_string_lossy().contains("rt.asan")))
        });
        if has_runtime {
            return Self::Asan;
        }
        if process::ask(Command::new("valgrind").arg("--version")).is_some() {
            return Self::Valgrind;
        }
        Self::Missing(format!(
            "no sanitizer runtime for {host} beside rustc and no valgrind; install valgrind"
        ))
    }

    /// One line for the table of needs.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Asan => "address sanitizer of rustc".into(),
            Self::Valgrind => "valgrind".into(),
            Self::Missing(reason) => format!("missing: {reason}"),
        }
    }
}

/// Runs the checked tests; answers whether they passed.
pub(crate) fn run(root: &Path) -> bool {
    let (outcome, _) = step(root, &Checker::find());
    if let Outcome::Skipped(reason) = &outcome {
        eprintln!("skipped: {reason}");
    }
    outcome != Outcome::Failed
}

/// Runs the checked tests as a step of the test command.
pub(crate) fn step(root: &Path, checker: &Checker) -> (Outcome, Counts) {
    let mut command = process::cargo(root, ["test", "--quiet", "--lib", "--no-fail-fast"]);
    for name in REACHING {
        command.args(["--test", name]);
    }
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    command.arg("--target-dir").arg(target_folder(root).join("checked"));
    // Fewer random cases: what is looked for here is a bad access, not a wrong number.
    command.env("PROPTEST_CASES", "16");
    match checker {
        Checker::Asan => sanitize(&mut command),
        Checker::Valgrind => {
            command.env("RUSTFLAGS", "--cfg planaria_checked");
            command
                .args(["--config", r#"target.'cfg(all())'.runner = "valgrind --quiet --error-exitcode=9""#]);
        }
        Checker::Missing(reason) => return (Outcome::Skipped(reason.clone()), Counts::default()),
    }
    let ran = process::run(&mut command);
    let counts = counts(&ran.output);
    let passed = ran.success && counts.failed == 0;
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// Turns the sanitizer on for the packages it is about. The flags are unstable in name only: the stable compiler
/// ships the runtime and honours them under `RUSTC_BOOTSTRAP` (docs/adr/0004-memory-checks.md says why this way).
fn sanitize(command: &mut Command) {
    command.env("RUSTC_BOOTSTRAP", "1").arg("-Zprofile-rustflags");
    // Refused allocations are part of what is tested.
    command.env("ASAN_OPTIONS", "allocator_may_return_null=1");
    for package in INSTRUMENTED {
        let flags = r#"["-Zsanitizer=address", "--cfg=planaria_checked"]"#;
        command.args(["--config", &format!("profile.dev.package.{package}.rustflags = {flags}")]);
    }
}

fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}
