//! The launcher's side of a job on several machines: an agent on each of them, and what they tell.

use super::wire::{Ask, Begin, Told};
use super::{ADDRESS, Host, SECRET_WORD, hex, placed};
use crate::failure::Failure;
use anyhow::{Context, Result};
use planaria::comm::sockets::SECRET;
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an agent may take to say that it is there.
const HELLO: Duration = Duration::from_secs(60);

/// How long it may take to say that a rank it was told to kill has ended, before its machine counts as lost.
const DEAF: Duration = Duration::from_secs(5);

/// How long a look at a rank may take.
const LOOK: Duration = Duration::from_secs(15);

/// Lines of an agent's standard error that are kept.
const LAST: usize = 4;

/// What is started on all machines.
#[derive(Debug)]
pub(in super::super) struct Wanted<'a> {
    pub(in super::super) hosts: &'a [Host],
    /// How a command is started on a machine; `{host}` is its name.
    pub(in super::super) start: &'a str,
    pub(in super::super) ranks: u32,
    pub(in super::super) command: &'a [String],
    pub(in super::super) variables: Vec<(String, String)>,
}

/// A machine that cannot take part.
#[derive(Debug)]
pub(in super::super) struct Lost {
    pub(in super::super) host: String,
    pub(in super::super) why: String,
}

/// The machines of one attempt.
#[derive(Debug)]
pub(in super::super) struct Hosts {
    agents: Vec<Agent>,
    told: Receiver<(usize, Option<Told>)>,
    /// When ranks were killed first.
    killed: Option<Instant>,
    ended: BTreeMap<usize, (ExitStatus, Vec<String>)>,
}

#[derive(Debug)]
struct Agent {
    name: String,
    ranks: Range<u32>,
    child: Child,
    stdin: Option<ChildStdin>,
    /// The end of what its own program said, such as ssh.
    said: Arc<Mutex<VecDeque<String>>>,
    /// Why it counts as lost.
    lost: Option<String>,
}

impl Agent {
    fn ask(&mut self, ask: &Ask) {
        let text = serde_json::to_string(ask).unwrap_or_default();
        // One that does not listen any more is noticed when it stops talking.
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{text}").and_then(|()| stdin.flush());
        }
    }

    fn has(&self, rank: usize) -> bool {
        self.ranks.contains(&(rank as u32))
    }

    fn last_words(&self) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().map(|line| format!("; {line}")).collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stdin = None;
        // An agent whose ranks have ended ends by itself.
        if self.lost.is_some() {
            let _ = self.child.kill();
        }
        let until = Instant::now() + DEAF;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Hosts {
    /// Starts an agent on every machine, compares their programs with this one, and has them start their ranks.
    pub(in super::super) fn start(wanted: &Wanted<'_>) -> Result<std::result::Result<Hosts, Lost>> {
        let (to, told) = channel();
        let mut agents = Vec::new();
        for (number, (host, ranks)) in placed(wanted.hosts, wanted.ranks).into_iter().enumerate() {
            match agent(number, &host, ranks, wanted.start, &to) {
                Ok(agent) => agents.push(agent),
                Err(error) => return Ok(Err(Lost { host: host.name, why: format!("{error:#}") })),
            }
        }
        drop(to);
        let mut hosts = Hosts { agents, told, killed: None, ended: BTreeMap::new() };
        if let Err(lost) = hosts.greet()? {
            return Ok(Err(lost));
        }
        let secret = hex(&secret()?);
        let folder = std::env::current_dir().context("cannot find this folder")?.display().to_string();
        let first = hosts.agents[0].name.clone();
        for (number, agent) in hosts.agents.iter_mut().enumerate() {
            let mut variables = wanted.variables.clone();
            // The user of another machine is no part of its address.
            let address = agent.name.rsplit('@').next().unwrap_or_default().to_string();
            let own = [(ADDRESS, address), (SECRET_WORD, secret.clone()), ("MASTER_ADDR", first.clone())];
            variables.extend(own.map(|(name, value)| (name.to_string(), value)));
            let (ranks, command, folder) = (agent.ranks.clone(), wanted.command.to_vec(), folder.clone());
            agent.ask(&Ask::Begin(Begin { ranks, size: wanted.ranks, number, command, folder, variables }));
        }
        Ok(Ok(hosts))
    }

    /// Waits until every agent has said what it is.
    fn greet(&mut self) -> Result<std::result::Result<(), Lost>> {
        let ours = Told::hello();
        let until = Instant::now() + HELLO;
        let mut here = vec![false; self.agents.len()];
        while let Some(missing) = here.iter().position(|here| !here) {
            let left = until.saturating_duration_since(Instant::now());
            let lost = |agent: &Agent, why: &str| {
                let why = format!("{why}{}", agent.last_words());
                Ok(Err(Lost { host: agent.name.clone(), why }))
            };
            match self.told.recv_timeout(left) {
                Ok((number, Some(theirs))) if theirs == ours => here[number] = true,
                Ok((number, Some(theirs @ Told::Hello { .. }))) => {
                    let name = &self.agents[number].name;
                    let message = format!("host '{name}' has {}, this one {}", shown(&theirs), shown(&ours));
                    return Err(Failure::usage(message).hint("install the same program on all hosts").into());
                }
                Ok((number, Some(other))) => {
                    return lost(&self.agents[number], &format!("its agent said {other:?} first"));
                }
                Ok((number, None)) => {
                    let agent = &mut self.agents[number];
                    // What it said last may be on its way.
                    std::thread::sleep(Duration::from_millis(50));
                    agent.lost = Some("no agent".into());
                    return lost(agent, "its agent could not be started");
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    self.agents[missing].lost = Some("no agent".into());
                    return lost(&self.agents[missing], "its agent has not answered for a minute");
                }
            }
        }
        Ok(Ok(()))
    }

    /// Takes in what agents have told: lines are printed, addresses passed on, beats noted in the launcher's folder.
    pub(in super::super) fn pump(&mut self, folder: &Path) {
        while let Ok((number, told)) = self.told.try_recv() {
            self.hear(number, told, folder);
        }
        if self.killed.is_some_and(|killed| killed.elapsed() > DEAF) {
            for number in 0..self.agents.len() {
                self.lose(number, "its agent does not answer");
            }
        }
    }

    fn hear(&mut self, number: usize, told: Option<Told>, folder: &Path) {
        match told {
            None => self.lose(number, "the connection to its agent has ended"),
            Some(Told::Failed { why }) => self.lose(number, &why),
            Some(Told::Hello { .. } | Told::Inside { .. }) => {}
            Some(Told::Line { rank, error, text }) => {
                let line = format!("[{rank}@{}] {text}", self.agents[number].name);
                if error { eprintln!("{line}") } else { println!("{line}") }
            }
            Some(Told::Address { rank, address }) => {
                let ask = Ask::Address { rank, address };
                let others = self.agents.iter_mut().enumerate().filter(|(other, _)| *other != number);
                others.for_each(|(_, agent)| agent.ask(&ask));
            }
            Some(Told::Beat { rank, text }) => {
                // A beat that cannot be noted only makes the report of a hang shorter.
                let _ = std::fs::write(folder.join(format!("rank-{rank:05}.beat")), text);
            }
            Some(Told::Ended { rank, code, signal, last }) => {
                let raw = signal.unwrap_or_else(|| (code.unwrap_or(1) & 0xff) << 8);
                self.ended.insert(rank, (ExitStatus::from_raw(raw), last));
            }
        }
    }

    /// Counts the ranks of a machine that have not ended as killed.
    fn lose(&mut self, number: usize, why: &str) {
        let agent = &mut self.agents[number];
        let left: Vec<usize> = agent
            .ranks
            .clone()
            .map(|rank| rank as usize)
            .filter(|rank| !self.ended.contains_key(rank))
            .collect();
        if left.is_empty() {
            return;
        }
        let why = format!("host '{}' is lost: {why}{}", agent.name, agent.last_words());
        agent.lost = Some(why.clone());
        for rank in left {
            self.ended.insert(rank, (ExitStatus::from_raw(9), vec![why.clone()]));
        }
    }

    /// How a rank has ended, once it has.
    pub(in super::super) fn status(&self, rank: usize) -> Option<ExitStatus> {
        self.ended.get(&rank).map(|(status, _)| *status)
    }

    /// What it said last.
    pub(in super::super) fn last(&self, rank: usize) -> Vec<String> {
        self.ended.get(&rank).map(|(_, last)| last.clone()).unwrap_or_default()
    }

    pub(in super::super) fn signal(&mut self, rank: usize, signal: &str) {
        if signal == "KILL" {
            self.killed.get_or_insert_with(Instant::now);
        }
        let ask = Ask::Signal { rank, signal: signal.into() };
        self.agents.iter_mut().filter(|agent| agent.has(rank)).for_each(|agent| agent.ask(&ask));
    }

    /// What a rank that stands still is doing, as its machine tells.
    pub(in super::super) fn look(&mut self, rank: usize, folder: &Path) -> String {
        let Some(agent) = self.agents.iter_mut().find(|agent| agent.has(rank)) else { return String::new() };
        let name = agent.name.clone();
        agent.ask(&Ask::Look { rank });
        let until = Instant::now() + LOOK;
        while let Ok((number, told)) = self.told.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            match told {
                Some(Told::Inside { rank: of, text }) if of == rank => {
                    return format!(" on host '{name}'{text}");
                }
                other => self.hear(number, other, folder),
            }
        }
        format!(" on host '{name}', which does not answer")
    }

    /// Machines that were lost.
    pub(in super::super) fn lost(&self) -> Vec<String> {
        self.agents.iter().filter(|agent| agent.lost.is_some()).map(|agent| agent.name.clone()).collect()
    }
}

fn shown(hello: &Told) -> String {
    match hello {
        Told::Hello { version, features } => format!("planaria {version} with [{}]", features.join(", ")),
        other => format!("{other:?}"),
    }
}

/// Bytes that nobody can guess.
fn secret() -> Result<[u8; SECRET]> {
    let mut secret = [0; SECRET];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut secret));
    read.context("cannot read '/dev/urandom'")?;
    Ok(secret)
}

/// Starts an agent, and a thread that passes on what it tells.
fn agent(
    number: usize,
    host: &Host,
    ranks: Range<u32>,
    start: &str,
    to: &Sender<(usize, Option<Told>)>,
) -> Result<Agent> {
    let mut words: Vec<String> =
        start.split_whitespace().map(|word| word.replace("{host}", &host.name)).collect();
    if !start.contains("{host}") {
        words.push(host.name.clone());
    }
    let own = std::env::current_exe()?.display().to_string();
    words.extend([own, "launch".into(), "--as-host".into()]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A terminal sends Ctrl-C to all of this process's group; ranks hear it from here, once.
    command.process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start '{}'", words.join(" ")))?;
    let said: Arc<Mutex<VecDeque<String>>> = Arc::default();
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (heard, words) = (to.clone(), said.clone());
    std::thread::spawn(move || {
        for line in
            out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(std::result::Result::ok)
        {
            // What the machine itself prints at a login is not ours.
            if let Ok(told) = serde_json::from_str(&line)
                && heard.send((number, Some(told))).is_err()
            {
                return;
            }
        }
        let _ = heard.send((number, None));
    });
    std::thread::spawn(move || {
        for line in
            err.into_iter().flat_map(|err| BufReader::new(err).lines()).map_while(std::result::Result::ok)
        {
            let mut said = words.lock().unwrap_or_else(PoisonError::into_inner);
            said.push_back(line);
            let more = said.len().saturating_sub(LAST);
            said.drain(..more);
        }
    });
    Ok(Agent { name: host.name.clone(), ranks, child, stdin, said, lost: None })
}
