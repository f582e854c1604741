//! How far long work has come: a bar on a terminal, a line now and then elsewhere.

use crate::quantity::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time between two lines where there is no terminal.
const EVERY: Duration = Duration::from_secs(10);

/// In which form progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// A bar that is drawn again and again.
    Bar,
    /// A line every ten seconds.
    Lines,
    /// Not at all.
    Never,
}

/// Work that is under way; it may be told about from several threads.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    total: u64,
    done: AtomicU64,
    started: Instant,
    last: Mutex<Instant>,
    shown: Shown,
    bar: ProgressBar,
}

impl Progress {
    pub(crate) fn new(shown: Shown, what: &str, total: u64) -> Progress {
        let target =
            if shown == Shown::Bar { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what.to_string());
        let form =
            "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar()));
        let now = Instant::now();
        let (what, done, last) = (what.to_string(), AtomicU64::new(0), Mutex::new(now));
        Progress { what, total, done, started: now, last, shown, bar }
    }

    /// Further bytes are done.
    pub(crate) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Relaxed) + bytes;
        match self.shown {
            Shown::Bar => self.bar.inc(bytes),
            Shown::Lines => self.line(done),
            Shown::Never => {}
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn line(&self, done: u64) {
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.elapsed() < EVERY {
            return;
        }
        *last = Instant::now();
        let text = status(&self.what, done, self.total, self.started.elapsed());
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
}

/// `converting: 1.5 GB of 6.0 GB, 500 MB/s, 9 s left`
fn status(what: &str, done: u64, total: u64, spent: Duration) -> String {
    let rate = done as f64 / spent.as_secs_f64().max(1e-9);
    let left = (total.saturating_sub(done)) as f64 / rate.max(1.0);
    format!("{what}: {} of {}, {}/s, {left:.0} s left", Bytes(done), Bytes(total), Bytes(rate as u64))
}

/// How many of some things are done.
#[derive(Debug)]
pub(crate) struct Counter {
    what: &'static str,
    unit: &'static str,
    last: Mutex<Instant>,
    shown: Shown,
    bar: ProgressBar,
}

impl Counter {
    pub(crate) fn new(shown: Shown, what: &'static str, unit: &'static str) -> Counter {
        let target =
            if shown == Shown::Bar { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let form = format!("{what} [{{bar:30}}] {{pos}}/{{len}} {unit}, {{eta}} left");
        bar.set_style(ProgressStyle::with_template(&form).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Counter { what, unit, last: Mutex::new(Instant::now()), shown, bar }
    }

    /// So many of so many are done.
    pub(crate) fn show(&self, done: u64, all: u64) {
        match self.shown {
            Shown::Bar => {
                self.bar.set_length(all);
                self.bar.set_position(done);
            }
            Shown::Lines => {
                let Ok(mut last) = self.last.try_lock() else { return };
                if last.elapsed() >= EVERY {
                    *last = Instant::now();
                    let _ =
                        writeln!(std::io::stderr().lock(), "{}: {done} of {all} {}", self.what, self.unit);
                }
            }
            Shown::Never => {}
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_bytes_rate_and_time_left() {
        let text = status("converting", 1_500_000_000, 6_000_000_000, Duration::from_secs(3));
        assert_eq!(text, "converting: 1.5 GB of 6.0 GB, 500.0 MB/s, 9 s left");
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        assert!(status("x", 0, 0, Duration::ZERO).ends_with("0 s left"));
    }
}
