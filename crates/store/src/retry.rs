//! Trying again after failures that pass, for a bounded time, with pauses that differ between those who wait.

use crate::error::{Error, Result};
use crate::store::{Entry, Medium, PutMode, Reader, Sharing, Store, StoreExt, Writer};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long and how often to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// No new try starts after this time.
    pub total: Duration,
    /// Pause before the second try; it doubles with every further one. What is waited is between half of it and
    /// all of it, drawn anew each time, so that many ranks which failed together do not come back together.
    pub first_pause: Duration,
    /// Longest pause.
    pub longest_pause: Duration,
}

impl Default for RetryOptions {
    fn default() -> RetryOptions {
        RetryOptions {
            total: Duration::from_secs(60),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
        }
    }
}

/// A store whose transient failures are tried again. Reads and writes at offsets can be repeated safely; a
/// put that must create is checked when its first try may have succeeded unnoticed.
#[derive(Clone, Debug)]
pub struct Retry<S> {
    inner: S,
    options: Arc<RetryOptions>,
}

impl<S: Store> Retry<S> {
    /// Wraps a store.
    pub fn new(inner: S, options: RetryOptions) -> Retry<S> {
        Retry { inner, options: Arc::new(options) }
    }
}

/// A number that nobody else has; the standard library seeds its hashes from the system's randomness.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Between half of a pause and all of it.
fn jittered(pause: Duration, random: u64) -> Duration {
    let half = pause / 2;
    half + half.mul_f64(random as f64 / u64::MAX as f64)
}

/// Runs `work` until it succeeds, fails for good, or time is up; `work` gets the number of failed tries.
pub(crate) fn retry<T>(options: &RetryOptions, mut work: impl FnMut(u32) -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut pause = options.first_pause;
    let mut tries = 0;
    loop {
        let last = match work(tries) {
            Err(error) if error.is_transient() => error,
            done => return done,
        };
        tries += 1;
        if start.elapsed() + pause > options.total {
            let seconds = start.elapsed().as_secs();
            return Err(Error::GaveUp { tries, seconds, last: Box::new(last) });
        }
        std::thread::sleep(jittered(pause, random()));
        pause = (pause * 2).min(options.longest_pause);
    }
}

impl<S: Store> Store for Retry<S> {
    fn address(&self) -> String {
        self.inner.address()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        retry(&self.options, |_| self.inner.list(folder))
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        let inner = retry(&self.options, |_| self.inner.reader(name))?;
        Ok(Box::new(RetryReader { inner, options: self.options.clone() }))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        let inner = retry(&self.options, |_| self.inner.writer(name, len, sharing))?;
        Ok(Box::new(RetryWriter { inner, options: self.options.clone() }))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        retry(&self.options, |failed| match self.inner.put(name, bytes, mode) {
            // An earlier try of ours may have arrived although its answer did not.
            Err(Error::AlreadyExists { .. })
                if failed > 0
                    && self.inner.read(name, bytes.len() as u64).is_ok_and(|found| found == bytes) =>
            {
                Ok(())
            }
            done => done,
        })
    }

    fn delete(&self, name: &str) -> Result<()> {
        retry(&self.options, |failed| match self.inner.delete(name) {
            Err(Error::NotFound { .. }) if failed > 0 => Ok(()),
            done => done,
        })
    }

    fn clear(&self, name: &str) -> Result<()> {
        retry(&self.options, |_| self.inner.clear(name))
    }
}

#[derive(Debug)]
struct RetryReader {
    inner: Box<dyn Reader>,
    options: Arc<RetryOptions>,
}

impl Reader for RetryReader {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        retry(&self.options, |_| self.inner.read_at(offset, into))
    }

    fn medium(&self) -> Medium {
        self.inner.medium()
    }
}

#[derive(Debug)]
struct RetryWriter {
    inner: Box<dyn Writer>,
    options: Arc<RetryOptions>,
}

impl Writer for RetryWriter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        retry(&self.options, |_| self.inner.write_at(offset, bytes))
    }

    fn takes_parts(&self) -> bool {
        self.inner.takes_parts()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        // Finishing consumes the file; a failed one is written again by the caller.
        self.inner.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_within_their_bounds() {
        let pause = Duration::from_millis(100);
        assert_eq!(jittered(pause, 0), pause / 2);
        assert_eq!(jittered(pause, u64::MAX), pause);
        let drawn: std::collections::BTreeSet<Duration> =
            (0..20).map(|_| jittered(pause, random())).collect();
        assert!(drawn.len() > 10, "{drawn:?}");
        assert!(drawn.iter().all(|drawn| (pause / 2..=pause).contains(drawn)), "{drawn:?}");
    }
}
