//! `planaria launch`: starts ranks, says why the first one failed, and resumes from the last checkpoint with the ranks that are left.

mod budget;
mod hang;
pub(crate) mod hosts;
mod job;
mod memory;
mod mesh;
mod rank;
mod record;
mod stop;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::quantity::count;
use crate::terminal::Terminal;
use anyhow::{Context, Result};
use budget::{Budget, Then};
use hosts::Host;
use hosts::named::with_hosts;
pub(crate) use job::BEATS;
use job::{Attempt, Ended};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use stop::Stop;

/// Variable that tells a command what its ranks are.
pub(crate) const ENGINE: &str = "PLANARIA_ENGINE";

/// Variable with the folder where processes find each other.
pub(crate) const MEETING: &str = "PLANARIA_MEETING";

/// Start ranks and keep them going
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Sets the variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR,\n\
    MASTER_PORT, TORCHELASTIC_RESTART_COUNT. A command that fails is started again and resumes from its last\n\
    committed checkpoint; with --min-ranks it continues without the ranks that were lost, on the first of `heal.meshes`\n\
    that they can make, or the largest mesh that fits. Three failures in a row without a new checkpoint end it.\n\
    SIGINT and SIGTERM ask all ranks to finish the step and save, and exit with 75; a second one ends them at once.\n\
    SIGUSR2 says that lost ranks are back."
)]
pub(crate) struct Args {
    /// Ranks; as many as the hosts take, or one
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,
    /// What a rank is; `threads`, with hosts `processes`
    #[arg(long, value_enum, value_name = "ENGINE")]
    engine: Option<Engine>,
    /// Machines and how many ranks each takes, as `a:4,b:4`
    #[arg(long, value_name = "HOSTS", value_parser = hosts::from_words, conflicts_with = "hostfile")]
    hosts: Option<Hosts>,
    /// A file with a machine on each line, as `a:4` or `a slots=4`
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Ranks that stay on one host, where there is room; as many as `tp` of the mesh has if not given
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    together: Option<u32>,
    /// How a command is started on a machine; {host} is its name
    #[arg(
        long,
        value_name = "COMMAND",
        default_value = "ssh -o BatchMode=yes -o ServerAliveInterval=10 {host}"
    )]
    start: String,
    /// A variable that ranks on hosts get too, beside PLANARIA_ ones
    #[arg(long, value_name = "NAME")]
    export: Vec<String>,
    /// How many times the command may be restarted
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    max_restarts: u32,
    /// Continue with no fewer ranks than this when ranks are lost
    #[arg(long, value_name = "NUMBER")]
    min_ranks: Option<u32>,
    /// End ranks that hang for this long, with a report of who kept whom waiting; never if not given
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    hang_after: Option<Duration>,
    /// Pause before the second start in a row without a new checkpoint; each further one waits twice as long
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    back_off: Duration,
    /// When ranks were lost, save after this long and continue with all of them; only on SIGUSR2 if not given
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    grow_after: Option<Duration>,
    /// The command
    #[arg(last = true, required_unless_present = "as_host", value_name = "COMMAND")]
    command: Vec<String>,
    /// This process is the agent of a machine; it is told what to do on its standard input
    #[arg(long, hide = true)]
    as_host: bool,
    /// This process is one rank; what happens to it is noted in this folder
    #[arg(long, hide = true, value_name = "FOLDER")]
    as_rank: Option<PathBuf>,
    /// What the ranks of the last start told stays in this folder
    #[arg(long, hide = true, value_name = "FOLDER")]
    notes: Option<PathBuf>,
}

/// Machines in the order in which they are filled.
type Hosts = Vec<Host>;

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    // Clocks cannot tell times that are far beyond this.
    let time = Duration::try_from_secs_f64(number).ok().filter(|_| number <= 1e9);
    time.ok_or_else(|| format!("{text} seconds is not a valid time; expected 0 to 1e9"))
}

/// What ranks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Engine {
    /// Threads of one process
    #[default]
    Threads,
    /// Processes of this machine or of several, connected by sockets
    Processes,
    /// Processes that mpirun starts
    Mpi,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    if let Some(folder) = &args.as_rank {
        return rank::run(folder, &args.command);
    }
    if args.as_host {
        return hosts::agent::run();
    }
    let hosts = match &args.hostfile {
        Some(file) => hosts::from_file(file).map_err(Failure::usage)?,
        None => args.hosts.clone().unwrap_or_default(),
    };
    let room: u32 = hosts.iter().map(|host| host.ranks).sum();
    let ranks = args.ranks.unwrap_or(room.max(1));
    if !hosts.is_empty() && ranks > room {
        return Err(
            Failure::usage(format!("-n {ranks} is more than the {room} ranks that the hosts take")).into()
        );
    }
    let least = args.min_ranks.unwrap_or(ranks);
    if least > ranks || least == 0 {
        let message = format!("--min-ranks {least} is not between 1 and the {ranks} ranks of -n");
        return Err(Failure::usage(message).into());
    }
    let engine = args.engine.unwrap_or(if hosts.is_empty() { Engine::Threads } else { Engine::Processes });
    if engine == Engine::Threads && !hosts.is_empty() {
        let message = "--engine threads is one process, which cannot be on several hosts";
        return Err(Failure::usage(message).hint("leave --engine out, or use processes or mpi").into());
    }
    // A configuration that does not hold is refused here, once, before there are ranks that would each say so.
    if let Some(config) = mesh::config(&args.command) {
        config?;
    }
    Launch {
        args,
        engine,
        hosts,
        lost: Vec::new(),
        all: ranks,
        least,
        stop: Stop::watch()?,
        budget: Budget::new(args.max_restarts, args.back_off),
        ranks,
        command: args.command.clone(),
    }
    .go(terminal)
}

/// A job from its first start to its last.
struct Launch<'a> {
    args: &'a Args,
    engine: Engine,
    hosts: Hosts,
    /// Names of those that were lost.
    lost: Vec<String>,
    /// Ranks when none is lost, and at least.
    all: u32,
    least: u32,
    stop: Stop,
    budget: Budget,
    /// Ranks of the next start, and the command that runs on them.
    ranks: u32,
    command: Vec<String>,
}

impl Launch<'_> {
    fn go(&mut self, terminal: &mut Terminal) -> Result<Exit> {
        let exit = self.start_until_done(terminal)?;
        // Nobody else will bring what is only in memory to the run's folder.
        if let Some(Ok(config)) = mesh::config(&self.args.command) {
            match self.hosts.is_empty() || !memory::is_spread(&config) {
                true => memory::settle(&config, exit, terminal)?,
                false => self.settle_hosts(exit, terminal)?,
            }
        }
        Ok(exit)
    }

    /// Has one rank on each host that is left do what is left to do about memory there.
    fn settle_hosts(&self, exit: Exit, terminal: &mut Terminal) -> Result<()> {
        if exit == Exit::Usage {
            return Ok(());
        }
        let left = self.hosts.iter().filter(|host| !self.lost.contains(&host.name));
        let hosts: Hosts = left.map(|host| Host { ranks: 1, ..host.clone() }).collect();
        let what = if exit == Exit::Success { "free" } else { "keep" };
        let command = self.args.command.iter().cloned().chain(["--settle".into(), what.into()]);
        let (folder, command): (_, Vec<String>) = (Notes::new("launch")?, command.collect());
        let ended = match hosts.is_empty() {
            true => None,
            // A signal that ended the run is no word to this.
            false => {
                let stop = Stop::watch()?;
                Some(self.attempt(&folder, &hosts, &command, hosts.len() as u32).run(&stop)?)
            }
        };
        if let Some(ended) = ended.filter(|ended| !ended.status.success()) {
            let why = cause(&ended).unwrap_or_else(|| how(&ended.status));
            terminal.warn(format!("what hosts have in memory stays there: {why}"));
        }
        Ok(())
    }

    fn start_until_done(&mut self, terminal: &mut Terminal) -> Result<Exit> {
        loop {
            let folder = Notes::new("launch")?;
            let hosts = self.left();
            let ended = self.attempt(&folder, &hosts, &self.command, self.ranks).run(&self.stop)?;
            self.lost.extend(ended.lost.iter().cloned());
            if let Some(notes) = &self.args.notes {
                keep_beats(&folder.0, notes);
            }
            let again = self.budget.used() > 0;
            match End::of(&ended, &folder.0) {
                End::Done => return Ok(Exit::Success),
                End::Stopped if ended.grown && self.stop.times() == 0 => {
                    self.stop.grown();
                    self.lost.clear();
                    self.fit(self.all, terminal)?;
                    terminal.warn(format!("lost ranks are back; continuing with {}", self.named()));
                    continue;
                }
                End::Stopped => return Ok(Exit::Stopped),
                _ if self.stop.times() > 0 => return Ok(unsaved(&self.stop, &ended, terminal)),
                End::Refused if again && self.ranks > self.least => {
                    self.ranks -= 1;
                    let ranks = count(self.ranks as usize, "rank");
                    terminal.warn(format!("the run cannot be divided over these ranks; trying {ranks}"));
                    continue;
                }
                End::Refused => return Ok(Exit::Usage),
                End::Failed => {}
            }
            let cause = cause(&ended);
            let cause = cause.map(|cause| with_hosts(&cause, &hosts::placed(&hosts, self.ranks)));
            if !self.heal(&ended, cause, terminal)? {
                return Ok(Exit::Negative);
            }
        }
    }

    fn attempt<'b>(
        &'b self,
        folder: &'b Notes,
        hosts: &'b [Host],
        command: &'b [String],
        ranks: u32,
    ) -> Attempt<'b> {
        let exported = std::env::vars().filter(|(name, _)| {
            let ours = name.starts_with("PLANARIA_") && ![ENGINE, MEETING, BEATS].contains(&name.as_str());
            ours || name == "RUST_BACKTRACE" || self.args.export.contains(name)
        });
        Attempt {
            engine: self.engine,
            hosts,
            start: &self.args.start,
            exported: exported.collect(),
            command,
            ranks,
            restarts: self.budget.used(),
            max_restarts: self.args.max_restarts,
            hang: self.args.hang_after,
            grow: (ranks < self.all).then(|| self.args.grow_after.unwrap_or(Duration::MAX)),
            folder: &folder.0,
        }
    }

    /// The machines of the next start: without those that were lost, where the others have room; with whole groups of `tp`, where they
    /// have room for these.
    fn left(&self) -> Hosts {
        let left: Hosts = self.hosts.iter().filter(|host| !self.lost.contains(&host.name)).cloned().collect();
        let room: u32 = left.iter().map(|host| host.ranks).sum();
        let hosts = if room < self.ranks { self.hosts.clone() } else { left };
        hosts::in_groups(&hosts, self.ranks, self.together()).unwrap_or(hosts)
    }

    /// Ranks that should stay on one host.
    fn together(&self) -> u32 {
        let tp = || mesh::config(&self.command)?.ok().map(|config| config.mesh.tp as u32);
        self.args.together.or_else(tp).unwrap_or(1)
    }

    /// Gets ready for the next start after a failure; false when there is none.
    fn heal(&mut self, ended: &Ended, cause: Option<String>, terminal: &mut Terminal) -> Result<bool> {
        if let Some(cause) = &cause {
            terminal.say(cause);
        }
        // A run that failed before it told anything has saved nothing.
        let silent = mesh::trains(&self.command).then_some(0);
        let saved = ended.beats.iter().map(|beat| beat.saved).max().or(silent);
        let cause = cause.unwrap_or_else(|| how(&ended.status));
        match self.budget.fail(&cause, saved) {
            Then::GiveUp(why) => {
                if self.args.max_restarts > 0 {
                    terminal.warn(format!(
                        "giving up after {}: {why}",
                        count(self.budget.used() as usize, "restart")
                    ));
                }
                Ok(false)
            }
            Then::Again(pause) => {
                let lost = lost(ended) as u32;
                let left = self.ranks.saturating_sub(lost).max(self.least).min(self.ranks);
                if left < self.ranks {
                    self.fit(left, terminal)?;
                }
                let (number, most) = (self.budget.used(), self.args.max_restarts);
                let wait = if pause.is_zero() {
                    String::new()
                } else {
                    format!(", in {:.1} s", pause.as_secs_f64())
                };
                terminal.warn(format!("restart {number} of {most} on {}{wait}", self.named()));
                self.rest(pause);
                Ok(true)
            }
        }
    }

    /// Takes the mesh for this many ranks, where the job is a run of ours.
    fn fit(&mut self, ranks: u32, terminal: &mut Terminal) -> Result<()> {
        self.ranks = ranks;
        match mesh::fit(&self.args.command, ranks, self.least) {
            Ok(Some(fitted)) => (self.ranks, self.command) = (fitted.ranks, fitted.command),
            Ok(None) => {}
            // The run itself will say what is wrong, and be tried on fewer.
            Err(error) => terminal.warn(format!("{error}")),
        }
        Ok(())
    }

    fn named(&self) -> String {
        let mesh = self.command.last().and_then(|last| last.strip_prefix("mesh="));
        let mesh = mesh.filter(|_| self.command.len() > self.args.command.len());
        let ranks = count(self.ranks as usize, "rank");
        mesh.map_or(ranks.clone(), |mesh| format!("{ranks} ({mesh})"))
    }

    /// Waits, unless told to stop.
    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until && self.stop.times() == 0 {
            std::thread::sleep(Duration::from_millis(20).min(pause));
        }
    }
}

/// Ranks that will not come back by themselves: killed, stuck, or found to compute wrongly.
fn lost(ended: &Ended) -> usize {
    match &ended.hang {
        Some(hang) => hang.stuck.len(),
        None => ended.records.iter().filter(|record| record.is_lost()).count(),
    }
}

/// What went wrong first.
fn cause(ended: &Ended) -> Option<String> {
    let first = || ended.records.first().map(ToString::to_string);
    ended.hang.as_ref().map(|hang| format!("hang: {}", hang.text)).or_else(first)
}

fn how(status: &std::process::ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command failed with exit code {code}"),
        (None, Some(signal)) => format!("the command was killed by signal {signal}"),
        _ => "the command failed for an unknown reason".into(),
    }
}

/// How it ends when ranks were asked to stop and have not said that they saved.
fn unsaved(stop: &Stop, ended: &Ended, terminal: &mut Terminal) -> Exit {
    let failed = ended.records.iter().find(|record| !record.is_ended());
    let by_itself = failed.is_some() || ended.status.code().is_some_and(|code| code < 128);
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
    fn of(ended: &Ended, folder: &Path) -> End {
        // Behind mpirun the ranks know better: its own status is that of whichever rank ended first.
        let refused = || ended.records.iter().any(|record| record.code == Some(2));
        match ended.status.code() {
            _ if ended.hang.is_some() => End::Failed,
            _ if record::is_stopped(folder) => End::Stopped,
            Some(0) => End::Done,
            Some(75) => End::Stopped,
            Some(2) => End::Refused,
            _ if refused() => End::Refused,
            _ => End::Failed,
        }
    }
}

/// A folder for notes between processes, which only its user can enter. It goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Notes(PathBuf);

impl Notes {
    pub(crate) fn new(what: &str) -> Result<Notes> {
        use std::os::unix::fs::DirBuilderExt;
        let nanos =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let path = std::env::temp_dir().join(format!("planaria-{what}-{}-{nanos}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot create '{}'", path.display()))?;
        Ok(Notes(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Leaves the folder to whoever asked.
    pub(crate) fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Copies what ranks told last to a folder that stays.
fn keep_beats(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|ending| ending == "beat") {
            // Only a help for whoever asked for it.
            let _ = std::fs::copy(entry.path(), to.join(entry.file_name()));
        }
    }
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
