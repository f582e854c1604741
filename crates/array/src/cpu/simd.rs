//! Which instruction set the kernels may use, found once per process.

use std::sync::OnceLock;

/// Instruction set levels; each includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every CPU of the target has.
    Baseline,
    /// AVX2, FMA and F16C.
    V3,
    /// AVX-512 F, BW, CD, DQ and VL.
    V4,
}

/// The level of this process: what the CPU has, lowered by `PLANARIA_SIMD` (baseline, v3, v4, amx).
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("PLANARIA_SIMD").as_deref() {
        Ok("baseline") => Level::Baseline,
        Ok("v3") => detect().min(Level::V3),
        _ => detect(),
    })
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    let v3 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let v4 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (v3, v4) {
        (true, true) => Level::V4,
        (true, false) => Level::V3,
        _ => Level::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Baseline
}
