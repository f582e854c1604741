//! What this CPU offers: the instructions kernels may use, and the sizes of its caches. Asked once.

use crate::error::{Error, Result};
use std::fmt;
use std::sync::OnceLock;

/// Names the path kernels are held to, for tests and measurements: a value of [`CpuPath`].
const FORCE: &str = "PLANARIA_CPU";

/// A set of kernels, by the widest instructions they use; each includes the ones before it.
///
/// A process uses the highest one its CPU has. The environment variable `PLANARIA_CPU` (`portable`, `avx2`, `avx512`,
/// `amx`) holds it to a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuPath {
    /// What every CPU of the target has (on aarch64 this includes NEON).
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, BW, CD, DQ and VL.
    Avx512,
    /// AVX-512 and the tile unit for products of bf16.
    Amx,
}

impl CpuPath {
    /// All paths, lowest first.
    pub const ALL: [CpuPath; 4] = [CpuPath::Portable, CpuPath::Avx2, CpuPath::Avx512, CpuPath::Amx];

    /// The path of this process.
    pub fn current() -> CpuPath {
        path()
    }

    /// The highest path this CPU has.
    pub fn highest() -> CpuPath {
        static HIGHEST: OnceLock<CpuPath> = OnceLock::new();
        *HIGHEST.get_or_init(detect)
    }

    /// As `PLANARIA_CPU` spells it.
    pub fn name(self) -> &'static str {
        match self {
            CpuPath::Portable => "portable",
            CpuPath::Avx2 => "avx2",
            CpuPath::Avx512 => "avx512",
            CpuPath::Amx => "amx",
        }
    }
}

impl fmt::Display for CpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The path of this process, read once.
#[inline]
pub(crate) fn path() -> CpuPath {
    static PATH: OnceLock<CpuPath> = OnceLock::new();
    *PATH.get_or_init(|| match std::env::var(FORCE) {
        // What cannot be had is refused by `check`; a library that nobody asked runs on what there is.
        Ok(name) => asked_for(&name, CpuPath::highest()).unwrap_or(CpuPath::highest()),
        Err(_) => CpuPath::highest(),
    })
}

/// Refuses a `PLANARIA_CPU` that names no path, or one that this CPU does not have.
pub(crate) fn check() -> Result<()> {
    let Some(name) = std::env::var_os(FORCE) else { return Ok(()) };
    asked_for(&name.to_string_lossy(), CpuPath::highest()).map(drop)
}

fn asked_for(name: &str, highest: CpuPath) -> Result<CpuPath> {
    let found = CpuPath::ALL.into_iter().find(|path| path.name() == name);
    found.filter(|path| *path <= highest).ok_or_else(|| {
        let why = if found.is_some() { "needs instructions that this CPU lacks" } else { "is not known" };
        let paths = CpuPath::ALL.iter().filter(|path| **path <= highest).map(|path| path.name());
        let names = paths.collect::<Vec<_>>().join(", ");
        Error { setting: FORCE, what: format!("`{name}` {why}; unset it or give one of {names}") }
    })
}

#[cfg(target_arch = "x86_64")]
fn detect() -> CpuPath {
    use std::arch::is_x86_feature_detected as has;
    let avx2 = has!("avx2")
        && has!("fma")
        && has!("f16c")
        && has!("bmi1")
        && has!("bmi2")
        && has!("lzcnt")
        && has!("popcnt");
    let avx512 =
        has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
    match (avx2, avx512) {
        (true, true) if crate::matmul::has_tiles() => CpuPath::Amx,
        (true, true) => CpuPath::Avx512,
        (true, false) => CpuPath::Avx2,
        _ => CpuPath::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> CpuPath {
    CpuPath::Portable
}

/// Bytes of the caches that one core has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// The first level, data only.
    pub first: usize,
    /// The second level.
    pub second: usize,
}

/// Where the CPU does not tell: what small cores have.
const MODEST: Caches = Caches { first: 32 << 10, second: 512 << 10 };

/// The caches of this CPU.
#[inline]
pub fn caches() -> Caches {
    static CACHES: OnceLock<Caches> = OnceLock::new();
    *CACHES.get_or_init(|| {
        let size = |level| cache_bytes(level).filter(|bytes| (16 << 10..64 << 20).contains(bytes));
        Caches { first: size(1).unwrap_or(MODEST.first), second: size(2).unwrap_or(MODEST.second) }
    })
}

/// The data cache of a level, from the list the CPU gives of itself.
#[cfg(target_arch = "x86_64")]
fn cache_bytes(level: u32) -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Intel's list, and AMD's of the same form.
    let lists = [(0u32, 4u32), (0x8000_0000, 0x8000_001d)];
    let (_, leaf) = lists
        .into_iter()
        .find(|&(group, leaf)| __cpuid(group).eax >= leaf && __cpuid_count(leaf, 0).eax & 31 != 0)?;
    (0..16).map(|i| __cpuid_count(leaf, i)).take_while(|entry| entry.eax & 31 != 0).find_map(|entry| {
        let (kind, found) = (entry.eax & 31, (entry.eax >> 5) & 7);
        let field = |shift: u32, bits: u32| ((entry.ebx >> shift) & ((1 << bits) - 1)) as usize + 1;
        // Kinds 1 and 3 hold data; 2 holds instructions.
        (found == level && kind != 2)
            .then(|| field(22, 10) * field(12, 10) * field(0, 12) * (entry.ecx as usize + 1))
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn cache_bytes(_: u32) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_had_by_its_name_or_refused_with_the_ones_there_are() {
        assert_eq!(asked_for("avx2", CpuPath::Avx512).unwrap(), CpuPath::Avx2);
        let text = |name, highest| asked_for(name, highest).unwrap_err().to_string();
        let lacking = text("avx512", CpuPath::Avx2);
        assert!(lacking.contains("`avx512` needs") && lacking.ends_with("portable, avx2"), "{lacking}");
        assert!(text("sse", CpuPath::Amx).contains("`sse` is not known"));
    }

    /// Fails when a run that forces a path tests another one.
    #[test]
    fn the_path_in_use_is_the_one_asked_for() {
        let wanted = std::env::var(FORCE).unwrap_or_else(|_| CpuPath::highest().name().into());
        assert_eq!(path().name(), wanted);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn caches_are_those_the_system_knows() {
        let read = |file: &str| {
            let text =
                std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/{file}/size")).ok()?;
            text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
        };
        // index0 is the data cache of the first level on every x86 kernel, index2 the second level.
        if let (true, Some(first), Some(second)) =
            (cfg!(target_arch = "x86_64"), read("index0"), read("index2"))
        {
            assert_eq!(caches(), Caches { first, second });
        }
    }
}
