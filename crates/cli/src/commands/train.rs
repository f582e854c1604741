//! `planaria train`: runs a configuration on thread ranks, or as one of the processes that `planaria launch` or `mpirun` started.

mod healing;
mod show;

use super::launch::hosts::{ADDRESS, SECRET_WORD, unhex};
use super::launch::{BEATS, ENGINE, MEETING};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::comm::sockets::{Network, Place};
use planaria::train::config::{Compute, Sources};
use planaria::train::{Config, Outcome, Requests, Trainer};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use show::Show;

/// Variable with what happens to a rank on purpose, as in `kill rank=1 call=57`.
pub(crate) const FAULT: &str = "PLANARIA_FAULT";

/// Variable with what happens to the store on purpose.
pub(crate) const STORE_FAULT: &str = "PLANARIA_STORE_FAULT";

/// How long a rank may take to save and stop once whoever started it is gone.
const ALONE: Duration = Duration::from_secs(60);

/// Train a model, or resume a run
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The run's folder is runs/NAME. When it has a checkpoint, the run resumes from the newest one, on any mesh.\n\
    SIGUSR1 saves; SIGINT and SIGTERM finish the step, save and exit with 75; a second one exits at once."
)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// Ranks; as many as the mesh asks for if not given
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ranks: Option<u32>,
    /// Change a value, as in `optim.lr=3e-4`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where to compute, instead of what the configuration says: cpu, or an NVIDIA device such as cuda:0
    #[arg(long, value_name = "DEVICE")]
    device: Option<Compute>,
    /// Check everything that can be checked without training, and stop
    #[arg(long)]
    dry_run: bool,
}

impl Args {
    /// What it asks for.
    pub(crate) fn config(&self) -> Result<Config> {
        let device = self.device.map(|device| format!("device={device}"));
        let set = self.set.iter().cloned().chain(device);
        Ok(Sources::file(&self.config).variables(std::env::vars()).set(set).resolve()?.config)
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<Exit> {
    let place = Started::find()?;
    let mut config = args.config().map_err(|error| of_every_rank(error, &place))?;
    let ranks = args.ranks.map(|n| n as usize).or(place.threads());
    if place.restarts() > 0 && ranks.or(place.processes()).is_some_and(|n| n != config.mesh.ranks()) {
        // After a restart on fewer ranks the replicas that are left take over the batch.
        config.mesh.dp = None;
    }
    let ranks_now = ranks.or(place.processes()).unwrap_or_else(|| config.mesh.ranks());
    if args.dry_run {
        let from = Trainer::new(config.clone()).check(ranks_now)?;
        return report_checked(&config, ranks_now, from.as_deref(), terminal);
    }
    let show = Arc::new(Show::new(terminal, &config));
    let requests = Requests::listen()?;
    if place.is_first() {
        let show = show.clone();
        requests.announce(move || show.stopping())?;
    }
    if matches!(place, Started::Processes { .. }) {
        let requests = requests.clone();
        std::thread::spawn(move || orphaned(&requests));
    }
    let trainer = Trainer::new(config.clone()).observer(show.clone()).requests(requests);
    let trainer = trainer.healing(healing::asked(&config, &place)?);
    let outcome = match &place {
        Started::Mpi { rank, .. } => mpi(&trainer, *rank)?,
        Started::Processes { place, .. } => {
            trainer.run_sockets(place).map_err(|error| of_this_rank(error, place.rank))?
        }
        _ => trainer.run(Some(ranks_now))?,
    };
    show.finish();
    if place.is_first() {
        return report(&config, &outcome, terminal);
    }
    Ok(end_of(&outcome))
}

/// What all ranks find together, as this one says it: the one that cannot be trusted ends in a way of its own, and what another
/// rank reports is not said twice.
fn of_this_rank(error: planaria::train::Error, rank: usize) -> anyhow::Error {
    use planaria::train::Error;
    let message = error.to_string();
    match &error {
        Error::Told { usage, .. } => {
            Failure::reported(if *usage { Exit::Usage } else { Exit::PeerLost }).into()
        }
        Error::Suspect { ranks, .. } if ranks.contains(&rank) => {
            Failure::suspect(message).hint(error.hint().unwrap_or_default()).into()
        }
        Error::Suspect { .. } => Failure::peer_lost(message).into(),
        // Of a job that was launched, the first rank reports what all of them find or hear.
        _ if rank > 0 && launched() && error.is_usage() => Failure::reported(Exit::Usage).into(),
        _ if rank > 0 && launched() && error.is_echo() => Failure::reported(Exit::PeerLost).into(),
        _ => error.into(),
    }
}

/// Whether `planaria launch` started this process.
fn launched() -> bool {
    std::env::var_os(BEATS).is_some()
}

/// A configuration that every process reads and refuses: the first one says why. A file may be missing for one of them only.
fn of_every_rank(error: anyhow::Error, place: &Started) -> anyhow::Error {
    let missing = matches!(error.downcast_ref(), Some(planaria::train::Error::Io { .. }));
    if place.is_first() || missing { error } else { Failure::reported(Exit::Usage).into() }
}

/// Waits until whoever started this process is gone; then it saves and stops, and ends in any case.
fn orphaned(requests: &Requests) {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    requests.stop();
    std::thread::sleep(ALONE);
    // The main thread may wait for peers that are gone as well: nothing is left that could return a code.
    #[allow(clippy::disallowed_methods)]
    std::process::exit(i32::from(Exit::PeerLost.code()));
}

/// Runs as one of several processes.
#[cfg(feature = "mpi")]
fn mpi(trainer: &Trainer, rank: usize) -> Result<Outcome> {
    trainer.run_mpi().map_err(|error| of_this_rank(error, rank))
}

#[cfg(not(feature = "mpi"))]
fn mpi(_: &Trainer, _: usize) -> Result<Outcome> {
    let message = "started by mpirun, but this command was built without MPI";
    Err(Failure::usage(message).hint("build it with `--features mpi`, or use thread ranks with `-n`").into())
}

/// How this process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Started {
    /// By hand.
    Alone,
    /// By `planaria launch`, to run this many thread ranks.
    Threads { ranks: usize, restarts: u64 },
    /// By `mpirun`, as one of this many processes.
    Mpi { rank: usize, ranks: usize, restarts: u64 },
    /// By `planaria launch`, as one of several processes of this machine.
    Processes { place: Place, restarts: u64 },
}

impl Started {
    pub(super) fn find() -> Result<Started> {
        Started::told_by(|name| std::env::var(name).ok())
    }

    fn told_by(variable: impl Fn(&str) -> Option<String>) -> Result<Started> {
        let number = |name: &str| variable(name).and_then(|text| text.parse::<usize>().ok());
        let restarts = number("TORCHELASTIC_RESTART_COUNT").unwrap_or(0) as u64;
        let mpi = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"].iter().find_map(|name| number(name));
        if let Some(ranks) = mpi {
            let rank = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"]
                .iter()
                .find_map(|name| number(name))
                .unwrap_or(0);
            return Ok(Started::Mpi { rank, ranks, restarts });
        }
        match (number("WORLD_SIZE"), variable(ENGINE).as_deref()) {
            (Some(ranks), Some("threads")) => Ok(Started::Threads { ranks, restarts }),
            (Some(size), Some("processes")) => {
                let (rank, folder) = (number("RANK").unwrap_or(0), variable(MEETING).unwrap_or_default());
                let secret = variable(SECRET_WORD).and_then(|text| unhex(&text));
                let network = variable(ADDRESS).zip(secret);
                let network = network.map(|(address, secret)| Network { address, secret });
                let place = Place { rank, size, folder: folder.into(), network };
                Ok(Started::Processes { place, restarts })
            }
            (Some(ranks), _) if ranks > 1 => {
                let rank = number("RANK").unwrap_or(0);
                let message =
                    format!("this is process {rank} of {ranks}, which have no way to talk to each other");
                Err(Failure::usage(message).hint("start them with `planaria launch` or `mpirun`").into())
            }
            _ => Ok(Started::Alone),
        }
    }

    fn threads(&self) -> Option<usize> {
        if let Started::Threads { ranks, .. } = self { Some(*ranks) } else { None }
    }

    pub(super) fn processes(&self) -> Option<usize> {
        match self {
            Started::Mpi { ranks, .. } => Some(*ranks),
            Started::Processes { place, .. } => Some(place.size),
            _ => None,
        }
    }

    /// The rank that this process is, among others.
    fn rank(&self) -> usize {
        match self {
            Started::Mpi { rank, .. } => *rank,
            Started::Processes { place, .. } => place.rank,
            _ => 0,
        }
    }

    /// Only one process of a job prints what the job has to say.
    pub(super) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    fn restarts(&self) -> u64 {
        match self {
            Started::Alone => 0,
            Started::Threads { restarts, .. }
            | Started::Mpi { restarts, .. }
            | Started::Processes { restarts, .. } => *restarts,
        }
    }
}

fn report_checked(
    config: &Config,
    ranks: usize,
    from: Option<&str>,
    terminal: &mut Terminal,
) -> Result<Exit> {
    let mesh = config.mesh.on(ranks)?.to_string();
    if terminal.json {
        let told = json!({ "event": "checked", "ranks": ranks, "mesh": mesh, "from": from });
        terminal.object("planaria/train/1", &told)?;
    } else {
        let noun = if ranks == 1 { "rank" } else { "ranks" };
        let start = from.map(|folder| format!(", resuming from {folder}")).unwrap_or_default();
        terminal.line(format!("'{}' can run on {ranks} {noun} as {mesh}{start}", config.name))?;
    }
    Ok(Exit::Success)
}

/// What is said at the end of a run.
pub(crate) fn report(config: &Config, outcome: &Outcome, terminal: &mut Terminal) -> Result<Exit> {
    let folder = config.run_dir();
    let checkpoint = outcome.checkpoint.as_ref().map(|name| folder.join(name).display().to_string());
    if terminal.json {
        let Outcome { step, loss, stopped, best, .. } = outcome;
        let best = best.map(|(step, loss)| json!({ "step": step, "loss": loss }));
        let told = json!({
            "event": "end", "step": step, "loss": loss, "stopped": stopped, "checkpoint": checkpoint, "best": best,
        });
        terminal.object("planaria/train/1", &told)?;
    } else {
        if let Some((step, loss)) = outcome.best {
            terminal.note(format!("best evaluation loss {loss:.4}, in ckpt/step-{step:08}"));
        }
        if let Some(checkpoint) = checkpoint {
            terminal.line(checkpoint)?;
        }
    }
    Ok(end_of(outcome))
}

fn end_of(outcome: &Outcome) -> Exit {
    if outcome.stopped { Exit::Stopped } else { Exit::Success }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_started_the_process_is_told_by_its_variables() {
        let told = |list: &[(&str, &str)]| {
            let list: Vec<(String, String)> =
                list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            Started::told_by(|name| list.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
        };
        assert_eq!(told(&[]).unwrap(), Started::Alone);
        assert_eq!(told(&[("WORLD_SIZE", "1"), ("RANK", "0")]).unwrap(), Started::Alone);
        let threads =
            told(&[("WORLD_SIZE", "4"), ("PLANARIA_ENGINE", "threads"), ("TORCHELASTIC_RESTART_COUNT", "2")]);
        assert_eq!(threads.unwrap(), Started::Threads { ranks: 4, restarts: 2 });
        let mpi = told(&[("OMPI_COMM_WORLD_SIZE", "3"), ("WORLD_SIZE", "3"), ("RANK", "1")]).unwrap();
        assert_eq!((mpi.processes(), mpi.threads(), mpi.rank()), (Some(3), None, 1));
        let list = [
            ("WORLD_SIZE", "4"),
            ("RANK", "2"),
            ("PLANARIA_ENGINE", "processes"),
            ("PLANARIA_MEETING", "/x"),
        ];
        let one = told(&list).unwrap();
        assert_eq!((one.processes(), one.rank(), one.is_first()), (Some(4), 2, false));
        assert!(
            told(&[("WORLD_SIZE", "8"), ("RANK", "3")]).unwrap_err().to_string().contains("process 3 of 8")
        );
    }
}
