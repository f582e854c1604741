//! One way to take a sample, for every worker: wall time, CPU time, and how long the process had to wait for a
//! CPU. `benches/peers/measure.py` is its twin.

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

/// Wall seconds, CPU seconds, and seconds in which threads of the process were ready but not running.
pub type Sample = [f64; 3];

/// Most samples taken in one go.
pub const MOST_SAMPLES: usize = 60;

/// Samples of `run` for about `time`: at least 2, at most [`MOST_SAMPLES`].
pub fn measure<E>(time: Duration, mut run: impl FnMut() -> Result<(), E>) -> Result<Vec<Sample>, E> {
    let end = Instant::now() + time;
    let mut samples = Vec::with_capacity(MOST_SAMPLES);
    while samples.len() < MOST_SAMPLES && (samples.len() < 2 || Instant::now() < end) {
        let [cpu, delay] = thread_times();
        let start = Instant::now();
        run()?;
        let wall = start.elapsed().as_secs_f64();
        let [cpu_after, delay_after] = thread_times();
        samples.push([wall, cpu_after - cpu, delay_after - delay]);
    }
    Ok(samples)
}

/// The memory this process had when a case began, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory(u64);

impl Memory {
    /// Starts to watch: forgets the peak so far. Absent where the system does not tell.
    pub fn watch() -> Option<Memory> {
        // 5 resets the peak of the resident set to what it is now.
        fs::write("/proc/self/clear_refs", "5").ok()?;
        status("VmRSS:").map(Memory)
    }

    /// The peak since, above what there was, and as a whole.
    pub fn peak(self) -> Option<[u64; 2]> {
        let peak = status("VmHWM:")?;
        Some([peak.saturating_sub(self.0), peak])
    }
}

/// A line of this process's status, such as `VmHWM:`, in bytes; absent where the system does not tell.
pub fn status(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// What a process of its own prints as JSON on its last line.
pub fn last_line<T: DeserializeOwned>(command: &mut Command) -> anyhow::Result<T> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.trim().lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("{command:?} printed no figures"))
}

/// Seconds that all threads of this process ran, and that they waited for a CPU; zeros where the system does
/// not tell.
pub fn thread_times() -> [f64; 2] {
    let mut total = [0.0; 2];
    for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        for (sum, nanoseconds) in total.iter_mut().zip(text.split_whitespace()) {
            *sum += nanoseconds.parse::<f64>().unwrap_or(0.0) / 1e9;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_counts_what_was_given_back() {
        let Some(memory) = Memory::watch() else { return };
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        assert!(memory.peak().is_some_and(|[grown, all]| grown >= 60 << 20 && all > grown));
    }

    #[test]
    fn slow_work_is_sampled_twice_and_fast_work_at_most_sixty_times() {
        let mut calls = 0;
        let mut count = |sleep| {
            calls = 0;
            let samples = measure(Duration::from_millis(20), || {
                calls += 1;
                std::thread::sleep(sleep);
                Ok::<_, ()>(())
            });
            assert_eq!(samples.as_ref().map(Vec::len), Ok(calls));
            assert!(samples.is_ok_and(|s| s.iter().all(|[wall, ..]| *wall >= sleep.as_secs_f64())));
            calls
        };
        assert_eq!(count(Duration::from_millis(30)), 2);
        assert_eq!(count(Duration::ZERO), MOST_SAMPLES);
    }

    #[test]
    fn a_failure_ends_the_run() {
        assert_eq!(measure(Duration::from_secs(1), || Err("no")), Err("no"));
    }
}
