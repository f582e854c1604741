//! One rank under `mpirun`: the command with the variables of torchrun, its output with the rank in front of each line.

use super::own;
use super::record::{self, Record};
use super::stop::send;
use crate::exit::Exit;
use crate::signals::Signals;
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lines of standard error that are kept for the message.
const LAST: usize = 8;

/// Time between two looks at the command.
const PULSE: Duration = Duration::from_millis(50);

/// What `mpirun` calls what torchrun calls otherwise.
const VARIABLES: [(&str, &[&str]); 4] = [
    ("RANK", &["OMPI_COMM_WORLD_RANK", "PMI_RANK"]),
    ("WORLD_SIZE", &["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]),
    ("LOCAL_RANK", &["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"]),
    ("LOCAL_WORLD_SIZE", &["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"]),
];

pub(super) fn run(folder: &Path, command: &[String]) -> Result<Exit> {
    let signals = Signals::watch()?;
    let mut command = own(command)?;
    for (name, sources) in VARIABLES {
        if let Some(value) = sources.iter().find_map(|source| std::env::var(source).ok()) {
            command.env(name, value);
        }
    }
    command.env(
        "GROUP_RANK",
        std::env::var("OMPI_COMM_WORLD_NODE_RANK").map_or("0".into(), |_| "0".to_string()),
    );
    let rank: usize = value_of(&command, "RANK").and_then(|text| text.parse().ok()).unwrap_or(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start the command of this rank")?;
    let copies = Copies::start(&mut child, shown(rank));
    let status = wait(&mut child, folder, &signals)?;
    Ok(end(folder, rank, status, copies.finish()))
}

/// Takes a line of a rank's output, and whether it is of its standard error.
pub(super) type Tell = Arc<dyn Fn(bool, &str) + Send + Sync>;

/// Prints lines with the rank in front.
pub(super) fn shown(rank: usize) -> Tell {
    Arc::new(move |error, line| {
        // A line that cannot be printed has nobody to read it.
        let _ = match error {
            true => writeln!(std::io::stderr(), "[{rank}] {line}"),
            false => writeln!(std::io::stdout(), "[{rank}] {line}"),
        };
    })
}

/// The output of a rank's process, passed on line by line.
#[derive(Debug, Default)]
pub(super) struct Copies {
    threads: Vec<JoinHandle<()>>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Copies {
    /// Of a process whose output was piped.
    pub(super) fn start(child: &mut Child, tell: Tell) -> Copies {
        let last: Arc<Mutex<VecDeque<String>>> = Arc::default();
        let out = child.stdout.take().map(|from| copy(from, tell.clone(), None));
        let err = child.stderr.take().map(|from| copy(from, tell, Some(last.clone())));
        Copies { threads: out.into_iter().chain(err).collect(), last }
    }

    /// The end of what it said on standard error.
    pub(super) fn finish(self) -> Vec<String> {
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
        self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// How a rank failed, if it did. Stopping on request is not a failure.
pub(super) fn record_of(rank: usize, status: ExitStatus, last: Vec<String>) -> Option<Record> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
    let (code, signal) = (status.code(), status.signal());
    (!matches!(code, Some(0 | 75))).then_some(Record { time, rank, code, signal, last })
}

fn value_of(command: &Command, name: &str) -> Option<String> {
    let (_, value) = command.get_envs().find(|(key, _)| *key == name)?;
    Some(value?.to_string_lossy().into_owned())
}

/// Notes how the rank ended. Stopping on request is not a failure, for which `mpirun` would end the others.
fn end(folder: &Path, rank: usize, status: ExitStatus, last: Vec<String>) -> Exit {
    if status.code() == Some(75) {
        record::note_stopped(folder);
    }
    let Some(record) = record_of(rank, status, last) else { return Exit::Success };
    record.write(folder);
    match record.signal {
        Some(signal) => Exit::Signal(signal as u8),
        None if record.code == Some(2) => Exit::Usage,
        None => Exit::Negative,
    }
}

/// Passes on lines; the last ones of standard error are kept.
fn copy(
    from: impl Read + Send + 'static,
    tell: Tell,
    last: Option<Arc<Mutex<VecDeque<String>>>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(std::result::Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            tell(last.is_some(), &line);
            if let Some(last) = &last {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                last.push_back(line);
                let more = last.len().saturating_sub(LAST);
                last.drain(..more);
            }
        }
    })
}

/// Waits for the command; passes on the wish to stop, whether the launcher has it or a signal to this process.
fn wait(child: &mut Child, folder: &Path, signals: &Signals) -> Result<ExitStatus> {
    let mut told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if !told && (record::is_asked_to_stop(folder) || signals.came().is_some()) {
            told = true;
            send(child.id(), "TERM");
        }
        std::thread::sleep(PULSE);
    }
}
