//! `cargo xtask test`: everything a change must pass, every step run even when an earlier one fails.

use std::cell::LazyCell;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::asan::{self, Checker};
use crate::process::{ask, cargo, run as execute, target_folder};
use crate::summary::{Counts, Outcome, Planned, Summary, counts};
use crate::{
    array_api, azure, browser, compilers, free_threaded, hosts, install, kernels, licences, mpi, peers,
    python, s3, tidy, wheel,
};

/// What the steps need from the machine.
struct Needs {
    formatter: bool,
    linter: bool,
    nextest: bool,
    checker: Checker,
    mpi: Result<(), String>,
}

/// Runs all steps, prints the closing table, and answers whether nothing failed. Additional steps, which install what they need,
/// are skipped, and said to be, once `within` is used up.
pub(crate) fn run(root: &Path, within: Duration) -> bool {
    let mut summary = Summary::within(within);
    let needs = preflight(root);
    checks(root, &needs, &mut summary);
    tests(root, &needs, &mut summary);
    programs(root, &needs, &mut summary);
    faces(root, &needs, &mut summary);
    others(root, &needs, &mut summary);
    print!("{}\n{}", summary.failures(), summary.table());
    summary.total().failed == 0
}

/// Finds or installs what the steps need and prints a table of it.
fn preflight(root: &Path) -> Needs {
    let component = |name: &str, tool: &str| {
        let found = || ask(cargo(root, [tool, "--version"]).env_remove("RUSTUP_TOOLCHAIN")).is_some();
        found() || (ask(Command::new("rustup").args(["component", "add", name])).is_some() && found())
    };
    let needs = Needs {
        formatter: component("rustfmt", "fmt"),
        linter: component("clippy", "clippy"),
        nextest: ask(&mut cargo(root, ["nextest", "--version"])).is_some(),
        checker: Checker::find(),
        mpi: mpi::find(),
    };
    let or = |found: bool, name: &str, otherwise: &str| {
        if found { name.to_owned() } else { format!("missing: {otherwise}") }
    };
    eprintln!("what the tests need    what is here");
    eprintln!(
        "formatter              {}",
        or(needs.formatter, "rustfmt", "`rustup component add rustfmt` failed")
    );
    eprintln!(
        "linter                 {}",
        or(needs.linter, "clippy", "`rustup component add clippy` failed")
    );
    eprintln!("test runner            {}", if needs.nextest { "cargo-nextest" } else { "cargo test" });
    eprintln!("memory checker         {}", needs.checker.describe());
    let reason = needs.mpi.as_ref().err();
    eprintln!("mpi                    {}", reason.map_or("mpirun".into(), |why| format!("missing: {why}")));
    eprintln!("torch, transformers    in a venv under target, made when its step comes (formats of others)");
    eprintln!(
        "paddle, onnxruntime    in a venv under target, made when its step comes (programs that others run)"
    );
    eprintln!("maturin, pytest        in a venv under target, made when its step comes (the Python package)");
    eprintln!("nvrtc                  in a venv under target, made when its step comes (CUDA kernels)");
    eprintln!(
        "chromium               installed by apt-get when its step comes, where that is allowed (the page of runs)"
    );
    eprintln!("hosts                  namespaces of this machine, where root and iproute2 are here");
    eprintln!("moto                   in a venv under target, made when its step comes (an S3 server)");
    eprintln!(
        "azurite                by npm in a folder under target, made when its step comes (an Azure server)"
    );
    needs
}

/// Lints; beside them, because they keep one and a half processors busy, the format and the rules of the tree.
fn checks(root: &Path, needs: &Needs, summary: &mut Summary) {
    let lints = || match needs.linter {
        true => command(
            cargo(root, ["clippy", "--workspace", "--all-targets", "--quiet"])
                .args(mpi::features(&needs.mpi))
                .args(["--", "-D", "warnings"]),
        ),
        false => skipped("clippy is not installed"),
    };
    let format = || match needs.formatter {
        true => command(&mut cargo(root, ["fmt", "--all", "--check"])),
        false => skipped("rustfmt is not installed"),
    };
    let tidy = || match tidy::run(root) {
        Ok(report) => {
            print!("{report}");
            verdict(report.is_clean(), Counts::default())
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            verdict(false, Counts::default())
        }
    };
    let others: Vec<Planned<'_>> = vec![
        ("format", Box::new(format)),
        ("tidy", Box::new(tidy)),
        ("install lines (checked, not run)", Box::new(|| install::step(root))),
        ("licences", Box::new(|| licences::step(root))),
        ("advisories", Box::new(|| licences::advisories(root))),
    ];
    summary.beside(vec![("lints", Box::new(lints))], others);
}

/// Unit and integration tests; beside them, because some of them wait, the model checker, the examples in the docs, and the docs
/// themselves.
fn tests(root: &Path, needs: &Needs, summary: &mut Summary) {
    let features = mpi::features(&needs.mpi);
    let build: &[&str] = match needs.nextest {
        true => &["nextest", "run", "--workspace", "--no-run", "--cargo-quiet"],
        false => &["test", "--workspace", "--lib", "--bins", "--tests", "--no-run", "--quiet"],
    };
    summary.step("tests build", || command(cargo(root, build).args(features)));
    let tests = || command(cargo(root, if needs.nextest { NEXTEST } else { LIBTEST }).args(features));
    let schedules = || {
        // Cargo builds for one command at a time: the tests first see that they are built.
        thread::sleep(Duration::from_secs(15));
        // With the other features, so that only the communicator is built anew.
        let shuttle = ["--features", "planaria-comm/shuttle", "--test", "shuttle"];
        command(cargo(root, ["test", "--quiet"]).args(features).args(shuttle))
    };
    let doctests =
        || command(cargo(root, ["test", "--workspace", "--doc", "--quiet", "--no-fail-fast"]).args(features));
    let docs = || {
        let mut docs = cargo(root, ["doc", "--workspace", "--no-deps", "--quiet"]);
        command(docs.args(features).env("RUSTDOCFLAGS", "-D warnings"))
    };
    let others: Vec<Planned<'_>> =
        vec![("schedules", Box::new(schedules)), ("doctests", Box::new(doctests)), ("docs", Box::new(docs))];
    summary.beside(vec![("tests", Box::new(tests))], others);
}

/// Additional: Python, ranks as processes, programs of others, buckets, browsers, hosts.
fn faces(root: &Path, needs: &Needs, summary: &mut Summary) {
    let features = mpi::features(&needs.mpi);
    let torch = LazyCell::new(|| peers::torch_python(root));
    let moto = LazyCell::new(|| s3::server(root));
    summary.more("python package", || wheel::step(root, &torch));
    summary.more("mpi", || mpi::step(root, &needs.mpi));
    summary.more("python", || python::step(root, features, &torch, python::SCRIPTS));
    summary.more("programs of others", || {
        python::step(root, features, &peers::program_python(root), python::PROGRAM_SCRIPTS)
    });
    summary.more("s3", || s3::step(root, features, s3::S3, &moto));
    summary.more("azure", || s3::step(root, features, s3::AZURE, &azure::server(root)));
    summary.more("page", || browser::step(root, features, &browser::find()));
    summary.more("hosts", || hosts::step(root, features, "", moto.as_deref().ok()));
}

/// Additional: other compilers, instruction sets, interpreters and devices, and memory checks.
fn others(root: &Path, needs: &Needs, summary: &mut Summary) {
    let features = mpi::features(&needs.mpi);
    summary.more("kernels", || kernels::compile_step(root, features));
    summary.more("emulated device", || kernels::emulate_step(root, features));
    summary.more("array api", || array_api::step(root, array_api::Examples::Few));
    paths(root, needs, summary);
    summary.more("mpi past 2^31", || mpi::huge_step(root, &needs.mpi));
    summary.more("features", || compilers::features(root, needs.mpi.is_ok()));
    summary.more("oldest compiler", || compilers::oldest(root));
    summary.more("free-threaded", || free_threaded::step(root));
    summary.more("memory", || asan::step(root, &needs.checker, &needs.mpi));
}

/// The kernels' tests again, held to each narrower set of instructions that this machine has.
fn paths(root: &Path, needs: &Needs, summary: &mut Summary) {
    for path in narrower_paths() {
        summary.more(format!("tests on {path}"), || {
            // The whole workspace is named so that what the step "tests" built is run again, not built again.
            let mut tests = match needs.nextest {
                true => {
                    let mut tests = cargo(root, NEXTEST);
                    tests
                        .args(mpi::features(&needs.mpi))
                        .args(["-E", "package(planaria-array) | package(planaria-cpu)"]);
                    tests
                }
                false => {
                    let mut tests = cargo(root, ["test", "--quiet", "--lib", "--tests", "--no-fail-fast"]);
                    tests.args(["-p", "planaria-array", "-p", "planaria-cpu"]);
                    tests
                }
            };
            command(tests.env("PLANARIA_CPU", path))
        });
    }
}

/// Values of `PLANARIA_CPU` below what kernels use here by themselves.
#[cfg(target_arch = "x86_64")]
fn narrower_paths() -> Vec<&'static str> {
    use std::arch::is_x86_feature_detected as has;
    const TILES: u32 = 1 << 24;
    let has_tiles = std::arch::x86_64::__cpuid_count(7, 0).edx & TILES != 0;
    let steps = [(has!("avx2"), "portable"), (has!("avx512f"), "avx2"), (has_tiles, "avx512")];
    steps.into_iter().take_while(|(higher, _)| *higher).map(|(_, path)| path).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn narrower_paths() -> Vec<&'static str> {
    Vec::new()
}

const NEXTEST: &[&str] = &[
    "nextest",
    "run",
    "--workspace",
    "--no-fail-fast",
    "--no-tests",
    "pass",
    "--status-level",
    "fail",
    "--failure-output",
    "final",
    "--cargo-quiet",
];
const LIBTEST: &[&str] = &["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast", "--quiet"];

/// Every example.
fn programs(root: &Path, needs: &Needs, summary: &mut Summary) {
    // Of the whole workspace, as the tests were built: for one package alone, other features build much of it anew.
    let build = ["build", "--workspace", "--examples", "--quiet"];
    summary.step("examples build", || command(cargo(root, build).args(mpi::features(&needs.mpi))));
    for name in examples(root) {
        let program = target_folder(root).join("debug/examples").join(&name);
        summary.step(format!("example {name}"), || command(Command::new(program).current_dir(root)));
    }
}

fn examples(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join("examples")).into_iter().flatten().flatten();
    let name =
        |file: std::fs::DirEntry| Some(file.file_name().to_string_lossy().strip_suffix(".rs")?.to_owned());
    let mut names: Vec<_> = entries.filter_map(name).collect();
    names.sort();
    names
}

fn command(command: &mut Command) -> (Outcome, Counts) {
    let ran = execute(command);
    let counts = counts(&ran.output);
    verdict(ran.success && counts.failed == 0, counts)
}

fn verdict(passed: bool, counts: Counts) -> (Outcome, Counts) {
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

fn skipped(reason: &str) -> (Outcome, Counts) {
    (Outcome::Skipped(reason.into()), Counts::default())
}
