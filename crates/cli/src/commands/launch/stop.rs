//! Signals to the launcher: the first one asks the ranks to save and stop, the second one ends them.

use super::{Engine, record};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long a job that was told to end may take.
const GRACE: Duration = Duration::from_secs(10);

/// The signals that came so far.
#[derive(Clone, Debug)]
pub(super) struct Stop(Arc<Came>);

#[derive(Debug, Default)]
struct Came {
    count: AtomicUsize,
    last: AtomicUsize,
}

impl Stop {
    /// Watches for SIGINT and SIGTERM, which from now on do not end this process.
    pub(super) fn watch() -> Result<Stop> {
        let came = Arc::new(Came::default());
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).context("cannot watch signals")?;
        let noted = came.clone();
        std::thread::spawn(move || {
            for signal in signals.forever() {
                noted.last.store(signal as usize, SeqCst);
                noted.count.fetch_add(1, SeqCst);
            }
        });
        Ok(Stop(came))
    }

    /// How often one was asked to stop.
    pub(super) fn times(&self) -> usize {
        self.0.count.load(SeqCst)
    }

    /// The last signal.
    pub(super) fn signal(&self) -> u8 {
        self.0.last.load(SeqCst) as u8
    }
}

/// What a job was told about its end.
#[derive(Debug, Default)]
pub(super) struct Told {
    to_stop: bool,
    to_end: Option<Instant>,
}

impl Told {
    /// Passes on what came.
    pub(super) fn pass_on(&mut self, stop: &Stop, child: &mut Child, engine: Engine, folder: &Path) {
        if stop.times() > 0 && !self.to_stop {
            self.to_stop = true;
            match engine {
                Engine::Threads => send(child.id(), "TERM"),
                // mpirun would end its ranks at once, so they are told behind its back.
                Engine::Mpi => record::ask_to_stop(folder),
            }
        }
        match self.to_end {
            None if stop.times() > 1 => {
                self.to_end = Some(Instant::now());
                send(child.id(), "TERM");
            }
            Some(since) if since.elapsed() > GRACE => drop(child.kill()),
            _ => {}
        }
    }
}

/// Sends a signal to a process that this one has started.
pub(super) fn send(process: u32, signal: &str) {
    // The shell's own `kill`: small systems have no other. A process that has just ended needs no signal.
    let mut kill = Command::new("sh");
    kill.args(["-c", &format!("kill -s {signal} {process}")]).stdin(Stdio::null()).stderr(Stdio::null());
    let _ = kill.status();
}
