//! What one sample of the checkpoint benchmark is: seconds, CPU seconds, extra memory, bytes from storage.

use planaria_array::{memory_stats, reset_peak};
use planaria_bench::measure::status;
use serde::Deserialize;
use std::fs;
use std::time::Instant;

/// One measured piece of work; peers answer with the same.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) cpu: Option<f64>,
    /// Most bytes in use beyond those in use at the start.
    pub(crate) extra: Option<u64>,
    /// Bytes read from storage.
    pub(crate) read: Option<u64>,
}

/// Measures what happens between its making and [`Meter::end`].
pub(crate) struct Meter {
    begun: Instant,
    cpu: f64,
    resident: u64,
    live: usize,
}

impl Meter {
    pub(crate) fn begin() -> Meter {
        // Makes the system forget the peak; where it refuses, extra memory is only overstated.
        let _ = fs::write("/proc/self/clear_refs", "5");
        reset_peak();
        let (resident, live) = (status("VmRSS:").unwrap_or(0), memory_stats().live);
        Meter { begun: Instant::now(), cpu: cpu_seconds(), resident, live }
    }

    pub(crate) fn end(self) -> Sample {
        let seconds = self.begun.elapsed().as_secs_f64();
        let cpu = cpu_seconds() - self.cpu;
        // Arrays may come from memory that was freed before and is resident still, so they are counted apart.
        let arrays = memory_stats().peak.saturating_sub(self.live) as u64;
        let pages = status("VmHWM:").unwrap_or(0).saturating_sub(self.resident);
        Sample { seconds, cpu: Some(cpu), extra: Some(pages + arrays), read: None }
    }
}

/// Seconds that this process has run.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields are counted behind the name, which may hold spaces.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
