//! Requests from outside: save now, or finish the step, save and stop.

use crate::error::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Handle on a run through which others ask it for something. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    save: AtomicBool,
    stop: AtomicBool,
    signal: Arc<AtomicUsize>,
    wants_save: Arc<AtomicBool>,
}

impl Requests {
    /// Listens to signals: SIGUSR1 asks for a save; the first SIGINT or SIGTERM asks to stop after a save, the second
    /// ends the process at once.
    pub fn listen() -> Result<Requests> {
        let requests = Requests::default();
        let inner = &requests.0;
        let failed = |source| Error::Io { path: "signals".into(), source };
        for signal in [SIGINT, SIGTERM] {
            let armed = Arc::new(AtomicBool::new(false));
            // In this order: the first signal arms the exit, the second meets it armed.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, armed.clone())
                .and_then(|_| signal_hook::flag::register(signal, armed))
                .and_then(|_| {
                    signal_hook::flag::register_usize(signal, inner.signal.clone(), signal as usize)
                })
                .map_err(failed)?;
        }
        signal_hook::flag::register(SIGUSR1, inner.wants_save.clone()).map_err(failed)?;
        Ok(requests)
    }

    /// Calls `say` as soon as SIGINT or SIGTERM comes, from a thread of its own; only the first time.
    pub fn announce(&self, say: impl FnOnce() + Send + 'static) -> Result<()> {
        let failed = |source| Error::Io { path: "signals".into(), source };
        let (mut read, write) = UnixStream::pair().map_err(failed)?;
        for signal in [SIGINT, SIGTERM] {
            let write = write.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, write).map_err(failed)?;
        }
        let wait = move || {
            if read.read_exact(&mut [0]).is_ok() {
                say();
            }
        };
        std::thread::Builder::new().name("planaria-signals".into()).spawn(wait).map_err(failed)?;
        Ok(())
    }

    /// Asks for a checkpoint after this step.
    pub fn save(&self) {
        self.0.save.store(true, Ordering::SeqCst);
    }

    /// Asks to stop after this step and a save.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }

    /// Takes the request for a checkpoint.
    pub(crate) fn take_save(&self) -> bool {
        self.0.save.swap(false, Ordering::SeqCst) | self.0.wants_save.swap(false, Ordering::SeqCst)
    }

    /// True once a stop was asked for.
    pub(crate) fn is_stop(&self) -> bool {
        self.0.stop.load(Ordering::SeqCst) || self.0.signal.load(Ordering::SeqCst) != 0
    }
}
