//! One object written at offsets: parts are collected in memory and sent when they are full.

use super::{Object, runtime::wait};
use crate::error::{Error, Result};
use crate::retry::retry;
use crate::store::{Writer, check_inside};
use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{Error as Refusal, MultipartId, ObjectMeta, ObjectStoreExt};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smallest part; object stores ask for 5 MiB.
const PART: u64 = 8 << 20;
/// Most parts of one object on S3.
const MOST_PARTS: u64 = 10_000;

#[derive(Debug)]
pub(super) struct ObjectWriter {
    object: Object,
    path: Path,
    name: String,
    len: u64,
    part: u64,
    /// `None` for objects of a single part, which are put whole.
    upload: Option<Upload>,
    progress: Mutex<Progress>,
}

/// An object that is sent in parts.
#[derive(Clone, Debug)]
struct Upload {
    id: MultipartId,
    /// What had the object's name before; another one afterwards is ours.
    before: Option<Version>,
}

/// Enough of an object to tell it from another one with its name.
type Version = (Option<String>, std::time::SystemTime);

#[derive(Debug, Default)]
struct Progress {
    /// Each with a lock of its own, so that threads copy into several at once.
    open: BTreeMap<u64, Arc<Mutex<Open>>>,
    sent: BTreeMap<u64, PartId>,
    written: u64,
    finished: bool,
}

/// A part that is not full yet.
#[derive(Debug)]
struct Open {
    bytes: Vec<u8>,
    filled: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ObjectWriter {
    pub(super) fn new(object: Object, path: Path, name: &str, len: u64) -> Result<ObjectWriter> {
        // Equal parts, as some stores ask for, and never too many of them.
        let part = len.div_ceil(MOST_PARTS).next_multiple_of(1 << 20).max(PART);
        let (name, progress) = (name.to_string(), Mutex::default());
        let mut writer = ObjectWriter { object, path, name, len, part, upload: None, progress };
        if len > part {
            let before = writer.found()?.as_ref().map(version);
            let id = writer.object.tried(&writer.name, "create", || {
                let (parts, at) = (writer.object.faces.parts.clone(), writer.path.clone());
                async move { parts.create_multipart(&at).await }
            })?;
            writer.upload = Some(Upload { id, before });
        }
        Ok(writer)
    }

    /// What has the object's name now.
    fn found(&self) -> Result<Option<ObjectMeta>> {
        self.object.tried(&self.name, "create", || {
            let (store, at) = (self.object.store.clone(), self.path.clone());
            async move {
                match store.head(&at).await {
                    Err(Refusal::NotFound { .. }) => Ok(None),
                    found => found.map(Some),
                }
            }
        })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        locked(&self.progress)
    }

    fn part_len(&self, number: u64) -> u64 {
        self.part.min(self.len - number * self.part)
    }

    /// Copies bytes that lie in one part; the part itself when that filled it.
    fn collect(&self, number: u64, at: u64, bytes: &[u8]) -> Option<Vec<u8>> {
        let len = self.part_len(number);
        let open = {
            let mut progress = self.progress();
            progress.written += bytes.len() as u64;
            if bytes.len() as u64 == len && !progress.open.contains_key(&number) {
                drop(progress);
                return Some(bytes.to_vec());
            }
            let new = || Arc::new(Mutex::new(Open { bytes: vec![0; len as usize], filled: 0 }));
            progress.open.entry(number).or_insert_with(new).clone()
        };
        let mut open = locked(&open);
        open.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        open.filled += bytes.len() as u64;
        if open.filled < len {
            return None;
        }
        self.progress().open.remove(&number);
        Some(std::mem::take(&mut open.bytes))
    }

    /// Sends a full part. Its bytes are gone if that fails, which is therefore final.
    fn send(&self, number: u64, bytes: Vec<u8>) -> Result<()> {
        let bytes = Bytes::from(bytes);
        let Some(Upload { id, .. }) = &self.upload else {
            return self.object.tried(&self.name, "write", || {
                let (store, path, bytes) = (self.object.store.clone(), self.path.clone(), bytes.clone());
                async move { store.put(&path, bytes.into()).await.map(|_| ()) }
            });
        };
        let sent = self.object.tried(&self.name, "write", || {
            let (parts, path) = (self.object.faces.parts.clone(), self.path.clone());
            let (id, bytes) = (id.clone(), bytes.clone());
            async move { parts.put_part(&path, &id, number as usize, bytes.into()).await }
        })?;
        self.progress().sent.insert(number, sent);
        Ok(())
    }

    /// Makes the parts one object, which is seen from then on.
    fn complete(&self, upload: &Upload) -> Result<()> {
        let sent: Vec<PartId> = self.progress().sent.values().cloned().collect();
        retry(&self.object.retry, |_| {
            let (parts, path) = (self.object.faces.parts.clone(), self.path.clone());
            let (id, sent) = (upload.id.clone(), sent.clone());
            let Err(error) = wait(async move { parts.complete_multipart(&path, &id, sent).await }) else {
                return Ok(());
            };
            // An answer that was lost, and a second try that finds the parts used up, look like failures.
            let arrived =
                |about: ObjectMeta| about.size == self.len && Some(version(&about)) != upload.before;
            if self.found()?.is_some_and(arrived) {
                return Ok(());
            }
            match self.object.refused(&self.name, "finish", &error) {
                Error::NotFound { name } => {
                    let message = "the store has dropped its parts; write it again".to_string();
                    Err(Error::Remote { name, op: "finish", message, transient: false })
                }
                error => Err(error),
            }
        })
    }
}

fn version(about: &ObjectMeta) -> Version {
    (about.e_tag.clone(), about.last_modified.into())
}

impl Writer for ObjectWriter {
    fn name(&self) -> &str {
        &self.name
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_inside(&self.name, self.len, offset, bytes.len() as u64)?;
        let (mut offset, mut bytes) = (offset, bytes);
        while !bytes.is_empty() {
            let (number, at) = (offset / self.part, offset % self.part);
            let (now, later) = bytes.split_at(bytes.len().min((self.part - at) as usize));
            if let Some(full) = self.collect(number, at, now) {
                self.send(number, full)?;
            }
            offset += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// They are brought together here.
    fn takes_parts(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let written = self.progress().written;
        if written != self.len || !self.progress().open.is_empty() {
            return Err(Error::Incomplete { name: self.name.clone(), written, len: self.len });
        }
        if self.len == 0 {
            self.send(0, Vec::new())?;
        }
        if let Some(upload) = &self.upload {
            self.complete(upload)?;
        }
        self.progress().finished = true;
        Ok(())
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        if let Some(Upload { id, .. }) = self.upload.take()
            && !self.progress().finished
        {
            let (parts, path) = (self.object.faces.parts.clone(), self.path.clone());
            // Nobody is left to tell about a failure; stores drop forgotten parts after a while.
            let _ = wait(async move { parts.abort_multipart(&path, &id).await });
        }
    }
}
