//! A store that reads nothing more once it is told so: a load that was interrupted leaves memory alone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use planaria::ckpt::formats::Source;
use planaria::store::{Entry, Error, Mapped, PutMode, Reader, Result, Sharing, Store, Writer};

/// The same checkpoint, until `stop` is set.
pub(crate) fn halting(source: &Source, stop: Arc<AtomicBool>) -> Source {
    let mut made = source.clone();
    made.store = Arc::new(Halting { inner: source.store.clone(), stop });
    made
}

#[derive(Debug)]
struct Halting {
    inner: Arc<dyn Store>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct HaltingReader {
    inner: Box<dyn Reader>,
    stop: Arc<AtomicBool>,
}

fn check(stop: &AtomicBool, name: &str) -> Result<()> {
    match stop.load(Ordering::Acquire) {
        true => Err(Error::Stopped { name: name.to_string() }),
        false => Ok(()),
    }
}

impl Store for Halting {
    fn address(&self) -> String {
        self.inner.address()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        self.inner.list(folder)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        check(&self.stop, name)?;
        Ok(Box::new(HaltingReader { inner: self.inner.reader(name)?, stop: self.stop.clone() }))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        self.inner.writer(name, len, sharing)
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        self.inner.put(name, bytes, mode)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }
}

impl Reader for HaltingReader {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        check(&self.stop, self.inner.name())?;
        self.inner.read_at(offset, into)
    }

    fn map(&self, range: Range<u64>) -> Result<Option<Mapped>> {
        check(&self.stop, self.inner.name())?;
        self.inner.map(range)
    }
}
