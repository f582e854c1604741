//! What can go wrong with a device, always with what was asked of it.

use crate::late::BadValue;
use thiserror::Error;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A device that cannot be had, or that refused or failed.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// No driver on this machine, or one that does not start.
    #[error("no usable NVIDIA driver: {reason}; run on the cpu, or install driver 580 or newer")]
    NoDriver {
        /// What was tried.
        reason: String,
    },
    /// A device number that does not exist here.
    #[error("cuda:{ordinal} does not exist: CUDA devices of this machine: {count}")]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// Devices the driver shows.
        count: u32,
    },
    /// A driver call that failed. `trail` lists what was queued and not known to have finished.
    #[error("{op}: {call} failed with {code}: {text}{trail}")]
    Driver {
        /// The operation that noticed.
        op: &'static str,
        /// The driver's function.
        call: &'static str,
        /// The driver's name of the error.
        code: String,
        /// Its description.
        text: String,
        /// The queue between the last operation known to have finished and this one.
        trail: String,
    },
    /// The device has no memory left for a block.
    #[error("{op}: cannot allocate {bytes} bytes on cuda:{ordinal}: {held}")]
    OutOfMemory {
        /// The operation.
        op: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// The device.
        ordinal: u32,
        /// Who holds the memory.
        held: String,
    },
    /// A kernel that could be neither found nor compiled.
    #[error("kernel {name}: {reason}")]
    Kernel {
        /// Name of its program, with its defines.
        name: String,
        /// The compiler's log, or why there is no compiler.
        reason: String,
    },
    /// A library that is missing or refuses.
    #[error("{library}: {reason}")]
    Library {
        /// Which one.
        library: &'static str,
        /// What it said.
        reason: String,
    },
    /// A file of kernels that cannot be read.
    #[error("kernel archive {path}: {reason}; make it again with `cargo xtask kernels`")]
    Archive {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A value that a kernel refused, noticed later.
    #[error("{0}")]
    BadValue(BadValue),
    /// An operation that needs the host in work that is being recorded.
    #[error("{op}: needs the host, which recorded work runs without; run it step by step")]
    Recorded {
        /// The operation.
        op: &'static str,
    },
    /// Guard bytes around a block were overwritten (checked mode).
    #[error("a kernel wrote outside its memory: guard bytes {side} a block of {bytes} bytes of {op} changed")]
    Guard {
        /// Who allocated the block.
        op: &'static str,
        /// Its size.
        bytes: usize,
        /// "before" or "after".
        side: &'static str,
    },
}
