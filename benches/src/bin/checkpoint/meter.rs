//! What one sample of the checkpoint benchmark is: seconds, CPU seconds, extra memory, bytes from storage.

use anyhow::Result;
use planaria_array::{memory_stats, reset_peak};
use std::fs;
use std::time::Instant;

/// One measured piece of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) cpu: Option<f64>,
    /// Most bytes in use beyond those in use at the start.
    pub(crate) extra: Option<u64>,
    /// Bytes read from storage for each byte wanted.
    pub(crate) amplification: Option<f64>,
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
        let (resident, live) = (status("VmRSS:"), memory_stats().live);
        Meter { begun: Instant::now(), cpu: cpu_seconds(), resident, live }
    }

    pub(crate) fn end(self) -> Sample {
        let seconds = self.begun.elapsed().as_secs_f64();
        let cpu = cpu_seconds() - self.cpu;
        // Arrays may come from memory that was freed before and is resident still, so they are counted apart.
        let arrays = memory_stats().peak.saturating_sub(self.live) as u64;
        let pages = status("VmHWM:").saturating_sub(self.resident);
        Sample { seconds, cpu: Some(cpu), extra: Some(pages + arrays), ..Sample::default() }
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

fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// All samples of one contestant.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The raw figure it is compared with, and the highest ratio it may have.
    pub(crate) limit: Option<(&'static str, f64)>,
    pub(crate) samples: Vec<Sample>,
}

impl Row {
    pub(crate) fn median(&self, pick: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.samples.iter().filter_map(pick))
    }

    pub(crate) fn seconds(&self) -> Option<f64> {
        self.median(|sample| Some(sample.seconds))
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The ratio of each sample to that of the limit in the same round, in the middle.
pub(crate) fn ratio(row: &Row, limit: &Row) -> Option<f64> {
    median(row.samples.iter().zip(&limit.samples).map(|(a, b)| a.seconds / b.seconds))
}

/// Runs `work` while `threads` other ones keep the processors busy.
pub(crate) fn under_load<T>(threads: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = work();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        done
    })
}
