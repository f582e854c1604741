//! `planaria launch`: starts ranks, shows the first failing one's error, and starts again from the last checkpoint.

mod rank;
mod record;
mod stop;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use record::Record;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use stop::{Stop, Told};

/// Variable that tells a command to run its ranks as threads.
pub(crate) const ENGINE: &str = "PLANARIA_ENGINE";

/// Time between two looks at a child.
const PULSE: Duration = Duration::from_millis(50);

/// Start ranks and keep them going
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Sets the variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR,\n\
    MASTER_PORT, TORCHELASTIC_RESTART_COUNT. A command that fails is started again and resumes from its last\n\
    committed checkpoint; with --min-ranks it continues without the ranks that were lost.\n\
    SIGINT and SIGTERM ask all ranks to finish the step and save, and exit with 75; a second one ends them at once."
)]
pub(crate) struct Args {
    /// Ranks
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: u32,
    /// What ranks are
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t)]
    engine: Engine,
    /// How often the command is started again
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    max_restarts: u32,
    /// Go on with as few ranks as this when ranks are lost
    #[arg(long, value_name = "NUMBER")]
    min_ranks: Option<u32>,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// This process is one rank; what happens to it is noted in this folder
    #[arg(long, hide = true, value_name = "FOLDER")]
    as_rank: Option<PathBuf>,
}

/// What ranks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Engine {
    /// Threads of one process
    #[default]
    Threads,
    /// Processes that mpirun starts
    Mpi,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    if let Some(folder) = &args.as_rank {
        return rank::run(folder, &args.command);
    }
    let least = args.min_ranks.unwrap_or(args.ranks);
    if least > args.ranks || least == 0 {
        let message = format!("--min-ranks {least} is not between 1 and the {} ranks of -n", args.ranks);
        return Err(Failure::usage(message).into());
    }
    let stop = Stop::watch()?;
    let (mut ranks, mut restarts) = (args.ranks, 0);
    loop {
        let folder = Folder::new()?;
        let status = attempt(args, ranks, restarts, &folder.0, &stop)?;
        let end = End::of(&status, &folder.0, restarts > 0);
        match end {
            End::Done => return Ok(Exit::Success),
            End::Stopped => return Ok(Exit::Stopped),
            _ if stop.times() > 0 => return Ok(unsaved(&stop, &status, &folder.0, terminal)),
            End::Refused if restarts > 0 && ranks > least => {
                ranks -= 1;
                terminal.warn(format!(
                    "the run cannot be divided over these ranks; trying {}",
                    count(ranks as usize, "rank")
                ));
                continue;
            }
            End::Refused => return Ok(Exit::Usage),
            End::Failed => {}
        }
        let records = Record::read_all(&folder.0);
        if let Some(first) = records.first() {
            terminal.say(&first.to_string());
        }
        if restarts == args.max_restarts {
            return Ok(Exit::Negative);
        }
        restarts += 1;
        let lost = records.iter().filter(|r| r.is_lost()).count() as u32;
        ranks = ranks.saturating_sub(lost).max(least).min(ranks);
        terminal.warn(format!(
            "restart {restarts} of {} on {}",
            args.max_restarts,
            count(ranks as usize, "rank")
        ));
    }
}

/// How it ends when ranks were asked to stop and have not said that they saved.
fn unsaved(stop: &Stop, status: &ExitStatus, folder: &Path, terminal: &mut Terminal) -> Exit {
    let failed = Record::read_all(folder).into_iter().find(|record| !record.is_ended());
    let by_itself = failed.is_some() || status.code().is_some_and(|code| code < 128);
    // Told twice, or before there was anything to save.
    if stop.times() > 1 || !by_itself {
        return Exit::Signal(stop.signal());
    }
    if let Some(failed) = failed {
        terminal.say(&failed.to_string());
    }
    Exit::Negative
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// On request, after saving.
    Stopped,
    /// The configuration does not fit.
    Refused,
    Failed,
}

impl End {
    fn of(status: &ExitStatus, folder: &Path, again: bool) -> End {
        let refused = || Record::read_all(folder).first().is_some_and(|first| first.code == Some(2));
        match status.code() {
            _ if record::is_stopped(folder) => End::Stopped,
            Some(0) => End::Done,
            Some(75) => End::Stopped,
            Some(2) => End::Refused,
            _ if again && refused() => End::Refused,
            _ => End::Failed,
        }
    }
}

/// A folder for notes between this process and its ranks.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        let nanos =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let path = std::env::temp_dir().join(format!("planaria-launch-{}-{nanos}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot create '{}'", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the command once, to its end.
fn attempt(args: &Args, ranks: u32, restarts: u32, folder: &Path, stop: &Stop) -> Result<ExitStatus> {
    let mut command = match args.engine {
        Engine::Threads => {
            let mut command = own(&args.command)?;
            let size = ranks.to_string();
            command.envs([("RANK", "0"), ("LOCAL_RANK", "0"), ("GROUP_RANK", "0"), (ENGINE, "threads")]);
            command.env("WORLD_SIZE", &size).env("LOCAL_WORLD_SIZE", &size);
            command
        }
        Engine::Mpi => {
            let mut command = Command::new("mpirun");
            command.args(["--oversubscribe", "-n", &ranks.to_string()]);
            command.arg(std::env::current_exe()?).args(["launch", "--as-rank"]).arg(folder);
            command.arg("--").args(&args.command);
            // In a container everything runs as root, which Open MPI must be told twice.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            // A terminal sends Ctrl-C to all of this process's group; mpirun must not hear it, nor read from there.
            command.process_group(0).stdin(Stdio::null());
            command
        }
    };
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29500");
    command.env("TORCHELASTIC_RESTART_COUNT", restarts.to_string());
    command.env("TORCHELASTIC_MAX_RESTARTS", args.max_restarts.to_string());
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().with_context(|| format!("cannot start '{name}'"))?;
    wait(child, args.engine, folder, stop)
}

/// The command; `planaria` is this very program.
fn own(command: &[String]) -> Result<Command> {
    let (first, rest) = command.split_first().context("there is no command")?;
    let mut command = match first.as_str() {
        "planaria" => Command::new(std::env::current_exe()?),
        other => Command::new(other),
    };
    command.args(rest);
    Ok(command)
}

/// Waits for the child; signals to this process are passed on.
fn wait(mut child: Child, engine: Engine, folder: &Path, stop: &Stop) -> Result<ExitStatus> {
    let mut told = Told::default();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        told.pass_on(stop, &mut child, engine, folder);
        std::thread::sleep(PULSE);
    }
}
