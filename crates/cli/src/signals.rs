//! Interrupts: work that writes is told to stop, so that it can take away what it began.

use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Which signal came, if one did.
#[derive(Clone, Debug)]
pub(crate) struct Signals(Arc<AtomicUsize>);

impl Signals {
    /// Watches for SIGINT and SIGTERM. The second one ends the process at once.
    pub(crate) fn watch() -> Result<Signals> {
        let came = Arc::new(AtomicUsize::new(0));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let again = Arc::new(std::sync::atomic::AtomicBool::new(false));
            // In this order: the first signal arms the exit, the second meets it armed.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?;
            signal_hook::flag::register(signal, again)?;
            signal_hook::flag::register_usize(signal, came.clone(), signal as usize)?;
        }
        Ok(Signals(came))
    }

    /// The signal that came.
    pub(crate) fn came(&self) -> Option<u8> {
        match self.0.load(Relaxed) {
            0 => None,
            signal => Some(signal as u8),
        }
    }
}
