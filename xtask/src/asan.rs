//! `cargo xtask asan`: the tests of the crates with unsafe code, under the address sanitizer or valgrind.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::summary::{Counts, Outcome, counts};
use crate::tidy::UNSAFE_FILES;
use crate::{mpi, process};

/// Integration tests that, with the unit tests, reach the unsafe code that needs neither an interpreter nor a GPU; the others would
/// only cost time.
const REACHING: &[&str] = &["products", "fuzz", "indexing", "views", "conformance", "container", "sockets"];

/// The package some of whose unsafe code only MPI ranks reach.
const RANKS: &str = "planaria-comm";

/// The packages with files in the unsafe list.
fn packages() -> BTreeSet<String> {
    let folders = UNSAFE_FILES.iter().filter_map(|file| file.strip_prefix("crates/")?.split('/').next());
    folders.map(|name| format!("planaria-{name}")).collect()
}

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
    let (outcome, _) = step(root, &Checker::find(), &mpi::find());
    if let Outcome::Skipped(reason) = &outcome {
        eprintln!("skipped: {reason}");
    }
    outcome != Outcome::Failed
}

/// Runs the checked tests as a step of the test command.
pub(crate) fn step(root: &Path, checker: &Checker, mpi: &Result<(), String>) -> (Outcome, Counts) {
    if let Checker::Missing(reason) = checker {
        return (Outcome::Skipped(reason.clone()), Counts::default());
    }
    let mut command = process::cargo(root, ["test", "--quiet", "--lib", "--no-fail-fast"]);
    for package in &packages() {
        command.args(["--package", package]);
    }
    command.args(REACHING.iter().flat_map(|name| ["--test", name]));
    let runner = "valgrind --quiet --error-exitcode=9";
    let ran = process::run(watch(root, &mut command, checker, runner));
    let mut counts = counts(&ran.output);
    let mut passed = ran.success && counts.failed == 0;
    match mpi {
        Ok(()) => {
            let mut ranks = process::cargo(root, ["run", "--quiet", "--example", "mpi_conformance"]);
            ranks.args(["--package", RANKS, "--features", "mpi"]);
            mpi::as_root(watch(root, &mut ranks, checker, "mpirun --oversubscribe -n 2 valgrind --quiet"));
            if *checker == Checker::Asan {
                // Not a leak of ours: MPI keeps what it allocates once.
                ranks.env("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=0");
                ranks.args(["--config", &runner_is("mpirun --oversubscribe -n 2")]);
            }
            let well = process::run(ranks.args(["--", "all"])).success;
            passed &= well;
            (counts.passed, counts.failed) =
                (counts.passed + u64::from(well), counts.failed + u64::from(!well));
        }
        Err(reason) => eprintln!("skipped: the MPI calls of {RANKS} need ranks: {reason}"),
    }
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// Lets `checker` watch what `command` builds and runs; `runner` is what starts a program under valgrind.
fn watch<'a>(root: &Path, command: &'a mut Command, checker: &Checker, runner: &str) -> &'a mut Command {
    // Fewer random cases: what is looked for here is a bad access, not a wrong number.
    command.env("PROPTEST_CASES", "16").env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "true");
    match std::env::current_exe() {
        Ok(wrapper) if *checker == Checker::Asan => {
            // Refused allocations are part of what is tested.
            command.env("ASAN_OPTIONS", "allocator_may_return_null=1");
            command.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(INSTRUMENT, "1")
        }
        _ => {
            command.arg("--target-dir").arg(process::target_folder(root).join("checked"));
            command.env("RUSTFLAGS", "--cfg planaria_checked").args(["--config", &runner_is(runner)])
        }
    }
}

fn runner_is(runner: &str) -> String {
    format!("target.'cfg(all())'.runner = {runner:?}")
}

/// Tells this program that cargo calls it in place of the compiler.
const INSTRUMENT: &str = "PLANARIA_INSTRUMENT";

/// Compiles one crate of the workspace with the sanitizer, if cargo called this program for that.
///
/// The flag is unstable in name only: the stable compiler ships the runtime and honours it under `RUSTC_BOOTSTRAP`,
/// which nothing but these calls sees (docs/adr/0004-memory-checks.md says why this way).
pub(crate) fn instrumented() -> Option<ExitCode> {
    std::env::var_os(INSTRUMENT)?;
    let mut args = std::env::args_os().skip(1);
    let mut compiler = Command::new(args.next()?);
    let args: Vec<_> = args.collect();
    let name = args.iter().position(|arg| arg == "--crate-name").and_then(|at| args.get(at + 1));
    compiler.args(&args);
    // Questions about the compiler name no crate, or this one; build scripts run outside of the sanitizer.
    if name.is_some_and(|name| name != "___" && name != "build_script_build") {
        compiler.env("RUSTC_BOOTSTRAP", "1").args(["-Zsanitizer=address", "--cfg=planaria_checked"]);
    }
    match compiler.status() {
        Ok(status) => Some(
            status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from),
        ),
        Err(error) => {
            eprintln!("error: cannot start the compiler: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_with_unsafe_code_is_checked() {
        let found = packages();
        for package in ["planaria-cpu", "planaria-array", "planaria-store", RANKS] {
            assert!(found.contains(package), "{package} is not among {found:?}");
        }
        // The project's own commands are no part of the product.
        for file in UNSAFE_FILES.iter().filter(|file| !file.starts_with("xtask/")) {
            assert!(file.starts_with("crates/"), "{file} belongs to no package that is checked");
        }
    }
}
