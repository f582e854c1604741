//! Object stores: memory, and S3, Google and Azure behind features, all through the `object_store` crate.

mod runtime;
mod writer;

use crate::error::{Error, Result};
use crate::name::{check_folder, check_name};
use crate::store::{Entry, EntryKind, PutMode, Reader, Sharing, Store, Writer};
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error as Refusal, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutOptions};
use runtime::wait;
use std::sync::Arc;

/// A bucket, or part of one, or memory.
#[derive(Clone, Debug)]
pub struct Object {
    address: String,
    /// Put before every name; empty or without a slash at the end.
    prefix: String,
    store: Arc<dyn ObjectStore>,
    parts: Parts,
}

/// The other face of the same store: parts of one object, sent in any order.
#[derive(Clone)]
struct Parts(Arc<dyn MultipartStore>);

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Parts")
    }
}

impl Object {
    /// An empty store in memory. Clones share it.
    pub fn memory() -> Object {
        Object::new(Arc::new(InMemory::new()), "memory:", "")
    }

    /// Any store of the `object_store` crate that can take parts in any order; names are put below `prefix`.
    pub fn new<T: ObjectStore + MultipartStore>(store: Arc<T>, address: &str, prefix: &str) -> Object {
        Object {
            address: address.to_string(),
            prefix: prefix.trim_matches('/').to_string(),
            parts: Parts(store.clone()),
            store,
        }
    }

    fn path(&self, name: &str) -> Result<Path> {
        check_name(name)?;
        self.full(name)
    }

    fn full(&self, name: &str) -> Result<Path> {
        let full = crate::name::join(&self.prefix, name);
        Path::parse(full).map_err(|_| Error::BadName {
            name: name.to_string(),
            reason: "the object store does not accept it",
        })
    }

    /// The name of an object of the bucket inside this store.
    fn short(&self, path: &Path) -> Option<String> {
        let full = path.as_ref();
        let inside = if self.prefix.is_empty() { full } else { full.strip_prefix(&self.prefix)? };
        Some(inside.trim_start_matches('/').to_string())
    }
}

/// Our error for a refusal of the crate.
fn refused(name: &str, op: &'static str, error: &Refusal) -> Error {
    let name = name.to_string();
    match error {
        Refusal::NotFound { .. } => Error::NotFound { name },
        Refusal::AlreadyExists { .. } | Refusal::Precondition { .. } => Error::AlreadyExists { name },
        // Everything with a fixed answer has a kind of its own; what is left is network and server trouble.
        Refusal::Generic { .. } => Error::Remote { name, op, message: text(error), transient: true },
        _ => Error::Remote { name, op, message: text(error), transient: false },
    }
}

/// The words of an error and of those behind it, each once.
fn text(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        inner = error.source();
    }
    words
}

impl Store for Object {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        check_folder(folder)?;
        let full = crate::name::join(&self.prefix, folder);
        let prefix = if full.is_empty() { None } else { Some(self.full(folder)?) };
        let store = self.store.clone();
        let found = wait(async move { store.list_with_delimiter(prefix.as_ref()).await })
            .map_err(|error| refused(folder, "list", &error))?;
        let folders = found.common_prefixes.iter().map(|path| (path, EntryKind::Folder));
        let files = found.objects.iter().map(|about| (&about.location, EntryKind::File(about.size)));
        let named =
            folders.chain(files).filter_map(|(path, kind)| Some(Entry { name: self.short(path)?, kind }));
        let mut entries: Vec<Entry> = named.filter(|entry| check_name(&entry.name).is_ok()).collect();
        entries.sort();
        Ok(entries)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        let path = self.path(name)?;
        let (store, at) = (self.store.clone(), path.clone());
        let about =
            wait(async move { store.head(&at).await }).map_err(|error| refused(name, "open", &error))?;
        let store = self.store.clone();
        Ok(Box::new(ObjectReader { name: name.to_string(), path, size: about.size, store }))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        if sharing == Sharing::Processes {
            let what = "let several processes write one file; give each its own";
            return Err(Error::Unsupported { store: self.address(), what });
        }
        Ok(Box::new(writer::ObjectWriter::new(self.clone(), self.path(name)?, name, len)?))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        let (store, path) = (self.store.clone(), self.path(name)?);
        let mode = match mode {
            PutMode::Replace => object_store::PutMode::Overwrite,
            PutMode::Create => object_store::PutMode::Create,
        };
        let bytes = bytes.to_vec();
        wait(async move { store.put_opts(&path, bytes.into(), PutOptions { mode, ..Default::default() }).await })
            .map_err(|error| refused(name, "put", &error))?;
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        let (store, path) = (self.store.clone(), self.path(name)?);
        // Some stores call it a success to delete what is not there; ours says so.
        wait(async move {
            store.head(&path).await?;
            store.delete(&path).await
        })
        .map_err(|error| refused(name, "delete", &error))
    }
}

#[derive(Debug)]
struct ObjectReader {
    name: String,
    path: Path,
    size: u64,
    store: Arc<dyn ObjectStore>,
}

impl Reader for ObjectReader {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let end = offset.saturating_add(into.len() as u64).min(self.size);
        if offset >= end {
            return Ok(0);
        }
        let (store, path) = (self.store.clone(), self.path.clone());
        let range = Some(GetRange::Bounded(offset..end));
        let options = GetOptions { range, ..Default::default() };
        let bytes = wait(async move { store.get_opts(&path, options).await?.bytes().await })
            .map_err(|error| refused(&self.name, "read", &error))?;
        let count = bytes.len().min(into.len());
        into[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }
}
