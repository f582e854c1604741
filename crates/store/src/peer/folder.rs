//! A store that an agent serves: what is written lies there, and stays when the agent ends.

use super::files::Refusal;
use super::frame::{CHUNK, Say};
use super::holding::{Holding, Receive, Send, Untaken};
use super::listing;
use super::wire::Sums;
use crate::error::Error;
use crate::name::{check_folder, check_name};
use crate::store::{Entry, EntryKind, PutMode, Reader, Sharing, Store, Writer};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// The files of a store, for others.
#[derive(Debug)]
pub(super) struct Folder {
    store: Arc<dyn Store>,
    open: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    writers: HashMap<u64, Arc<Open>>,
    /// The next number of a writer; begins anywhere, so that those of an agent before are unknown.
    next: u64,
}

/// A writer under way; finishing takes it, while others may still send it bytes.
#[derive(Debug)]
struct Open {
    file: RwLock<Option<Under>>,
    used: Mutex<Instant>,
}

/// A file on its way.
#[derive(Debug)]
enum Under {
    /// It lies in the store already.
    Written(Box<dyn Writer>),
    /// The store has it when all of it has come.
    Gathered(Gathered),
}

/// A file that is put, of more than one frame.
#[derive(Debug)]
struct Gathered {
    name: String,
    bytes: Mutex<Vec<u8>>,
    written: AtomicU64,
}

impl Gathered {
    fn new(name: &str, len: u64) -> Result<Gathered, Refusal> {
        let full = |_| {
            let text = "the machine has no memory left for it".to_string();
            Refusal { say: Say::Full, numbers: [len, 0, 0], text }
        };
        let mut bytes = Vec::new();
        let room = usize::try_from(len).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(room).map_err(full)?;
        bytes.resize(room, 0);
        Ok(Gathered { name: name.to_string(), bytes: Mutex::new(bytes), written: AtomicU64::new(0) })
    }

    fn write(&self, offset: u64, new: &[u8]) -> Result<(), Refusal> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let size = bytes.len() as u64;
        let at = usize::try_from(offset).ok().and_then(|at| Some(at..at.checked_add(new.len())?));
        let into = at.and_then(|at| bytes.get_mut(at));
        into.ok_or(Refusal::new(Say::OutOfFile, [size, 0, 0]))?.copy_from_slice(new);
        self.written.fetch_add(new.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn finish(self, store: &dyn Store, mode: PutMode) -> Result<(), Refusal> {
        let bytes = self.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (written, len) = (self.written.into_inner(), bytes.len() as u64);
        if written < len {
            return Err(Refusal::new(Say::Incomplete, [written, len, 0]));
        }
        store.put(&self.name, &bytes, mode).map_err(|error| refusal(&error))
    }
}

impl Folder {
    pub(super) fn new(store: Arc<dyn Store>) -> Folder {
        let next = RandomState::new().hash_one(0);
        Folder { store, open: Mutex::new(Table { writers: HashMap::new(), next }) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_writer(&self, number: u64) -> Result<Arc<Open>, Refusal> {
        let found = self.table().writers.get(&number).cloned();
        let open = found.ok_or(Refusal::new(Say::Gone, [0; 3]))?;
        *open.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(open)
    }

    /// The number of a writer of this file.
    fn add(&self, file: Under) -> u64 {
        let open = Open { file: RwLock::new(Some(file)), used: Mutex::new(Instant::now()) };
        let mut table = self.table();
        table.next = table.next.wrapping_add(1);
        let number = table.next;
        table.writers.insert(number, Arc::new(open));
        number
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>, Refusal> {
        check_name(name)?;
        self.store.reader(name).map_err(|error| refusal(&error))
    }
}

/// What tells a file from another one of the same name.
fn version(file: &dyn Reader) -> u64 {
    let mut hasher = DefaultHasher::new();
    (file.size(), file.identity()).hash(&mut hasher);
    hasher.finish()
}

/// What a client is told of an error of the store.
fn refusal(error: &Error) -> Refusal {
    let plain = |say: Say, numbers: [u64; 3]| Refusal::new(say, numbers);
    match error {
        Error::NotFound { .. } => plain(Say::NotFound, [0; 3]),
        Error::AlreadyExists { .. } => plain(Say::AlreadyExists, [0; 3]),
        Error::Incomplete { written, len, .. } => plain(Say::Incomplete, [*written, *len, 0]),
        Error::OutOfFile { size, .. } => plain(Say::OutOfFile, [*size, 0, 0]),
        Error::BadName { .. } => Refusal { text: error.to_string(), ..plain(Say::BadName, [0; 3]) },
        other => {
            let full = matches!(other, Error::Io { kind: io::ErrorKind::StorageFull, .. });
            let text = match other {
                Error::Io { message, .. } | Error::Remote { message, .. } => message.clone(),
                other => other.to_string(),
            };
            Refusal { text, ..plain(Say::Failed, [u64::from(full), 0, 0]) }
        }
    }
}

/// A payload in memory of its own, for a store that takes slices.
fn received(len: usize, receive: &mut Receive<'_>) -> Result<(Vec<u8>, Sums), Untaken> {
    if len > CHUNK {
        let text = format!("{len} bytes; at most {CHUNK} in one frame");
        return Err(Untaken::Before(Refusal { say: Say::Malformed, numbers: [0; 3], text }));
    }
    let mut bytes = vec![0; len];
    let sums = receive(&mut bytes).map_err(Untaken::Lost)?;
    Ok((bytes, sums))
}

impl Holding for Folder {
    fn room(&self) -> (u64, u64, u64) {
        (u64::MAX, 0, 0)
    }

    fn list(&self, folder: &str, from: &str) -> Result<(Vec<u8>, String), Refusal> {
        check_folder(folder)?;
        let entries = self.store.list(folder).map_err(|error| refusal(&error))?;
        // A page is made of names of files; any file stands for its folder.
        let named = |Entry { name, kind }| match kind {
            EntryKind::File(size) => (name, size),
            EntryKind::Folder | EntryKind::FolderLink => (format!("{name}/-"), 0),
        };
        let files: BTreeMap<String, u64> = entries.into_iter().map(named).collect();
        Ok(listing::page(&files, folder, from, |size| *size))
    }

    fn open(&self, name: &str) -> Result<(u64, u64), Refusal> {
        let file = self.reader(name)?;
        Ok((file.size(), version(&*file)))
    }

    fn read(
        &self,
        name: &str,
        known: u64,
        (offset, len): (u64, usize),
        send: &mut Send<'_>,
    ) -> Result<io::Result<()>, Refusal> {
        let file = self.reader(name)?;
        if version(&*file) != known {
            return Err(Refusal::new(Say::NotFound, [0; 3]));
        }
        let len = (file.size().saturating_sub(offset)).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        let count = file.read_at(offset, &mut bytes).map_err(|error| refusal(&error))?;
        Ok(send(&bytes[..count]))
    }

    fn begin(&self, name: &str, len: u64, sharing: Sharing) -> Result<u64, Refusal> {
        check_name(name)?;
        let writer = self.store.writer(name, len, sharing).map_err(|error| refusal(&error))?;
        Ok(self.add(Under::Written(writer)))
    }

    fn begin_whole(&self, name: &str, len: u64) -> Result<u64, Refusal> {
        check_name(name)?;
        Ok(self.add(Under::Gathered(Gathered::new(name, len)?)))
    }

    fn write(
        &self,
        number: u64,
        offset: u64,
        len: usize,
        receive: &mut Receive<'_>,
    ) -> Result<Sums, Untaken> {
        let open = self.of_writer(number).map_err(Untaken::Before)?;
        let (bytes, sums) = received(len, receive)?;
        if !sums.agree() {
            return Ok(sums);
        }
        let taken = match &*open.file.read().unwrap_or_else(PoisonError::into_inner) {
            Some(Under::Written(writer)) => writer.write_at(offset, &bytes).map_err(|error| refusal(&error)),
            Some(Under::Gathered(file)) => file.write(offset, &bytes),
            None => Err(Refusal::new(Say::Gone, [0; 3])),
        };
        taken.map(|()| sums).map_err(Untaken::After)
    }

    fn finish(&self, number: u64, mode: PutMode) -> Result<(), Refusal> {
        let gone = || Refusal::new(Say::Gone, [0; 3]);
        let open = self.table().writers.remove(&number).ok_or_else(gone)?;
        let file = open.file.write().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(gone)?;
        match file {
            Under::Written(writer) => writer.finish().map_err(|error| refusal(&error)),
            // Of several that create it, the store decides who succeeds.
            Under::Gathered(file) => file.finish(&*self.store, mode),
        }
    }

    fn put(&self, name: &str, len: usize, mode: PutMode, receive: &mut Receive<'_>) -> Result<Sums, Untaken> {
        check_name(name).map_err(|error| Untaken::Before(error.into()))?;
        let (bytes, sums) = received(len, receive)?;
        if sums.agree() {
            self.store.put(name, &bytes, mode).map_err(|error| Untaken::After(refusal(&error)))?;
        }
        Ok(sums)
    }

    fn delete(&self, name: &str) -> Result<(), Refusal> {
        check_name(name)?;
        self.store.delete(name).map_err(|error| refusal(&error))
    }

    fn last_used(&self, writers: &[u64]) -> Option<Instant> {
        let table = self.table();
        let used = |open: &Arc<Open>| *open.used.lock().unwrap_or_else(PoisonError::into_inner);
        writers.iter().filter_map(|number| table.writers.get(number)).map(used).max()
    }

    fn gone(&self, writers: &[u64]) {
        let mut table = self.table();
        writers.iter().for_each(|number| drop(table.writers.remove(number)));
    }
}
