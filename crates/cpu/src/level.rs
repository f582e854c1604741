//! The instruction sets that plain loops are compiled for.

use crate::machine::{self, CpuPath};
use std::sync::OnceLock;

/// The widest instruction set in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every CPU of the target has (on aarch64 this includes NEON).
    Baseline,
    /// AVX2 and FMA (x86-64-v3).
    V3,
    /// AVX-512 F/BW/CD/DQ/VL (x86-64-v4).
    V4,
}

/// The level of this process: that of its [`CpuPath`].
#[inline]
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match machine::path() {
        CpuPath::Portable => Level::Baseline,
        CpuPath::Avx2 => Level::V3,
        CpuPath::Avx512 | CpuPath::Amx => Level::V4,
    })
}
