//! The trait every store implements, and what it promises.

use crate::error::{Error, Result};
use crate::local::Mapped;
use crate::name::join;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// Named files. Names are relative and use `/`; see [`crate::check_name`].
///
/// Implementations are few, so there are no default methods: a wrapper that forgets one does not compile.
pub trait Store: Debug + Send + Sync {
    /// Where this store is, for messages.
    fn address(&self) -> String;

    /// Files and folders directly inside `folder` (empty: the root), sorted by name. A folder without
    /// files may or may not be listed. A folder that does not exist is empty.
    fn list(&self, folder: &str) -> Result<Vec<Entry>>;

    /// Opens a file for reading at offsets.
    fn reader(&self, name: &str) -> Result<Box<dyn Reader>>;

    /// Opens a file of `len` bytes for writing at offsets, replacing what was there. Other readers may see
    /// it unfinished (folders) or only when finished (object stores).
    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>>;

    /// Writes a small file whole: a reader sees none or all of it, and it is durable on return.
    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()>;

    /// Removes a file, a link, or a folder in which nothing is listed.
    fn delete(&self, name: &str) -> Result<()>;

    /// Removes a file that was listed a moment ago. One that is not there is no error, so that nobody has to look.
    fn clear(&self, name: &str) -> Result<()> {
        match self.delete(name) {
            Err(Error::NotFound { .. }) => Ok(()),
            done => done,
        }
    }
}

/// An open file.
pub trait Reader: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Size in bytes, as it was when opened.
    fn size(&self) -> u64;

    /// Reads from `offset` until `into` is full or the file ends; how many bytes were read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize>;

    /// What the file was when it was opened, where that can be told without reading it.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Where its bytes come from.
    fn medium(&self) -> Medium {
        Medium::Disk
    }

    /// The range as memory that nobody else has, where that is quicker than reading it: most of it is in the page cache of this
    /// machine. Ranges that share no byte cost one mapping together. Readers that see to every byte, and those of other places, have
    /// nothing to map.
    fn map(&self, range: Range<u64>) -> Result<Option<Mapped>> {
        let _ = range;
        Ok(None)
    }
}

/// Where the bytes of a file come from, which decides how they are best read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Medium {
    /// Memory of this machine: small reads that stay in the cache of a core are as quick as large ones.
    Memory,
    /// A disk, or whatever a file system says is one.
    #[default]
    Disk,
    /// Another machine: an answer takes its time, so that many are asked for at once.
    Network,
}

/// Which file, and in which state: one that is written to, or replaced, has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device and inode.
    pub file: (u64, u64),
    /// Size in bytes.
    pub size: u64,
    /// Seconds and nanoseconds of the last write.
    pub written: (i64, i64),
    /// Those of the last change of anything, which nobody can set.
    pub changed: (i64, i64),
}

/// A file being written. Every byte is written once; different threads may write different ranges.
pub trait Writer: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Whether several writes side by side are as good as one of all their bytes: then bytes that lie apart need not be brought
    /// together first. Not where every write is a message or an object of its own.
    fn takes_parts(&self) -> bool {
        false
    }

    /// Makes what was written durable. Without it the file may be lost, or partly lost.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Full name in the store.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    /// A file of this many bytes.
    File(u64),
    /// A folder.
    Folder,
    /// A link to a folder: read like one, removed like a file, so that what it points to stays.
    FolderLink,
}

impl Entry {
    /// The last part of the name.
    pub fn short(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// Whether this is a file.
    pub fn is_file(&self) -> bool {
        matches!(self.kind, EntryKind::File(_))
    }
}

/// What [`Store::put`] does when the file exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// Take its place.
    Replace,
    /// Refuse; of several writers exactly one succeeds.
    Create,
}

/// Who writes into one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Threads of this process, through one [`Writer`].
    Threads,
    /// Several processes, each with a [`Writer`] of its own; each finishes its own.
    Processes,
}

/// Sugar over [`Store`].
pub trait StoreExt: Store {
    /// A whole file of at most `limit` bytes.
    fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>> {
        let file = self.reader(name)?;
        let size = file.size();
        if size > limit {
            return Err(Error::TooLarge { name: name.to_string(), size, limit });
        }
        read_exact(&*file, 0, size as usize)
    }

    /// Whether a file exists.
    fn exists(&self, name: &str) -> Result<bool> {
        match self.reader(name) {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Every file below `folder`, at any depth, sorted by name.
    fn walk(&self, folder: &str) -> Result<Vec<Entry>> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_string()];
        while let Some(folder) = folders.pop() {
            for entry in self.list(&folder)? {
                match entry.kind {
                    EntryKind::File(_) => files.push(entry),
                    EntryKind::Folder | EntryKind::FolderLink => folders.push(entry.name),
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Removes everything below `folder`, and the folder; never what a link inside points to. What vanishes
    /// meanwhile is not an error.
    fn delete_all(&self, folder: &str) -> Result<()> {
        for entry in self.list(folder)? {
            match entry.kind {
                EntryKind::File(_) | EntryKind::FolderLink => self.clear(&entry.name)?,
                EntryKind::Folder => self.delete_all(&entry.name)?,
            }
        }
        if folder.is_empty() { Ok(()) } else { self.clear(folder) }
    }

    /// Writes a file of any size from one slice, durably.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.writer(name, bytes.len() as u64, Sharing::Threads)?;
        file.write_at(0, bytes)?;
        file.finish()
    }

    /// The names of the files directly inside `folder`, without the folder.
    fn file_names(&self, folder: &str) -> Result<Vec<String>> {
        let files = self.list(folder)?.into_iter().filter(Entry::is_file);
        Ok(files.map(|entry| entry.short().to_string()).collect())
    }

    /// Opens `name` inside `folder`.
    fn reader_in(&self, folder: &str, name: &str) -> Result<Box<dyn Reader>> {
        self.reader(&join(folder, name))
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// Exactly `len` bytes at `offset`; checked against the size before anything is allocated.
pub(crate) fn read_exact(file: &dyn Reader, offset: u64, len: usize) -> Result<Vec<u8>> {
    check_range(file, offset, len as u64)?;
    let mut bytes = vec![0; len];
    fill(file, offset, &mut bytes)?;
    Ok(bytes)
}

/// Fills `into` or says that the file ends before.
pub(crate) fn fill(file: &dyn Reader, offset: u64, into: &mut [u8]) -> Result<()> {
    let len = into.len() as u64;
    if file.read_at(offset, into)? as u64 == len { Ok(()) } else { Err(out_of_file(file, offset, len)) }
}

pub(crate) fn check_range(file: &dyn Reader, offset: u64, len: u64) -> Result<()> {
    check_inside(file.name(), file.size(), offset, len)
}

/// Refuses a part that is not wholly inside a file of `size` bytes.
pub(crate) fn check_inside(name: &str, size: u64, offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfFile { name: name.to_string(), offset, len, size }),
    }
}

fn out_of_file(file: &dyn Reader, offset: u64, len: u64) -> Error {
    Error::OutOfFile { name: file.name().to_string(), offset, len, size: file.size() }
}

impl dyn Reader + '_ {
    /// Exactly `len` bytes at `offset`; refused before anything is allocated when the file is shorter.
    pub fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        read_exact(self, offset, len)
    }

    /// Fills `into` from `offset`, or says that the file ends before.
    pub fn read_into(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        fill(self, offset, into)
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn address(&self) -> String {
        (**self).address()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        (**self).list(folder)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        (**self).reader(name)
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        (**self).writer(name, len, sharing)
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        (**self).put(name, bytes, mode)
    }

    fn delete(&self, name: &str) -> Result<()> {
        (**self).delete(name)
    }

    fn clear(&self, name: &str) -> Result<()> {
        (**self).clear(name)
    }
}
