//! CUDA kernels without a GPU: compiled for real by NVRTC from a wheel, and run as C++ under an emulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mpi;
use crate::process::{ask, cargo, run};
use crate::summary::{Counts, Outcome};

/// The compiler, as pip names it.
const COMPILER: &str = "nvidia-cuda-nvrtc==13.0.88";

/// What the emulated device calls itself.
const EMULATED: &str = "sm_70";

/// Where archives go.
fn folder(root: &Path) -> PathBuf {
    root.join("target").join("kernels")
}

/// Compiles, then runs, by themselves; answers whether nothing failed.
pub(crate) fn run_alone(root: &Path) -> bool {
    let features = mpi::features(&mpi::find());
    let outcomes = [compile_step(root, features), emulate_step(root, features)];
    for (outcome, counts) in &outcomes {
        match outcome {
            Outcome::Skipped(reason) => eprintln!("skipped: {reason}"),
            _ => println!("{} passed, {} failed", counts.passed, counts.failed),
        }
    }
    !outcomes.iter().any(|(outcome, _)| matches!(outcome, Outcome::Failed))
}

/// Compiles every kernel with every set of defines into `target/kernels/kernels.bin`.
pub(crate) fn compile_step(root: &Path, features: &[&str]) -> (Outcome, Counts) {
    let libraries = match compiler(root) {
        Ok(libraries) => libraries,
        Err(reason) => return (Outcome::Skipped(reason), Counts::default()),
    };
    let out = folder(root).join("kernels.bin");
    if let Err(error) = std::fs::create_dir_all(folder(root)) {
        eprintln!("error: cannot create {}: {error}", folder(root).display());
        return (Outcome::Failed, Counts::default());
    }
    let mut ours = example(root, features, "kernels");
    let ran = run(ours.arg(&out).env("PLANARIA_NVRTC", &libraries));
    let built =
        ran.output.lines().filter(|line| line.contains(" registers, ") || line.contains(": kept, ")).count();
    let counts = Counts { passed: built as u64, failed: u64::from(!ran.success) };
    (if ran.success && built > 0 { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// Builds the kernels as C++ and runs the self-test on the emulated device.
pub(crate) fn emulate_step(root: &Path, features: &[&str]) -> (Outcome, Counts) {
    for tool in ["g++", "python3"] {
        if ask(Command::new(tool).arg("--version")).is_none() {
            return (Outcome::Skipped(format!("{tool} was not found")), Counts::default());
        }
    }
    let (folder, failed) = (folder(root).join("emulated"), (Outcome::Failed, Counts::default()));
    let list = run(example(root, features, "kernels").args(["--list", EMULATED]));
    let lines: Vec<&str> = list.output.lines().filter(|line| line.split('\t').count() == 3).collect();
    let path = folder.join("builds.txt");
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, lines.join("\n")));
    if !list.success || written.is_err() {
        return failed;
    }
    let sources = root.join("crates").join("array").join("src").join("cuda").join("kernels");
    let script = root.join("crates").join("cuda").join("emulator").join("build.py");
    if !run(Command::new("python3").arg(script).args([&folder, &sources, &path])).success {
        return failed;
    }
    let archive = folder.join("kernels.bin");
    if !run(example(root, features, "kernels").arg("--pack").args([&folder, &archive]).arg(EMULATED)).success
    {
        return failed;
    }
    let mut ours = cargo(root, ["run", "--quiet", "--bin", "planaria"]);
    ours.args(features).args(["--", "selftest", "--device", "cuda:0"]);
    let ran = run(ours.env("LD_LIBRARY_PATH", &folder).env("PLANARIA_KERNELS", &archive));
    let number = |name: &str| -> u64 {
        let before = |line: &str| line.split(name).next()?.split_whitespace().last()?.parse::<u64>().ok();
        ran.output.lines().filter(|line| line.contains(" passed ")).filter_map(before).sum()
    };
    // Models and whole runs beside the host's.
    let mut tests = cargo(root, ["test", "--quiet", "--workspace", "--test", "device"]);
    tests.args(features).env("LD_LIBRARY_PATH", &folder).env("PLANARIA_KERNELS", &archive);
    let runs = run(tests.env("PLANARIA_DEVICE", "cuda:0").env("PLANARIA_EMULATED_DEVICES", "2")).success;
    let counts =
        Counts { passed: number(" passed") + u64::from(runs), failed: number(" failed") + u64::from(!runs) };
    (if ran.success && runs && counts.passed > 0 { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// With the features of the other steps, and no package selected: what those steps built serves here too.
fn example(root: &Path, features: &[&str], name: &str) -> Command {
    let mut command = cargo(root, ["run", "--quiet", "--example", name]);
    command.args(features).arg("--");
    command
}

/// The folder of the compiler's libraries, installed when missing.
fn compiler(root: &Path) -> Result<PathBuf, String> {
    let venv = root.join("target").join("venv-nvrtc");
    let find = || {
        let lib = std::fs::read_dir(venv.join("lib")).ok()?.flatten().next()?;
        let vendor = lib.path().join("site-packages").join("nvidia");
        let folders = std::fs::read_dir(vendor).ok()?.flatten().map(|entry| entry.path().join("lib"));
        folders.into_iter().find(|folder| folder.join("libnvrtc.so.13").is_file())
    };
    if let Some(folder) = find() {
        return Ok(folder);
    }
    if !run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).success {
        return Err("python3 -m venv failed; install python3 with its venv module".into());
    }
    let python = venv.join("bin").join("python");
    run(Command::new(python).args(["-m", "pip", "install", "--quiet", COMPILER]));
    find().ok_or_else(|| format!("pip install {COMPILER} failed"))
}
