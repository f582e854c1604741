//! The limit: the same number of bytes written and read with `O_DIRECT` by a few threads that do nothing else.

use crate::busy::Beside;
use anyhow::{Context, Result, bail};
use planaria_store::Staging;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Bytes of one call.
const CHUNK: u64 = 8 << 20;
/// Calls at a time.
const THREADS: usize = 4;

/// Buffers that are used again in every round.
pub(crate) struct Probe {
    buffers: Vec<Staging>,
}

impl Probe {
    pub(crate) fn new() -> Probe {
        let make = |seed: u64| {
            let mut staging = Staging::new(CHUNK as usize);
            for (i, word) in staging.bytes_mut().chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&crate::state::mix(seed << 32 | i as u64).to_le_bytes());
            }
            staging
        };
        Probe { buffers: (0..THREADS as u64).map(make).collect() }
    }

    /// Seconds to write a new file of `len` bytes and make it durable. Its space is reserved before the clock runs.
    pub(crate) fn write(&mut self, path: &Path, len: u64) -> Result<f64> {
        self.write_beside(path, len, Beside::Nothing)
    }

    /// The same beside busy processes.
    pub(crate) fn write_beside(&mut self, path: &Path, len: u64, beside: Beside) -> Result<f64> {
        let _ = std::fs::remove_file(path);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).custom_flags(libc::O_DIRECT).open(path)?;
        let len = len.next_multiple_of(CHUNK);
        let reserved = Command::new("fallocate").arg("-l").arg(len.to_string()).arg(path).status();
        if !reserved.context("the program fallocate is missing")?.success() {
            bail!("cannot reserve {len} bytes for the probe");
        }
        let _busy = beside.start()?;
        self.each(len, |at, buffer| file.write_all_at(buffer, at), || file.sync_all())
    }

    /// Seconds to read a file of `len` bytes that [`Probe::write`] wrote.
    pub(crate) fn read(&mut self, path: &Path, len: u64) -> Result<f64> {
        self.read_beside(path, len, Beside::Nothing)
    }

    /// The same beside busy processes.
    pub(crate) fn read_beside(&mut self, path: &Path, len: u64, beside: Beside) -> Result<f64> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let _busy = beside.start()?;
        self.each(len.next_multiple_of(CHUNK), |at, buffer| file.read_exact_at(buffer, at), || Ok(()))
    }

    /// Seconds to read the file from the page cache, which holds it.
    pub(crate) fn read_warm(&mut self, path: &Path, len: u64) -> Result<f64> {
        let mut file = File::open(path)?;
        std::io::copy(&mut file, &mut std::io::sink())?;
        self.each(len.next_multiple_of(CHUNK), |at, buffer| file.read_exact_at(buffer, at), || Ok(()))
    }

    fn each(
        &mut self,
        len: u64,
        work: impl Fn(u64, &mut [u8]) -> std::io::Result<()> + Sync,
        end: impl Fn() -> std::io::Result<()>,
    ) -> Result<f64> {
        let next = AtomicU64::new(0);
        let (next, work) = (&next, &work);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let run = |buffer: &mut Staging| -> std::io::Result<()> {
                loop {
                    let at = next.fetch_add(CHUNK, Relaxed);
                    if at >= len {
                        return Ok(());
                    }
                    work(at, &mut buffer.bytes_mut()[..CHUNK as usize])?;
                }
            };
            let threads: Vec<_> =
                self.buffers.iter_mut().map(|buffer| scope.spawn(move || run(buffer))).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(done) => done.context("the probe failed"),
                Err(_) => bail!("a thread of the probe panicked"),
            })
        })?;
        end()?;
        Ok(begun.elapsed().as_secs_f64())
    }
}
