//! One attempt of a job: its processes are started, watched, and ended together.

use super::hang::{self, Hang, Watch};
use super::hosts::there::{Hosts, Lost, Wanted};
use super::hosts::{Host, placed};
use super::rank::{self, Copies};
use super::record::{self, Record};
use super::stop::{Stop, send};
use super::{ENGINE, Engine, MEETING, own};
use anyhow::{Context, Result};
use planaria::train::beat::Beat;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time between two looks at the processes.
const PULSE: Duration = Duration::from_millis(20);

/// How long the others may take to end once one of them has failed, and a job that was told to end.
const GRACE: Duration = Duration::from_secs(10);

/// The port that torchrun would give; ours need none.
const PORT: &str = "29500";

/// Variable with the folder where ranks tell how they are.
pub(crate) const BEATS: &str = "PLANARIA_BEATS";

/// What is started.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    pub(super) engine: Engine,
    pub(super) command: &'a [String],
    pub(super) ranks: u32,
    /// Machines; none for this one alone.
    pub(super) hosts: &'a [Host],
    /// How a command is started on them.
    pub(super) start: &'a str,
    /// Variables that ranks of other machines get too.
    pub(super) exported: Vec<(String, String)>,
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
    /// Machines that were lost.
    pub(super) lost: Vec<String>,
}

/// One rank as a process of its own, and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local: u32,
    pub(super) local_size: u32,
    /// The number of its machine.
    pub(super) host: usize,
}

impl Rank {
    /// The command with the variables of torchrun, whose output is read here.
    pub(super) fn command(&self, words: &[String]) -> Result<Command> {
        let mut command = own(words)?;
        let Rank { rank, size, local, local_size, host } = *self;
        let host = host as u32;
        let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"];
        for (name, value) in names.into_iter().zip([rank, size, local, local_size, host]) {
            command.env(name, value.to_string());
        }
        // Standard input says nothing and ends when this process does, so that ranks see that they are alone.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A terminal sends Ctrl-C to all of this process's group; ranks hear it from here, once.
        command.process_group(0);
        Ok(command)
    }
}

/// A process of the job.
#[derive(Debug)]
struct Member {
    /// The rank that it is; none for one that stands for all of them.
    rank: Option<usize>,
    running: Running,
    status: Option<ExitStatus>,
    /// It was killed because another one had failed, or because all were told to end.
    killed: bool,
}

/// Where a process runs.
#[derive(Debug)]
enum Running {
    Here(Child, Copies),
    /// On another machine, by the number of its rank.
    There(usize),
}

impl Member {
    fn look(&mut self, hosts: Option<&Hosts>) -> Result<()> {
        self.status = match &mut self.running {
            Running::Here(child, _) => child.try_wait()?,
            Running::There(rank) => hosts.and_then(|hosts| hosts.status(*rank)),
        };
        Ok(())
    }

    fn signal(&self, hosts: &mut Option<Hosts>, signal: &str) {
        match (&self.running, hosts) {
            (Running::Here(child, _), _) => send(child.id(), signal),
            (Running::There(rank), Some(hosts)) => hosts.signal(*rank, signal),
            (Running::There(_), None) => {}
        }
    }

    fn kill(&mut self, hosts: &mut Option<Hosts>) {
        if self.killed && matches!(self.running, Running::There(_)) {
            return;
        }
        self.killed |= match (&mut self.running, hosts) {
            (Running::Here(child, _), _) => child.kill().is_ok(),
            (Running::There(rank), Some(hosts)) => {
                hosts.signal(*rank, "KILL");
                true
            }
            (Running::There(_), None) => false,
        };
    }

    /// The end of what it said.
    fn last(self, hosts: Option<&Hosts>) -> Vec<String> {
        match self.running {
            Running::Here(_, copies) => copies.finish(),
            Running::There(rank) => hosts.map(|hosts| hosts.last(rank)).unwrap_or_default(),
        }
    }
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
        let mut hosts = match self.agents()? {
            Some(Err(lost)) => return Ok(self.without(&lost)),
            Some(Ok(hosts)) => Some(hosts),
            None => None,
        };
        let mut members = self.start()?;
        let mut watch = Watch::new(self.hang, super::mesh::trains(self.command));
        let mut ending = Ending::default();
        loop {
            if let Some(hosts) = &mut hosts {
                hosts.pump(self.folder);
            }
            for member in members.iter_mut().filter(|member| member.status.is_none()) {
                member.look(hosts.as_ref())?;
                let bad = member.status.is_some_and(|status| !matches!(status.code(), Some(0 | 75)));
                if bad {
                    ending.failed.get_or_insert_with(Instant::now);
                }
            }
            if members.iter().all(|member| member.status.is_some()) {
                break;
            }
            if ending.hang.is_none() && ending.failed.is_none() {
                ending.hang = watch.look(self.folder, &mut |beat| match &mut hosts {
                    Some(hosts) => hosts.look(beat.rank, self.folder),
                    None => hang::inside(beat.process),
                });
            }
            let due = self.grow.is_some_and(|after| began.elapsed() > after) || stop.is_grow();
            // Before its first step a rank may not know yet what it is asked.
            let ready = !watch.beats().is_empty() && watch.beats().iter().all(|beat| beat.step > 0);
            if due && ready && !ending.grown && ending.told == 0 && self.grow.is_some() {
                ending.grown = true;
                self.ask_to_stop(&members, &mut hosts);
            }
            self.pass_on(stop, &mut members, &mut hosts, &mut ending, &watch);
            std::thread::sleep(PULSE);
        }
        watch.end(self.folder);
        self.ended(members, hosts.as_ref(), ending, watch.beats().to_vec())
    }

    /// Passes on signals; ends what must end.
    fn pass_on(
        &self,
        stop: &Stop,
        members: &mut [Member],
        hosts: &mut Option<Hosts>,
        ending: &mut Ending,
        watch: &Watch,
    ) {
        let times = stop.times();
        if times > ending.told {
            match ending.told {
                0 if !ending.grown => self.ask_to_stop(members, hosts),
                _ => {
                    ending.since.get_or_insert_with(Instant::now);
                    running(members).for_each(|member| member.signal(hosts, "TERM"));
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
                member.kill(hosts);
            }
        }
    }

    /// Asks for a save and an end.
    fn ask_to_stop(&self, members: &[Member], hosts: &mut Option<Hosts>) {
        match self.engine {
            // mpirun would end its ranks at once, so they are told behind its back.
            Engine::Mpi => record::ask_to_stop(self.folder),
            _ => running(members).for_each(|member| member.signal(hosts, "TERM")),
        }
    }

    /// The agents of all machines, where there are others; or the machine that has none.
    fn agents(&self) -> Result<Option<std::result::Result<Hosts, Lost>>> {
        if self.hosts.is_empty() || self.engine != Engine::Processes {
            return Ok(None);
        }
        let mut variables = self.exported.clone();
        variables.extend(self.variables().map(|(name, value)| (name.to_string(), value)));
        let (hosts, start, ranks, command) = (self.hosts, self.start, self.ranks, self.command);
        Hosts::start(&Wanted { hosts, start, ranks, command, variables }).map(Some)
    }

    /// How an attempt ends that could not begin because a machine is lost.
    fn without(&self, lost: &Lost) -> Ended {
        let Lost { host, why } = lost;
        let status = ExitStatus::from_raw(9);
        let ranks = placed(self.hosts, self.ranks).into_iter().find(|(found, _)| found.name == *host);
        let last = vec![format!("host '{host}' is lost: {why}")];
        let record = |rank: u32| rank::record_of(rank as usize, status, last.clone());
        let records = ranks.into_iter().flat_map(|(_, ranks)| ranks).filter_map(record).collect();
        let lost = vec![host.clone()];
        Ended { status, records, hang: None, grown: false, beats: Vec::new(), lost }
    }

    fn ended(
        &self,
        members: Vec<Member>,
        hosts: Option<&Hosts>,
        ending: Ending,
        beats: Vec<Beat>,
    ) -> Result<Ended> {
        let (mut records, mut statuses) = (Vec::new(), Vec::new());
        for member in members {
            let Member { rank, status: Some(status), killed, .. } = member else { continue };
            let failed = rank::record_of(rank.unwrap_or(0), status, member.last(hosts));
            let by_us = |record: &Record| killed && was_ended_by_us(record, ending.hang.as_ref());
            records.extend(failed.filter(|record| rank.is_some() && !by_us(record)));
            statuses.push(status);
        }
        records.extend(Record::read_all(self.folder));
        records.sort_by(Record::cause_first);
        let cause = records.first().and_then(|first: &Record| statuses.get(first.rank));
        let failed = statuses.iter().find(|status| !status.success());
        let status = cause.or(failed).or(statuses.first()).copied().context("a job without processes")?;
        let lost = hosts.map(Hosts::lost).unwrap_or_default();
        Ok(Ended { status, records, hang: ending.hang, grown: ending.grown, beats, lost })
    }

    /// Starts the processes.
    fn start(&self) -> Result<Vec<Member>> {
        match self.engine {
            Engine::Processes => (0..self.ranks).map(|rank| self.process(rank)).collect(),
            _ => Ok(vec![self.one()?]),
        }
    }

    fn process(&self, rank: u32) -> Result<Member> {
        let number = rank as usize;
        if !self.hosts.is_empty() {
            return Ok(Member {
                rank: Some(number),
                running: Running::There(number),
                status: None,
                killed: false,
            });
        }
        let one = Rank { rank, size: self.ranks, local: rank, local_size: self.ranks, host: 0 };
        let mut command = one.command(self.command)?;
        command.env(ENGINE, "processes").env(MEETING, self.folder);
        let mut child = self.spawn(&mut command)?;
        let copies = Copies::start(&mut child, rank::shown(number));
        Ok(Member { rank: Some(number), running: Running::Here(child, copies), status: None, killed: false })
    }

    /// One process for all ranks: threads, or mpirun.
    fn one(&self) -> Result<Member> {
        let mut command = match self.engine {
            Engine::Mpi => {
                let mut command = Command::new("mpirun");
                command.args(["--oversubscribe", "-n", &self.ranks.to_string()]);
                if !self.hosts.is_empty() {
                    let host = |(host, ranks): (Host, std::ops::Range<u32>)| {
                        format!("{}:{}", host.name, ranks.len())
                    };
                    let hosts: Vec<String> = placed(self.hosts, self.ranks).into_iter().map(host).collect();
                    command.args(["--host", &hosts.join(",")]);
                }
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
        Ok(Member {
            rank: None,
            running: Running::Here(child, Copies::default()),
            status: None,
            killed: false,
        })
    }

    /// Variables of torchrun that are the same for every rank.
    fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("MASTER_PORT", PORT.into()),
            ("TORCHELASTIC_RESTART_COUNT", self.restarts.to_string()),
            ("TORCHELASTIC_MAX_RESTARTS", self.max_restarts.to_string()),
        ]
    }

    fn spawn(&self, command: &mut Command) -> Result<Child> {
        if self.engine == Engine::Threads {
            let size = self.ranks.to_string();
            command.env("WORLD_SIZE", &size).env("LOCAL_WORLD_SIZE", &size);
        }
        command.env("MASTER_ADDR", "127.0.0.1").envs(self.variables());
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
