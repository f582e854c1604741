//! Object stores: memory, and S3, Google and Azure behind features, all through the `object_store` crate.
//!
//! Operations are tried again here, not by those who call: only here is known what an answer that got lost may have
//! done already.

mod frames;
mod refusal;
mod runtime;
mod writer;

use crate::error::{Error, Result};
use crate::name::{check_folder, check_name};
use crate::retry::{RetryOptions, random, retry};
use crate::store::{Entry, EntryKind, Medium, PutMode, Reader, Sharing, Store, Writer};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error as Refusal, GetOptions, GetRange, ListResult, ObjectStore, ObjectStoreExt,
    PutOptions,
};
use runtime::wait;
use std::future::Future;
use std::sync::Arc;

pub(crate) use refusal::Words;
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub(crate) use refusal::text;

/// Metadata of an object that was to be created: who did it. Azure takes letters only.
const CREATOR: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("planariacreator"));

/// A bucket, or part of one, or memory.
#[derive(Clone, Debug)]
pub struct Object {
    address: String,
    /// Put before every name; empty or without a slash at the end.
    prefix: String,
    store: Arc<dyn ObjectStore>,
    faces: Faces,
    words: &'static Words,
    retry: RetryOptions,
}

/// Other faces of the same store.
#[derive(Clone)]
struct Faces {
    /// Parts of one object, sent in any order.
    parts: Arc<dyn MultipartStore>,
    /// Listings page by page, so that a page that fails is asked for again alone.
    pages: Option<Arc<dyn PaginatedListStore>>,
}

impl std::fmt::Debug for Faces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faces")
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
            faces: Faces { parts: store.clone(), pages: None },
            store,
            words: &refusal::PLAIN,
            retry: RetryOptions::default(),
        }
    }

    /// A store behind a network.
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub(crate) fn bucket<T: ObjectStore + MultipartStore + PaginatedListStore>(
        store: Arc<T>,
        address: &str,
        prefix: &str,
        words: &'static Words,
        retry: RetryOptions,
    ) -> Object {
        let faces = Faces { parts: store.clone(), pages: Some(store.clone()) };
        Object { faces, words, retry, ..Object::new(store, address, prefix) }
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

    fn refused(&self, name: &str, op: &'static str, error: &Refusal) -> Error {
        refusal::refused(self.words, &self.address, name, op, error)
    }

    /// Does `work` and waits for it, again where that may help.
    fn tried<T, W: Future<Output = Result<T, Refusal>>>(
        &self,
        name: &str,
        op: &'static str,
        work: impl Fn() -> W,
    ) -> Result<T> {
        retry(&self.retry, |_| wait(work()).map_err(|error| self.refused(name, op, &error)))
    }

    /// Whether an object that must not exist already was created by the holder of this mark.
    fn is_created_by(&self, name: &str, path: &Path, mark: &str) -> Result<bool> {
        let (store, path) = (self.store.clone(), path.clone());
        let options = GetOptions { head: true, ..Default::default() };
        match wait(async move { store.get_opts(&path, options).await }) {
            Ok(found) => Ok(found.attributes.get(&CREATOR).is_some_and(|creator| creator.as_ref() == mark)),
            // Refused because of another writer that did not get through either.
            Err(Refusal::NotFound { .. }) => {
                let (name, message) = (name.to_string(), "another writer was in the way".to_string());
                Err(Error::Remote { name, op: "create", message, transient: true })
            }
            Err(error) => Err(self.refused(name, "create", &error)),
        }
    }

    fn create(&self, name: &str, bytes: bytes::Bytes) -> Result<()> {
        let path = self.path(name)?;
        let mark = format!("{:016x}", random());
        retry(&self.retry, |_| {
            let mut options = PutOptions { mode: object_store::PutMode::Create, ..Default::default() };
            options.attributes = Attributes::from_iter([(CREATOR, mark.clone())]);
            let (store, at, bytes) = (self.store.clone(), path.clone(), bytes.clone());
            let done = wait(async move { store.put_opts(&at, bytes.into(), options).await });
            match done.map_err(|error| self.refused(name, "put", &error)) {
                // A try of ours may have arrived although its answer did not.
                Err(Error::AlreadyExists { .. }) if self.is_created_by(name, &path, &mark)? => Ok(()),
                done => done.map(|_| ()),
            }
        })
    }

    /// What is directly inside `folder`, in parts of a listing given to `take`.
    fn listed(&self, folder: &str, full: &str, mut take: impl FnMut(&ListResult)) -> Result<()> {
        let Some(pages) = &self.faces.pages else {
            let prefix = if full.is_empty() { None } else { Some(self.full(folder)?) };
            let found = self.tried(folder, "list", || {
                let (store, prefix) = (self.store.clone(), prefix.clone());
                async move { store.list_with_delimiter(prefix.as_ref()).await }
            })?;
            take(&found);
            return Ok(());
        };
        let prefix = (!full.is_empty()).then(|| format!("{}/", full.trim_end_matches('/')));
        let mut token = None;
        loop {
            let page = self.tried(folder, "list", || {
                let (pages, prefix, page_token) = (pages.clone(), prefix.clone(), token.clone());
                let options =
                    PaginatedListOptions { delimiter: Some("/".into()), page_token, ..Default::default() };
                async move { pages.list_paginated(prefix.as_deref(), options).await }
            })?;
            take(&page.result);
            token = page.page_token;
            if token.is_none() {
                return Ok(());
            }
        }
    }
}

impl Store for Object {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        check_folder(folder)?;
        let full = crate::name::join(&self.prefix, folder);
        let mut entries: Vec<Entry> = Vec::new();
        self.listed(folder, &full, |found| {
            let folders = found.common_prefixes.iter().map(|path| (path, EntryKind::Folder));
            let files = found.objects.iter().map(|about| (&about.location, EntryKind::File(about.size)));
            let named =
                folders.chain(files).filter_map(|(path, kind)| Some(Entry { name: self.short(path)?, kind }));
            entries.extend(named.filter(|entry| check_name(&entry.name).is_ok()));
        })?;
        entries.sort();
        entries.dedup();
        Ok(entries)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        let path = self.path(name)?;
        let about = self.tried(name, "open", || {
            let (store, at) = (self.store.clone(), path.clone());
            async move { store.head(&at).await }
        })?;
        Ok(Box::new(ObjectReader { name: name.to_string(), path, size: about.size, object: self.clone() }))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        if sharing == Sharing::Processes {
            let what = "let several processes write one file; give each its own";
            return Err(Error::Unsupported { store: self.address(), what });
        }
        Ok(Box::new(writer::ObjectWriter::new(self.clone(), self.path(name)?, name, len)?))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        let (path, bytes) = (self.path(name)?, bytes::Bytes::copy_from_slice(bytes));
        if mode == PutMode::Create {
            return self.create(name, bytes);
        }
        self.tried(name, "put", || {
            let (store, path, bytes) = (self.store.clone(), path.clone(), bytes.clone());
            async move { store.put(&path, bytes.into()).await.map(|_| ()) }
        })
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        retry(&self.retry, |failed| {
            let (store, path) = (self.store.clone(), path.clone());
            // Some stores call it a success to delete what is not there; ours says so.
            let done = wait(async move {
                store.head(&path).await?;
                match store.delete(&path).await {
                    // Gone since the line above, by a try of ours or by somebody else.
                    Err(Refusal::NotFound { .. }) => Ok(()),
                    done => done,
                }
            });
            match done.map_err(|error| self.refused(name, "delete", &error)) {
                Err(Error::NotFound { .. }) if failed > 0 => Ok(()),
                done => done,
            }
        })
    }

    fn clear(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        retry(&self.retry, |_| {
            let (store, path) = (self.store.clone(), path.clone());
            match wait(async move { store.delete(&path).await }) {
                Err(Refusal::NotFound { .. }) => Ok(()),
                done => done.map_err(|error| self.refused(name, "delete", &error)),
            }
        })
    }
}

#[derive(Debug)]
struct ObjectReader {
    name: String,
    path: Path,
    size: u64,
    object: Object,
}

impl Reader for ObjectReader {
    fn medium(&self) -> Medium {
        Medium::Network
    }

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
        let into = &mut into[..(end - offset) as usize];
        retry(&self.object.retry, |_| {
            let options = GetOptions { range: Some(GetRange::Bounded(offset..end)), ..Default::default() };
            let got = frames::fill(self.object.store.clone(), self.path.clone(), options, into);
            if got.map_err(|error| self.object.refused(&self.name, "read", &error))? {
                return Ok(into.len());
            }
            let message = format!("the answer does not have the {} bytes it was to have", into.len());
            Err(Error::Remote { name: self.name.clone(), op: "read", message, transient: true })
        })
    }
}
