//! Folders of checkpoints: which are committed, how one comes to be, and how leftovers go.

use crate::error::{Error, Result};
use crate::manifest::{Checkpoint, MANIFEST, MANIFEST_BYTES, Manifest};
use planaria_store::{EntryKind, PutMode, Sharing, Store, StoreExt, checksum, join};
use serde::{Deserialize, Serialize};
use std::panic::resume_unwind;

/// The mark that makes a folder a checkpoint.
pub(crate) const COMMIT: &str = "COMMIT";
/// The mark of a save under way; a folder that has it and no [`COMMIT`] is a leftover.
pub(crate) const SAVING: &str = "SAVING";
/// Where a run keeps its checkpoints.
const RUN_CHECKPOINTS: &str = "ckpt";
/// Largest mark that is read.
const MARK_BYTES: u64 = 1 << 16;

/// What the mark says: which manifest was meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    manifest_size: u64,
    manifest_sum: String,
}

/// The folder of a step, as in `step-00001000`.
pub fn step_folder(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a folder name.
pub fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step-")?;
    let plain = digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten().filter(|&step| step_folder(step) == name)
}

/// Opens a committed checkpoint: reads its manifest, no data.
pub fn open(store: &dyn Store, folder: &str) -> Result<Checkpoint> {
    Manifest::read(folder, &read_manifest(store, folder)?)
}

/// The text of a manifest that the commit mark vouches for.
pub(crate) fn read_manifest(store: &dyn Store, folder: &str) -> Result<Vec<u8>> {
    let file = join(folder, MANIFEST);
    let manifest = || store.read(&file, MANIFEST_BYTES);
    // Both at once: where a store is far away, each takes a while.
    let (mark, text) = std::thread::scope(|scope| {
        let text = scope.spawn(manifest);
        let mark = store.read(&join(folder, COMMIT), MARK_BYTES);
        (mark, text.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let mark = match mark {
        Ok(mark) => mark,
        Err(planaria_store::Error::NotFound { .. }) => {
            let empty = store.list(folder)?.is_empty();
            let why =
                if empty { "there is nothing" } else { "it has no COMMIT mark, so its save did not finish" };
            return Err(Error::NotCommitted { folder: folder.to_string(), why: why.to_string() });
        }
        Err(error) => return Err(error.into()),
    };
    let mark: Mark = serde_json::from_slice(&mark)
        .map_err(|error| Error::Malformed { file: join(folder, COMMIT), what: error.to_string() })?;
    // Committed since the manifest was looked for.
    let text = match text {
        Err(planaria_store::Error::NotFound { .. }) => manifest(),
        text => text,
    };
    let text = text.map_err(|error| match error {
        planaria_store::Error::NotFound { .. } => without_manifest(&join(&store.address(), folder)),
        other => other.into(),
    })?;
    let found = Mark::of(&text);
    if found != mark {
        let what = format!(
            "it has {} bytes with checksum {}, the commit mark expects {} with {}",
            found.manifest_size, found.manifest_sum, mark.manifest_size, mark.manifest_sum
        );
        return Err(Error::Malformed { file, what });
    }
    Ok(text)
}

/// A folder that lost its manifest.
pub(crate) fn without_manifest(at: &str) -> Error {
    Error::Torn { what: format!("'{at}' has a COMMIT mark and no manifest.json") }
}

impl Mark {
    fn of(manifest: &[u8]) -> Mark {
        let manifest_sum = format!("{:08x}", checksum::crc32c(manifest));
        Mark { manifest_size: manifest.len() as u64, manifest_sum }
    }
}

/// Whether a folder is committed.
pub(crate) fn is_committed(store: &dyn Store, folder: &str) -> Result<bool> {
    Ok(store.exists(&join(folder, COMMIT))?)
}

/// The steps whose folders inside `folder` are committed, ascending.
pub fn committed(store: &dyn Store, folder: &str) -> Result<Vec<u64>> {
    let mut steps = Vec::new();
    for entry in store.list(folder)? {
        if let Some(step) = step_of(entry.short()).filter(|_| !entry.is_file())
            && is_committed(store, &entry.name)?
        {
            steps.push(step);
        }
    }
    steps.sort_unstable();
    Ok(steps)
}

/// The folder of the latest committed step inside `folder`.
pub fn latest(store: &dyn Store, folder: &str) -> Result<Option<String>> {
    Ok(committed(store, folder)?.last().map(|step| join(folder, &step_folder(*step))))
}

/// The checkpoint that a path stands for: the folder of a run, or of its checkpoints, stands for the newest that is
/// committed, everything else for itself.
pub fn newest(store: &dyn Store, at: &str) -> Result<String> {
    if is_committed(store, at)? {
        return Ok(at.to_string());
    }
    let found = match latest(store, &join(at, RUN_CHECKPOINTS))? {
        None => latest(store, at)?,
        found => found,
    };
    Ok(found.unwrap_or_else(|| at.to_string()))
}

/// Makes an empty folder for a save: refuses a committed one, and removes what dead saves left there and beside it.
pub(crate) fn begin(store: &dyn Store, folder: &str) -> Result<()> {
    planaria_store::check_name(folder)?;
    if is_committed(store, folder)? {
        return Err(Error::Committed { folder: folder.to_string() });
    }
    let entries = store.list(folder)?;
    let ours = entries.iter().any(|entry| entry.short() == SAVING);
    if !entries.is_empty() && !ours {
        let why = "it has files that an unfinished save did not leave; choose an empty folder".to_string();
        return Err(Error::NotCommitted { folder: folder.to_string(), why });
    }
    discard(store, folder)?;
    let (parent, name) = folder.rsplit_once('/').unwrap_or(("", folder));
    if step_of(name).is_some() {
        remove_leftovers(store, parent)?;
    }
    Ok(store.put(&join(folder, SAVING), b"", PutMode::Replace)?)
}

/// Removes folders of steps whose save began and did not end; which.
pub fn remove_leftovers(store: &dyn Store, parent: &str) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in store.list(parent)? {
        if entry.kind != EntryKind::Folder || step_of(entry.short()).is_none() {
            continue;
        }
        if store.exists(&join(&entry.name, SAVING))? && !is_committed(store, &entry.name)? {
            discard(store, &entry.name)?;
            removed.push(entry.name);
        }
    }
    Ok(removed)
}

/// Removes a folder that is not committed; the mark of the save goes last, so that a removal that dies is taken
/// up again.
pub(crate) fn discard(store: &dyn Store, folder: &str) -> Result<()> {
    for entry in store.list(folder)? {
        if entry.kind == EntryKind::Folder {
            store.delete_all(&entry.name)?;
        } else if entry.short() != SAVING {
            ignore_missing(store.delete(&entry.name))?;
        }
    }
    Ok(store.delete_all(folder)?)
}

/// Removes what a failed save left, unless it was committed after all.
pub(crate) fn discard_failed(store: &dyn Store, folder: &str) -> Result<()> {
    if is_committed(store, folder)? { Ok(()) } else { discard(store, folder) }
}

/// Removes a committed checkpoint. Without its mark it is a leftover at once, whatever happens next.
pub fn remove(store: &dyn Store, folder: &str) -> Result<()> {
    store.put(&join(folder, SAVING), b"", PutMode::Replace)?;
    ignore_missing(store.delete(&join(folder, COMMIT)))?;
    discard(store, folder)
}

fn ignore_missing(result: planaria_store::Result<()>) -> Result<()> {
    match result {
        Err(planaria_store::Error::NotFound { .. }) => Ok(()),
        other => Ok(other?),
    }
}

/// Bytes that a checkpoint is copied in at a time.
const PIECE: u64 = 8 << 20;

/// Copies a committed checkpoint to the same folder of another store, file by file. Its mark goes last, so that the copy is complete or
/// not there. What the files hold is not looked at; see [`crate::verify`].
pub fn copy(from: &dyn Store, to: &dyn Store, folder: &str) -> Result<()> {
    begin(to, folder)?;
    let mark = join(folder, COMMIT);
    for entry in from.walk(folder)?.into_iter().filter(|entry| entry.name != mark && entry.short() != SAVING)
    {
        let reader = from.reader(&entry.name)?;
        let size = reader.size();
        let writer = to.writer(&entry.name, size, Sharing::Threads)?;
        let mut at = 0;
        while at < size {
            let mut bytes = vec![0; PIECE.min(size - at) as usize];
            if reader.read_at(at, &mut bytes)? < bytes.len() {
                let what = format!("'{}' became shorter than {size} bytes while it was copied", entry.name);
                return Err(Error::Torn { what });
            }
            writer.write_at(at, &bytes)?;
            at += bytes.len() as u64;
        }
        writer.finish()?;
    }
    to.put(&mark, &from.read(&mark, MARK_BYTES)?, PutMode::Create)?;
    // Only a hint from here on; a committed folder is one with or without it.
    let _ = to.delete(&join(folder, SAVING));
    Ok(())
}

/// Writes the manifest, then the mark. All data must be durable already.
pub(crate) fn commit(store: &dyn Store, folder: &str, manifest: &[u8]) -> Result<()> {
    store.put(&join(folder, MANIFEST), manifest, PutMode::Replace)?;
    let mark = serde_json::json!(Mark::of(manifest)).to_string();
    let name = join(folder, COMMIT);
    match store.put(&name, mark.as_bytes(), PutMode::Create) {
        // A put whose answer was lost and that was tried again finds its own mark.
        Err(planaria_store::Error::AlreadyExists { .. })
            if store.read(&name, MARK_BYTES)? == mark.as_bytes() => {}
        Err(planaria_store::Error::AlreadyExists { .. }) => {
            return Err(Error::Committed { folder: folder.to_string() });
        }
        other => other?,
    }
    // Only a hint from here on; a committed folder is one with or without it.
    let _ = store.delete(&join(folder, SAVING));
    Ok(())
}
