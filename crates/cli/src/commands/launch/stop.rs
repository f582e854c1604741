//! Signals to the launcher: the first one asks the ranks to save and stop, the second one ends them.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// The signals that came so far.
#[derive(Clone, Debug)]
pub(super) struct Stop(Arc<Came>);

#[derive(Debug, Default)]
struct Came {
    count: AtomicUsize,
    last: AtomicUsize,
    grow: AtomicBool,
}

impl Stop {
    /// Watches for SIGINT and SIGTERM, which from now on do not end this process.
    pub(super) fn watch() -> Result<Stop> {
        let came = Arc::new(Came::default());
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR2])
            .context("cannot watch signals")?;
        let noted = came.clone();
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if signal == SIGUSR2 {
                    noted.grow.store(true, SeqCst);
                    continue;
                }
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

    /// True once lost ranks are said to be back.
    pub(super) fn is_grow(&self) -> bool {
        self.0.grow.load(SeqCst)
    }

    /// They are taken in.
    pub(super) fn grown(&self) {
        self.0.grow.store(false, SeqCst);
    }

    /// The last signal.
    pub(super) fn signal(&self) -> u8 {
        self.0.last.load(SeqCst) as u8
    }
}

/// Sends a signal to a process that this one has started.
pub(super) fn send(process: u32, signal: &str) {
    // The shell's own `kill`: small systems have no other. A process that has just ended needs no signal.
    let mut kill = Command::new("sh");
    kill.args(["-c", &format!("kill -s {signal} {process}")]).stdin(Stdio::null()).stderr(Stdio::null());
    let _ = kill.status();
}
