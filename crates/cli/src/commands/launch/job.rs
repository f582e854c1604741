//! One attempt of a job: its processes are started, watched, and ended together.

use super::hang::{Hang, Watch};
use super::rank::{self, Copies};
use super::record::{self, Record};
use super::stop::{Stop, send};
use super::{ENGINE, Engine, MEETING, own};
use anyhow::{Context, Result};
use planaria::train::beat::Beat;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time between two looks at the processes.
const PULSE: Duration = Duration::from_millis(20);

/// How long the others may take to end once one of them has failed, and a job that was told to end.
const GRACE: Duration = Duration::from_secs(10);

/// Variable with the folder where ranks tell how they are.
pub(crate) const BEATS: &str = "PLANARIA_BEATS";

/// What is started.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    pub(super) engine: Engine,
    pub(super) command: &'a [String],
    pub(super) ranks: u32,
    pub(super) restarts: u32,
    pub(super) max_restarts: u32,
    pub(super) hang: Option<Duration>,
    /// Ask the job to save and stop after this long, to start it on more ranks.
    pub(super) grow: Option<Duration>,
    pub(super) folder: &'a Path,
}

/// How an attempt ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// The status of the process that decides.
    pub(super) status: ExitStatus,
    /// How ranks failed, the first cause first.
    pub(super) records: Vec<Record>,
    pub(super) hang: Option<Hang>,
    /// It was asked to stop so that it can be started on more ranks.
    pub(super) grown: bool,
    /// What ranks last told.
    pub(super) beats: Vec<Beat>,
}

/// A process of the job.
#[derive(Debug)]
struct Member {
    /// The rank that it is; none for one that stands for all of them.
    rank: Option<usize>,
    child: Child,
    copies: Copies,
    status: Option<ExitStatus>,
    /// It was killed because another one had failed, or because all were told to end.
    killed: bool,
}

/// Why a job ends before it is done.
#[derive(Debug, Default)]
struct Ending {
    /// A member has failed.
    failed: Option<Instant>,
    hang: Option<Hang>,
    /// Signals passed on so far.
    told: usize,
    since: Option<Instant>,
    grown: bool,
}

impl Attempt<'_> {
    /// Runs the job to its end.
    pub(super) fn run(&self, stop: &Stop) -> Result<Ended> {
        let began = Instant::now();
        let mut members = self.start()?;
        let mut watch = Watch::new(self.hang, super::mesh::trains(self.command));
        let mut ending = Ending::default();
        loop {
            for member in members.iter_mut().filter(|member| member.status.is_none()) {
                member.status = member.child.try_wait()?;
                let bad = member.status.is_some_and(|status| !matches!(status.code(), Some(0 | 75)));
                if bad {
                    ending.failed.get_or_insert_with(Instant::now);
                }
            }
            if members.iter().all(|member| member.status.is_some()) {
                break;
            }
            if ending.hang.is_none() && ending.failed.is_none() {
                ending.hang = watch.look(self.folder);
            }
            let due = self.grow.is_some_and(|after| began.elapsed() > after) || stop.is_grow();
            // Before its first step a rank may not know yet what it is asked.
            let ready = !watch.beats().is_empty() && watch.beats().iter().all(|beat| beat.step > 0);
            if due && ready && !ending.grown && ending.told == 0 && self.grow.is_some() {
                ending.grown = true;
                self.ask_to_stop(&members);
            }
            self.pass_on(stop, &mut members, &mut ending, &watch);
            std::thread::sleep(PULSE);
        }
        watch.end(self.folder);
        self.ended(members, ending, watch.beats().to_vec())
    }

    /// Passes on signals; ends what must end.
    fn pass_on(&self, stop: &Stop, members: &mut [Member], ending: &mut Ending, watch: &Watch) {
        let times = stop.times();
        if times > ending.told {
            match ending.told {
                0 if !ending.grown => self.ask_to_stop(members),
                _ => {
                    ending.since.get_or_insert_with(Instant::now);
                    running(members).for_each(|member| send(member.child.id(), "TERM"));
                }
            }
            ending.told = times;
        }
        let late = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() > GRACE);
        if ending.hang.is_some() || late(ending.failed) || late(ending.since) {
            // Processes behind mpirun are not ours to wait for, but they told who they are.
            let behind = watch.beats().iter().filter(|_| self.engine == Engine::Mpi && ending.hang.is_some());
            behind.for_each(|beat| send(beat.process, "KILL"));
            for member in members.iter_mut().filter(|member| member.status.is_none()) {
                member.killed |= member.child.kill().is_ok();
            }
        }
    }

    /// Asks for a save and an end.
    fn ask_to_stop(&self, members: &[Member]) {
        match self.engine {
            // mpirun would end its ranks at once, so they are told behind its back.
            Engine::Mpi => record::ask_to_stop(self.folder),
            _ => running(members).for_each(|member| send(member.child.id(), "TERM")),
        }
    }

    fn ended(&self, members: Vec<Member>, ending: Ending, beats: Vec<Beat>) -> Result<Ended> {
        let (mut records, mut statuses) = (Vec::new(), Vec::new());
        for Member { rank, copies, status, killed, .. } in members {
            let Some(status) = status else { continue };
            let failed = rank::record_of(rank.unwrap_or(0), status, copies.finish());
            let by_us = |record: &Record| killed && was_ended_by_us(record, ending.hang.as_ref());
            records.extend(failed.filter(|record| rank.is_some() && !by_us(record)));
            statuses.push(status);
        }
        records.extend(Record::read_all(self.folder));
        records.sort_by(Record::cause_first);
        let cause = records.first().and_then(|first: &Record| statuses.get(first.rank));
        let failed = statuses.iter().find(|status| !status.success());
        let status = cause.or(failed).or(statuses.first()).copied().context("a job without processes")?;
        Ok(Ended { status, records, hang: ending.hang, grown: ending.grown, beats })
    }

    /// Starts the processes.
    fn start(&self) -> Result<Vec<Member>> {
        match self.engine {
            Engine::Processes => (0..self.ranks).map(|rank| self.process(rank)).collect(),
            _ => Ok(vec![self.one()?]),
        }
    }

    fn process(&self, rank: u32) -> Result<Member> {
        let mut command = own(self.command)?;
        let number = rank.to_string();
        command.envs([("RANK", &number), ("LOCAL_RANK", &number)]).env("GROUP_RANK", "0");
        command.env(ENGINE, "processes").env(MEETING, self.folder);
        // Standard input says nothing and ends when this process does, so that ranks see that they are alone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A terminal sends Ctrl-C to all of this process's group; ranks hear it from here, once.
        command.process_group(0);
        let mut child = self.spawn(&mut command)?;
        let copies = Copies::start(&mut child, rank as usize);
        Ok(Member { rank: Some(rank as usize), child, copies, status: None, killed: false })
    }

    /// One process for all ranks: threads, or mpirun.
    fn one(&self) -> Result<Member> {
        let mut command = match self.engine {
            Engine::Mpi => {
                let mut command = Command::new("mpirun");
                command.args(["--oversubscribe", "-n", &self.ranks.to_string()]);
                command.arg(std::env::current_exe()?).args(["launch", "--as-rank"]).arg(self.folder);
                command.arg("--").args(self.command);
                // In a container everything runs as root, which Open MPI must be told twice.
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
                // A terminal sends Ctrl-C to all of this process's group; mpirun must not hear it, nor read from there.
                command.process_group(0).stdin(Stdio::null());
                command
            }
            _ => {
                let mut command = own(self.command)?;
                command.envs([("RANK", "0"), ("LOCAL_RANK", "0"), ("GROUP_RANK", "0"), (ENGINE, "threads")]);
                command
            }
        };
        let child = self.spawn(&mut command)?;
        Ok(Member { rank: None, child, copies: Copies::default(), status: None, killed: false })
    }

    fn spawn(&self, command: &mut Command) -> Result<Child> {
        if self.engine != Engine::Mpi {
            let size = self.ranks.to_string();
            command.env("WORLD_SIZE", &size).env("LOCAL_WORLD_SIZE", &size);
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29500");
        command.env("TORCHELASTIC_RESTART_COUNT", self.restarts.to_string());
        command.env("TORCHELASTIC_MAX_RESTARTS", self.max_restarts.to_string());
        command.env(BEATS, self.folder);
        let name = command.get_program().to_string_lossy().into_owned();
        command.spawn().with_context(|| format!("cannot start '{name}'"))
    }
}

/// What was killed because something else was wrong is not a cause, unless it is the one that stood still.
fn was_ended_by_us(record: &Record, hang: Option<&Hang>) -> bool {
    record.signal == Some(9) && hang.is_none_or(|hang| !hang.stuck.contains(&record.rank))
}

fn running(members: &[Member]) -> impl Iterator<Item = &Member> {
    members.iter().filter(|member| member.status.is_none())
}
