//! The communicator tests that need several processes: the conformance suite under `mpirun`.

use std::path::Path;
use std::process::Command;

use crate::libclang;
use crate::process::{Ran, ask, cargo, run};
use crate::summary::{Counts, Outcome};

/// What Debian and its kin call what is needed.
const PACKAGES: &[&str] = &["openmpi-bin", "libopenmpi-dev", "libclang-dev"];

/// Parts of the suite, the numbers of ranks they run with, and how they must end.
const PARTS: &[(&str, &[usize], End)] = &[
    ("all", &[2, 3, 4], End::Well),
    ("pieces", &[3], End::Well),
    ("timeout", &[3], End::AsExpected),
    ("panic", &[3], End::AsExpected),
    ("mismatch", &[3], End::AsExpected),
];

/// How a part must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With exit code 0.
    Well,
    /// Every rank fails and says that it failed as it should; `mpirun` then ends badly.
    AsExpected,
}

/// The cases that tensors carry out on MPI ranks.
const RESHARDS: &str = "testdata/reshard.jsonl.gz";

/// How many random checkpoints MPI ranks save and load.
const CHECKPOINTS: &str = "12";

/// What turns MPI on wherever there is code for it. With it every step builds, lints and tests, where MPI is found:
/// one build serves them all.
const FEATURES: &str = "planaria/mpi,planaria-ckpt/mpi,planaria-cli/mpi,planaria-comm/mpi,planaria-e2e/mpi,planaria-golden/mpi,planaria-pipeline/mpi,planaria-train/mpi";

/// Training jobs whose ranks are killed or told to stop, and where they run.
const JOBS: &[(&str, &str)] = &[("mpi_restart", "target/mpi-restart"), ("mpi_signals", "target/mpi-signals")];

/// What every rank of a failing part prints.
const EXPECTED: &str = "ended as expected";

/// Finds MPI, or installs it where this process may.
pub(crate) fn find() -> Result<(), String> {
    if is_here() {
        return Ok(());
    }
    let may_install = ask(Command::new("id").arg("-u")).as_deref() == Some("0")
        && ask(Command::new("apt-get").arg("--version")).is_some();
    if !may_install {
        return Err(format!("no MPI here; install {}", PACKAGES.join(" ")));
    }
    let installed = run(Command::new("apt-get").args(["install", "-y", "-qq"]).args(PACKAGES)).success;
    match installed && is_here() {
        true => Ok(()),
        false => Err(format!("apt-get install {} failed", PACKAGES.join(" "))),
    }
}

/// Whether programs can be built with MPI and started.
pub(crate) fn is_here() -> bool {
    let runs = |tool: &&str| ask(Command::new(tool).arg("--version")).is_some();
    ["mpirun", "mpicc"].iter().all(runs) && libclang::is_here()
}

/// Arguments for the cargo commands of all steps.
pub(crate) fn features(found: &Result<(), String>) -> &'static [&'static str] {
    match found {
        Ok(()) => &["--features", FEATURES],
        Err(_) => &[],
    }
}

/// Runs the suite with several numbers of ranks, then tensors, checkpoints, pipelines and training jobs.
pub(crate) fn step(root: &Path, found: &Result<(), String>) -> (Outcome, Counts) {
    if let Err(reason) = found {
        return (Outcome::Skipped(reason.clone()), Counts::default());
    }
    let mut counts = Counts::default();
    let mut count = |passed: bool| match passed {
        true => counts.passed += 1,
        false => counts.failed += 1,
    };
    for (part, sizes, end) in PARTS {
        for ranks in *sizes {
            let ran = under_mpirun(root, "mpi_conformance", *ranks, part);
            count(ended(&ran, *end, *ranks));
        }
    }
    count(under_mpirun(root, "mpi_tensors", 4, RESHARDS).success);
    for ranks in [2, 4] {
        count(under_mpirun(root, "mpi_checkpoint", ranks, CHECKPOINTS).success);
    }
    count(under_mpirun(root, "mpi_pipeline", 3, "5").success);
    count(under_mpirun(root, "mpi_train", 4, "target/mpi-train").success);
    let command = ["build", "--quiet", "--bin", "planaria", "--features", FEATURES];
    let built = run(&mut cargo(root, command)).success;
    for (example, folder) in JOBS {
        let mut job = cargo(root, ["run", "--quiet", "--example", example, "--features", FEATURES]);
        count(built && run(job.args(["--", folder])).success);
    }
    (if counts.failed == 0 { Outcome::Passed } else { Outcome::Failed }, counts)
}

/// Free memory that the transfers past 2^31 elements need: two ranks, with what they hold and what is under way.
const HUGE_GIB: u64 = 12;

/// Transfers of more elements than an `int` counts, where the machine has room for them.
pub(crate) fn huge_step(root: &Path, found: &Result<(), String>) -> (Outcome, Counts) {
    if let Err(reason) = found.clone().and_then(|()| roomy(free_gib())) {
        return (Outcome::Skipped(reason), Counts::default());
    }
    let passed = under_mpirun(root, "mpi_conformance", 2, "huge").success;
    let counts = Counts { passed: u64::from(passed), failed: u64::from(!passed) };
    (if passed { Outcome::Passed } else { Outcome::Failed }, counts)
}

fn roomy(free: Option<u64>) -> Result<(), String> {
    match free {
        Some(free) if free >= HUGE_GIB => Ok(()),
        Some(free) => Err(format!("needs {HUGE_GIB} GiB of free memory, {free} here")),
        None => {
            Err(format!("needs {HUGE_GIB} GiB of free memory; this system does not tell how much it has"))
        }
    }
}

/// What the system says it can give without swapping.
fn free_gib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? >> 20)
}

/// Runs an example as several processes.
fn under_mpirun(root: &Path, example: &str, ranks: usize, argument: &str) -> Ran {
    let runner = format!(r#"target.'cfg(all())'.runner = ["mpirun", "--oversubscribe", "-n", "{ranks}"]"#);
    let mut suite = cargo(root, ["run", "--quiet", "--example", example, "--config", &runner]);
    run(as_root(suite.args(["--features", FEATURES, "--", argument])))
}

/// In a container everything runs as root, which Open MPI must be told twice.
pub(crate) fn as_root(command: &mut Command) -> &mut Command {
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
}

fn ended(ran: &Ran, end: End, ranks: usize) -> bool {
    match end {
        End::Well => ran.success,
        End::AsExpected => ran.output.matches(EXPECTED).count() == ranks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_named() {
        assert_eq!(roomy(Some(HUGE_GIB)), Ok(()));
        assert_eq!(roomy(Some(3)), Err("needs 12 GiB of free memory, 3 here".into()));
        assert!(roomy(None).is_err());
    }

    #[test]
    fn a_failing_part_needs_the_word_of_every_rank() {
        let ran = |output: &str| Ran { success: false, output: output.into() };
        let said = format!("rank 0 {EXPECTED}\nrank 1 {EXPECTED}\n");
        assert!(ended(&ran(&said), End::AsExpected, 2));
        assert!(!ended(&ran(&said), End::AsExpected, 3));
        assert!(!ended(&ran(&said), End::Well, 2));
    }
}
