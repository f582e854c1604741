//! A job of MPI processes is stopped in every way there is: SIGTERM to the launcher, SIGTERM to one rank, Ctrl-C, Ctrl-C
//! twice. The first three save on all ranks and exit with 75; the last ends all processes at once. Started again each
//! time, it has the bits of a run nobody touched.
//! `cargo xtask test` runs it, after building the command beside it: `target/debug/examples/mpi_signals FOLDER`.

use anyhow::{Context, Result, ensure};
use planaria_e2e::{Sandbox, job, tensors};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// Steps long enough for a signal to come before the last one.
const MORE: [&str; 4] =
    ["train.steps=24", "train.global_batch=96", "checkpoint.every=0", "checkpoint.keep=2"];

const RANKS: usize = 3;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("give a folder for the runs")?;
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let sandbox = Sandbox::at(&folder)?;
    let file = folder.join("cut.toml");
    std::fs::write(&file, sandbox.config("cut", "dp=3", &MORE)?.to_toml()?)?;
    let run = Stopped { file, run: sandbox.run_dir("cut") };

    run.saves(2, "SIGTERM to the launcher", |launcher, _| job::signal("TERM", &launcher.to_string()))?;
    run.saves(5, "SIGTERM to one rank", |_, ranks| job::signal("TERM", &ranks[1].to_string()))?;
    // A terminal sends it to the whole group.
    run.saves(8, "Ctrl-C", |launcher, _| job::signal("INT", &format!("-{launcher}")))?;
    run.ends()?;

    let mut last = run.start(&[])?;
    ensure!(last.wait()?.success(), "the last session failed");
    let whole = sandbox.train("whole", "", &MORE)?;
    ensure!(tensors(&run.run.join("ckpt/step-00000024"))? == whole.tensors, "the weights differ");
    println!("stopped in four ways and started again: 24 steps, the same bits as without");
    Ok(())
}

/// A run that is stopped again and again.
struct Stopped {
    file: PathBuf,
    run: PathBuf,
}

impl Stopped {
    fn start(&self, more: &[&str]) -> Result<Child> {
        let mut launch = Command::new(job::command()?);
        launch.args(["launch", "-n", &RANKS.to_string(), "--engine", "mpi", "--max-restarts", "3", "--"]);
        // A group of its own, as a shell gives to a command.
        Ok(launch.args(["planaria", "train"]).arg(&self.file).args(more).process_group(0).spawn()?)
    }

    /// Starts the job; gives the launcher and the processes of the ranks once they train.
    fn session(&self, more: &[&str]) -> Result<(Child, Vec<u64>)> {
        let sessions = || (0..RANKS).map(|rank| job::processes(&self.run, rank).len()).min().unwrap_or(0);
        let before = sessions();
        let child = self.start(more)?;
        job::wait("all ranks", || sessions() > before)?;
        let own = |rank| job::processes(&self.run, rank).pop().context("the rank told no process");
        Ok((child, (0..RANKS).map(own).collect::<Result<_>>()?))
    }

    /// A way to stop that saves.
    fn saves(&self, step: u64, what: &str, stop: impl Fn(u32, &[u64]) -> Result<()>) -> Result<()> {
        let (mut child, ranks) = self.session(&[])?;
        job::wait("the step", || job::losses(&self.run).keys().last().is_some_and(|&at| at >= step))?;
        stop(child.id(), &ranks)?;
        let code = child.wait()?.code();
        ensure!(code == Some(75), "{what}: exit code {code:?}");
        let done = job::losses(&self.run).keys().last().copied().unwrap_or(0);
        ensure!(done < 24, "{what}: the run was faster than the signal");
        let saved = newest(&self.run)?;
        ensure!(saved == format!("step-{done:08}"), "{what}: {saved} was saved, step {done} was the last");
        self.gone(what, &ranks)
    }

    /// Ctrl-C twice, in a step so long that the second one comes before the first is answered.
    fn ends(&self) -> Result<()> {
        let (mut child, ranks) = self.session(&["--set", "train.global_batch=30000"])?;
        let saved = newest(&self.run)?;
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..2 {
            job::signal("INT", &format!("-{}", child.id()))?;
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = child.wait()?.code();
        ensure!(code == Some(130), "Ctrl-C twice: exit code {code:?}");
        ensure!(newest(&self.run)? == saved, "Ctrl-C twice: a checkpoint was made");
        self.gone("Ctrl-C twice", &ranks)
    }

    /// Nobody is left over.
    fn gone(&self, what: &str, ranks: &[u64]) -> Result<()> {
        let alive = |rank: &&u64| Path::new("/proc").join(rank.to_string()).exists();
        job::wait(&format!("end of all ranks after {what}"), || ranks.iter().find(alive).is_none())
    }
}

/// The newest committed checkpoint.
fn newest(run: &Path) -> Result<String> {
    let committed = |path: &PathBuf| path.join("COMMIT").exists();
    let folders = std::fs::read_dir(run.join("ckpt"))?.flatten().map(|entry| entry.path()).filter(committed);
    let newest = folders.max().context("no checkpoint")?;
    Ok(newest.file_name().unwrap_or_default().to_string_lossy().into_owned())
}
