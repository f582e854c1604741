//! Exit codes: what a script can rely on.

use std::process::ExitCode;

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "the table is complete even where no verb needs a row yet")]
pub(crate) enum Exit {
    /// Done.
    Success,
    /// The answer is no (`verify`, `diff`), or the run failed.
    Negative,
    /// Wrong use or configuration.
    Usage,
    /// Data is damaged.
    Damaged,
    /// A peer was lost or did not answer in time.
    PeerLost,
    /// This rank computes wrongly, as others see it.
    Suspect,
    /// Stopped on request after saving; may be started again.
    Stopped,
    /// Ended by this signal.
    Signal(u8),
}

impl Exit {
    /// The number.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Negative => 1,
            Exit::Usage => 2,
            Exit::Damaged => 3,
            Exit::PeerLost => 4,
            Exit::Suspect => 5,
            Exit::Stopped => 75,
            Exit::Signal(number) => 128u8.saturating_add(number),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
