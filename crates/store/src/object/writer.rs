//! One object written at offsets: parts are collected in memory and sent when they are full.

use super::{Object, refused, runtime::wait};
use crate::error::{Error, Result};
use crate::store::{Writer, check_inside};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{MultipartId, ObjectStoreExt, PutPayload};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    upload: Option<MultipartId>,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    open: BTreeMap<u64, Open>,
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

impl ObjectWriter {
    pub(super) fn new(object: Object, path: Path, name: &str, len: u64) -> Result<ObjectWriter> {
        // Equal parts, as some stores ask for, and never too many of them.
        let part = len.div_ceil(MOST_PARTS).next_multiple_of(1 << 20).max(PART);
        let upload = if len > part {
            let (parts, at) = (object.parts.0.clone(), path.clone());
            let created = wait(async move { parts.create_multipart(&at).await });
            Some(created.map_err(|error| refused(name, "create", &error))?)
        } else {
            None
        };
        let progress = Mutex::default();
        Ok(ObjectWriter { object, path, name: name.to_string(), len, part, upload, progress })
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn part_len(&self, number: u64) -> u64 {
        self.part.min(self.len - number * self.part)
    }

    /// Copies bytes that lie in one part; the part itself when that filled it.
    fn collect(&self, number: u64, at: u64, bytes: &[u8]) -> Option<Vec<u8>> {
        let len = self.part_len(number);
        let mut progress = self.progress();
        progress.written += bytes.len() as u64;
        let open =
            progress.open.entry(number).or_insert_with(|| Open { bytes: vec![0; len as usize], filled: 0 });
        open.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        open.filled += bytes.len() as u64;
        let full = open.filled >= len;
        full.then(|| progress.open.remove(&number)).flatten().map(|open| open.bytes)
    }

    /// Sends a full part. Its bytes are gone if that fails, so the failure is final; the store below has
    /// tried again already.
    fn send(&self, number: u64, bytes: Vec<u8>) -> Result<()> {
        let (payload, path) = (PutPayload::from(bytes), self.path.clone());
        let Some(id) = self.upload.clone() else {
            let store = self.object.store.clone();
            let put = wait(async move { store.put(&path, payload).await });
            return put.map(|_| ()).map_err(|error| last(refused(&self.name, "write", &error)));
        };
        let parts = self.object.parts.0.clone();
        let sent = wait(async move { parts.put_part(&path, &id, number as usize, payload).await });
        let sent = sent.map_err(|error| last(refused(&self.name, "write", &error)))?;
        self.progress().sent.insert(number, sent);
        Ok(())
    }
}

fn last(error: Error) -> Error {
    match error {
        Error::Remote { name, op, message, .. } => Error::Remote { name, op, message, transient: false },
        other => other,
    }
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

    fn finish(self: Box<Self>) -> Result<()> {
        let written = self.progress().written;
        if written != self.len || !self.progress().open.is_empty() {
            return Err(Error::Incomplete { name: self.name.clone(), written, len: self.len });
        }
        if self.len == 0 {
            self.send(0, Vec::new())?;
        }
        if let Some(id) = self.upload.clone() {
            let sent: Vec<PartId> = std::mem::take(&mut self.progress().sent).into_values().collect();
            let (parts, path) = (self.object.parts.0.clone(), self.path.clone());
            wait(async move { parts.complete_multipart(&path, &id, sent).await })
                .map_err(|error| refused(&self.name, "finish", &error))?;
        }
        self.progress().finished = true;
        Ok(())
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        if let Some(id) = self.upload.clone()
            && !self.progress().finished
        {
            let (parts, path) = (self.object.parts.0.clone(), self.path.clone());
            // Nobody is left to tell about a failure; stores drop forgotten parts after a while.
            let _ = wait(async move { parts.abort_multipart(&path, &id).await });
        }
    }
}
