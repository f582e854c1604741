//! `planaria train`: runs a configuration on thread ranks, or as one of the processes that `planaria launch`, `mpirun` or another
//! launcher started.

mod healing;
mod nodes;
mod outside;
mod show;
mod started;

use super::launch::BEATS;
use super::ranks::on_ranks;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;
use anyhow::Result;
use planaria::ckpt::convert::Ranks;
use planaria::train::config::{Compute, Sources};
use planaria::train::{Config, Kept, Outcome, Requests, Trainer, clear_memory, persist_memory};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use show::Show;
pub(super) use started::Started;

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
    /// Bring what hosts have only in memory to the run's folder, and stop; `launch` asks for it when it does not start the run again
    #[arg(long, hide = true, value_enum, value_name = "WHAT")]
    settle: Option<Settle>,
}

/// What becomes of the memory of a run that is not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Settle {
    /// It stays: the run is found there quicker than in its folder
    Keep,
    /// It is freed
    Free,
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
    if let Some(settle) = args.settle {
        return settle_memory(&config, &place, settle, terminal);
    }
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
    if place.is_watched() {
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

/// Does what is left to do about the memory of a run, on every host of it.
fn settle_memory(config: &Config, place: &Started, settle: Settle, terminal: &mut Terminal) -> Result<Exit> {
    let free = settle == Settle::Free;
    let kept = on_ranks(place, |ranks| match ranks {
        Some(Ranks { world, hosts }) => Ok(Trainer::new(config.clone()).settle_on(world, hosts, free)?),
        None => {
            let kept = persist_memory(config)?;
            if free {
                clear_memory(config)?;
            }
            Ok(kept)
        }
    })?;
    if let Kept::Copied(folder) = kept {
        terminal.warn(format!("{folder} was only in memory; it is in '{}' now", config.run_dir().display()));
    }
    Ok(Exit::Success)
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
