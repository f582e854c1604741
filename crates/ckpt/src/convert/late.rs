//! A file that is opened when its first bytes come and made durable when its last bytes are written.

use super::journal::Journal;
use planaria_store::{Error, Result, Sharing, Store, Writer};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// Of many files that are filled one after the other, only those under way are open.
pub(super) struct Late<'a> {
    store: &'a dyn Store,
    name: String,
    len: u64,
    /// Bytes that are not written yet.
    left: AtomicU64,
    open: RwLock<Option<Box<dyn Writer>>>,
    sharing: Sharing,
    /// Where what was written is noted, and under which number.
    journal: Option<(&'a Journal, usize)>,
}

impl<'a> Late<'a> {
    /// A file of `len` bytes, all of which are written here.
    pub(super) fn new(store: &'a dyn Store, name: String, len: u64) -> Late<'a> {
        let (left, open) = (AtomicU64::new(len), RwLock::default());
        Late { store, name, len, left, open, sharing: Sharing::Threads, journal: None }
    }

    /// The same where only `left` bytes are written here: the others are there, or come from other processes.
    pub(super) fn partly(mut self, left: u64) -> Late<'a> {
        if left < self.len {
            (self.left, self.sharing) = (AtomicU64::new(left), Sharing::Processes);
        }
        self
    }

    /// The same with what is written noted as the file of this number.
    pub(super) fn noted(mut self, journal: Option<&'a Journal>, number: usize) -> Late<'a> {
        self.journal = journal.map(|journal| (journal, number));
        self
    }

    fn open(&self) -> Result<()> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.is_none() {
            *open = Some(self.store.writer(&self.name, self.len, self.sharing)?);
        }
        Ok(())
    }
}

impl fmt::Debug for Late<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Late({} of {} bytes)", self.name, self.len)
    }
}

impl Writer for Late<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        loop {
            if let Some(file) = &*self.open.read().unwrap_or_else(PoisonError::into_inner) {
                file.write_at(offset, bytes)?;
                break;
            }
            self.open()?;
        }
        if let Some((journal, number)) = self.journal {
            let failed = |error: std::io::Error| {
                let (name, kind, message) = (self.name.clone(), error.kind(), error.to_string());
                Error::Io { name, op: "keep the journal of", kind, message }
            };
            journal.wrote(number, offset, bytes).map_err(failed)?;
        }
        let len = bytes.len() as u64;
        if len > 0 && self.left.fetch_sub(len, Ordering::AcqRel) == len {
            let file = self.open.write().unwrap_or_else(PoisonError::into_inner).take();
            file.map_or(Ok(()), Writer::finish)?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_store::{Object, StoreExt};

    #[test]
    fn a_file_is_there_with_its_last_byte_and_not_before() {
        let store = Object::memory();
        let file = Late::new(&store, "f".to_string(), 5);
        assert!(file.open.read().unwrap().is_none(), "nothing is opened before it is needed");
        file.write_at(3, b"de").unwrap();
        assert!(!store.exists("f").unwrap());
        file.write_at(0, b"abc").unwrap();
        assert_eq!(store.read("f", 10).unwrap(), b"abcde");
        assert!(file.open.read().unwrap().is_none(), "nothing stays open");
    }
}
