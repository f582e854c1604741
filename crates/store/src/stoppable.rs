//! A store that stops writing when it is told to: whoever writes fails, and can still remove what it left.

use crate::error::{Error, Result};
use crate::store::{Entry, PutMode, Reader, Sharing, Store, Writer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Passes everything on until the flag is set; from then on writes are refused. Reading, listing and deleting go on.
#[derive(Clone, Debug)]
pub struct Stoppable<S> {
    inner: S,
    stop: Arc<AtomicBool>,
}

impl<S: Store> Stoppable<S> {
    /// A store that `stop` ends.
    pub fn new(inner: S, stop: Arc<AtomicBool>) -> Stoppable<S> {
        Stoppable { inner, stop }
    }
}

fn check(stop: &AtomicBool, name: &str) -> Result<()> {
    match stop.load(Ordering::Acquire) {
        true => Err(Error::Stopped { name: name.to_string() }),
        false => Ok(()),
    }
}

impl<S: Store> Store for Stoppable<S> {
    fn address(&self) -> String {
        self.inner.address()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        self.inner.list(folder)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        self.inner.reader(name)
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        check(&self.stop, name)?;
        let inner = self.inner.writer(name, len, sharing)?;
        Ok(Box::new(StoppableWriter { inner, stop: self.stop.clone() }))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        check(&self.stop, name)?;
        self.inner.put(name, bytes, mode)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }

    fn clear(&self, name: &str) -> Result<()> {
        self.inner.clear(name)
    }
}

#[derive(Debug)]
struct StoppableWriter {
    inner: Box<dyn Writer>,
    stop: Arc<AtomicBool>,
}

impl Writer for StoppableWriter {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check(&self.stop, self.inner.name())?;
        self.inner.write_at(offset, bytes)
    }

    fn takes_parts(&self) -> bool {
        self.inner.takes_parts()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        check(&self.stop, self.inner.name())?;
        self.inner.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Object, StoreExt};

    #[test]
    fn a_stopped_store_writes_no_more_and_still_deletes() {
        let (inner, stop) = (Arc::new(Object::memory()), Arc::new(AtomicBool::new(false)));
        let store = Stoppable::new(inner.clone(), stop.clone());
        crate::conformance::all(&store, "before").unwrap();
        store.write("a", b"x").unwrap();
        let half = store.writer("b", 1, Sharing::Threads).unwrap();
        stop.store(true, Ordering::Release);
        let name = |n: &str| Error::Stopped { name: n.to_string() };
        assert_eq!(half.write_at(0, b"y"), Err(name("b")));
        assert_eq!(half.finish(), Err(name("b")));
        assert_eq!(store.put("c", b"z", PutMode::Create), Err(name("c")));
        assert_eq!(store.read("a", 9).unwrap(), b"x");
        store.delete("a").unwrap();
        assert!(!inner.exists("a").unwrap() && !inner.exists("b").unwrap());
    }
}
