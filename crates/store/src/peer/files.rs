//! What an agent holds: finished files by name, files that are being written, and how much room they take.

use super::file::{File, Reserved};
use super::frame::{CHUNK, Head, Say};
use super::listing;
use crate::error::Error;
use crate::name::{check_folder, check_name};
use crate::store::{PutMode, Sharing};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most files, finished or not: empty ones need memory too.
const MOST_FILES: usize = 1 << 20;
/// A shared file that nobody has open for this long gives way to others.
const ABANDONED: Duration = Duration::from_secs(60);
/// How long a file that does not fit waits for room that is just becoming free.
const SETTLING: Duration = Duration::from_millis(200);

/// An answer that is not what was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) say: Say,
    pub(super) numbers: [u64; 3],
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(say: Say, numbers: [u64; 3]) -> Refusal {
        Refusal { say, numbers, text: String::new() }
    }

    pub(super) fn head(&self) -> Head {
        Head::say(self.say, self.numbers)
    }
}

impl From<Error> for Refusal {
    /// Of a name.
    fn from(error: Error) -> Refusal {
        Refusal { say: Say::BadName, numbers: [0; 3], text: error.to_string() }
    }
}

/// The files of one agent.
#[derive(Debug)]
pub(super) struct Files {
    limit: u64,
    used: Arc<AtomicU64>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    finished: BTreeMap<String, Arc<File>>,
    shared: BTreeMap<String, Shared>,
    writers: HashMap<u64, Open>,
    /// The next number of a writer or version of a file; begins anywhere, so that those of an agent before are unknown.
    next: u64,
}

/// An unfinished file that several processes write.
#[derive(Debug)]
struct Shared {
    file: Arc<File>,
    writers: usize,
    /// When somebody opened or finished it last.
    since: Instant,
}

/// A writer under way.
#[derive(Debug)]
struct Open {
    name: String,
    file: Arc<File>,
    sharing: Sharing,
    wrote: bool,
    used: Instant,
}

impl Inner {
    fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    fn open(&mut self, name: &str, file: Arc<File>, sharing: Sharing) -> u64 {
        let number = self.number();
        let open = Open { name: name.to_string(), file, sharing, wrote: false, used: Instant::now() };
        self.writers.insert(number, open);
        number
    }

    /// A writer of a file that others write too, if it is there with this length.
    fn join(&mut self, name: &str, len: u64) -> Option<u64> {
        let file = match self.shared.get_mut(name).filter(|shared| shared.file.len == len) {
            Some(shared) => {
                (shared.writers, shared.since) = (shared.writers + 1, Instant::now());
                shared.file.clone()
            }
            // One that is finished keeps its bytes, as a file in a folder does.
            None => self.finished.get(name).filter(|file| file.len == len)?.clone(),
        };
        Some(self.open(name, file, Sharing::Processes))
    }

    /// Forgets unfinished files by name, and whoever writes them; what goes, to be freed when nothing is locked.
    fn discard(&mut self, is_meant: impl Fn(&str) -> bool) -> Vec<Arc<File>> {
        let mut gone: Vec<Arc<File>> = Vec::new();
        self.shared.retain(|name, shared| {
            let stays = !is_meant(name);
            if !stays {
                gone.push(shared.file.clone());
            }
            stays
        });
        self.writers.retain(|_, open| {
            let own = open.sharing == Sharing::Threads && is_meant(&open.name);
            let stays = !own && !gone.iter().any(|file| Arc::ptr_eq(file, &open.file));
            if own {
                gone.push(open.file.clone());
            }
            stays
        });
        gone
    }

    fn publish(
        &mut self,
        name: String,
        file: Arc<File>,
        mode: PutMode,
    ) -> Result<Option<Arc<File>>, Refusal> {
        match mode {
            PutMode::Create if self.finished.contains_key(&name) => {
                Err(Refusal::new(Say::AlreadyExists, [0; 3]))
            }
            _ => Ok(self.finished.insert(name, file)),
        }
    }
}

impl Files {
    pub(super) fn new(limit: u64) -> Files {
        let inner = Inner {
            finished: BTreeMap::new(),
            shared: BTreeMap::new(),
            writers: HashMap::new(),
            next: RandomState::new().hash_one(0),
        };
        Files { limit, used: Arc::default(), inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that may be held, bytes held, files finished.
    pub(super) fn room(&self) -> (u64, u64, u64) {
        (self.limit, self.used.load(Ordering::Acquire), self.inner().finished.len() as u64)
    }

    /// Room for a file; shared ones that nobody has open any more give way.
    fn reserve(&self, len: u64) -> Result<Reserved, Refusal> {
        let start = Instant::now();
        loop {
            if let Some(room) = Reserved::take(&self.used, len, self.limit) {
                return Ok(room);
            }
            if len > self.limit || start.elapsed() > SETTLING {
                let free = self.limit.saturating_sub(self.used.load(Ordering::Acquire));
                return Err(Refusal::new(Say::Full, [len, free, self.limit]));
            }
            let mut inner = self.inner();
            let is_old = |shared: &&Shared| shared.writers == 0 && shared.since.elapsed() > ABANDONED;
            let old: Vec<String> =
                inner.shared.iter().filter(|(_, s)| is_old(s)).map(|(name, _)| name.clone()).collect();
            let gone = inner.discard(|name| old.iter().any(|one| one == name));
            drop(inner);
            if gone.is_empty() {
                std::thread::sleep(SETTLING / 20);
            }
        }
    }

    fn create(&self, len: u64) -> Result<Arc<File>, Refusal> {
        let room = self.reserve(len)?;
        let mut inner = self.inner();
        if inner.finished.len() + inner.writers.len() + inner.shared.len() >= MOST_FILES {
            let text = format!("it holds {MOST_FILES} files already");
            return Err(Refusal { say: Say::Full, numbers: [len, 0, self.limit], text });
        }
        let version = inner.number();
        drop(inner);
        Ok(Arc::new(File::new(len, version, room)))
    }

    /// A writer's number.
    pub(super) fn begin(&self, name: &str, len: u64, sharing: Sharing) -> Result<u64, Refusal> {
        check_name(name)?;
        if sharing == Sharing::Processes
            && let Some(number) = self.inner().join(name, len)
        {
            return Ok(number);
        }
        // Whoever began this file before is replaced.
        if sharing == Sharing::Threads {
            let gone = self.inner().discard(|other| other == name);
            drop(gone);
        }
        let file = self.create(len)?;
        let mut inner = self.inner();
        if sharing == Sharing::Processes {
            // Another process may have been quicker.
            if let Some(number) = inner.join(name, len) {
                return Ok(number);
            }
            let shared = Shared { file: file.clone(), writers: 1, since: Instant::now() };
            let gone = inner.discard(|other| other == name);
            inner.shared.insert(name.to_string(), shared);
            let number = inner.open(name, file, sharing);
            drop(inner);
            drop(gone);
            return Ok(number);
        }
        Ok(inner.open(name, file, sharing))
    }

    /// The file a writer writes.
    pub(super) fn of_writer(&self, number: u64) -> Result<Arc<File>, Refusal> {
        let mut inner = self.inner();
        let open = inner.writers.get_mut(&number).ok_or(Refusal::new(Say::Gone, [0; 3]))?;
        (open.wrote, open.used) = (true, Instant::now());
        Ok(open.file.clone())
    }

    /// When one of these writers was used last.
    pub(super) fn last_used(&self, writers: &[u64]) -> Option<Instant> {
        let inner = self.inner();
        writers.iter().filter_map(|number| inner.writers.get(number)).map(|open| open.used).max()
    }

    /// Ends a writer: its file is there from now on, or from when all of it is written by others.
    pub(super) fn finish(&self, number: u64, mode: PutMode) -> Result<(), Refusal> {
        let mut inner = self.inner();
        let Open { name, file, sharing, .. } =
            inner.writers.remove(&number).ok_or(Refusal::new(Say::Gone, [0; 3]))?;
        let old = if sharing == Sharing::Threads {
            if !file.is_whole() {
                return Err(Refusal::new(Say::Incomplete, [file.written(), file.len, 0]));
            }
            inner.publish(name, file, mode)?
        } else {
            let same = |shared: &&mut Shared| Arc::ptr_eq(&shared.file, &file);
            let Some(shared) = inner.shared.get_mut(&name).filter(same) else { return Ok(()) };
            (shared.writers, shared.since) = (shared.writers.saturating_sub(1), Instant::now());
            if !file.is_whole() {
                return Ok(());
            }
            inner.shared.remove(&name);
            inner.publish(name, file, mode)?
        };
        // Freeing much memory takes time.
        drop(inner);
        drop(old);
        Ok(())
    }

    /// The writers of a connection that ended. A shared file stays for the others unless something was begun in it.
    pub(super) fn gone(&self, writers: &[u64]) {
        for number in writers {
            let mut inner = self.inner();
            let Some(open) = inner.writers.remove(number) else { continue };
            let same = |shared: &&mut Shared| Arc::ptr_eq(&shared.file, &open.file);
            let Some(shared) = inner.shared.get_mut(&open.name).filter(same) else { continue };
            (shared.writers, shared.since) = (shared.writers.saturating_sub(1), Instant::now());
            if open.wrote || (shared.writers == 0 && open.file.written() == 0) {
                let gone = inner.discard(|name| name == open.name);
                drop(inner);
                drop(gone);
            }
        }
    }

    /// Makes a file at once from what `fill` receives.
    pub(super) fn put(
        &self,
        name: &str,
        len: usize,
        mode: PutMode,
        fill: impl FnOnce(&File) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        check_name(name)?;
        if len > CHUNK {
            let text = format!("a put of {len} bytes; at most {CHUNK} in one frame");
            return Err(Refusal { say: Say::Malformed, numbers: [0; 3], text });
        }
        let file = self.create(len as u64)?;
        fill(&file)?;
        let old = self.inner().publish(name.to_string(), file, mode)?;
        drop(old);
        Ok(())
    }

    /// A finished file; with `version` only the one that has it.
    pub(super) fn find(&self, name: &str, version: Option<u64>) -> Result<Arc<File>, Refusal> {
        check_name(name)?;
        let found = self.inner().finished.get(name).cloned();
        let same = found.filter(|file| version.is_none_or(|version| version == file.version));
        same.ok_or(Refusal::new(Say::NotFound, [0; 3]))
    }

    /// Removes a finished file, else unfinished ones of this name or below it where nothing finished is.
    pub(super) fn delete(&self, name: &str) -> Result<(), Refusal> {
        check_name(name)?;
        let mut inner = self.inner();
        if let Some(old) = inner.finished.remove(name) {
            drop(inner);
            drop(old);
            return Ok(());
        }
        let below = format!("{name}/");
        let mut inside = inner.finished.range(below.clone()..);
        let holds = inside.next().is_some_and(|(first, _)| first.starts_with(&below));
        let gone = match holds {
            true => Vec::new(),
            false => inner.discard(|other| other == name || other.starts_with(&below)),
        };
        drop(inner);
        if gone.is_empty() { Err(Refusal::new(Say::NotFound, [0; 3])) } else { Ok(()) }
    }

    /// A page of the entries of a folder, and where the next begins; empty at the end.
    pub(super) fn list(&self, folder: &str, from: &str) -> Result<(Vec<u8>, String), Refusal> {
        check_folder(folder)?;
        let inner = self.inner();
        Ok(listing::page(&inner.finished, folder, from, |file| file.len))
    }
}
