//! Where bytes live.

use std::fmt;

/// A memory that can hold arrays. An enum from the first day: every operation matches on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// No memory at all: shapes and dtypes only, for planning.
    Meta,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Device::Cpu => "cpu",
            Device::Meta => "meta",
        })
    }
}
