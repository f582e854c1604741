//! What happens to the checkpoints of a run while it is down.

use super::fault::FaultKind;
use anyhow::{Context, Result};
use planaria::ckpt::{committed, step_folder};
use planaria::store::{Store, StoreExt, join};
use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Where a run keeps checkpoints in each of its places.
const CHECKPOINTS: &str = "ckpt";

/// Largest file of a drill's checkpoint.
const MOST: u64 = 1 << 36;

/// Harms the newest checkpoint in one of the places of a run, or another file of it in each of them.
pub(super) fn harm(places: &[Arc<dyn Store>], kind: FaultKind, pick: u64) -> Result<()> {
    let saved = |place: &Arc<dyn Store>| committed(&**place, CHECKPOINTS).unwrap_or_default();
    let Some(newest) = places.iter().flat_map(saved).max() else { return Ok(()) };
    let folder = join(CHECKPOINTS, &step_folder(newest));
    let mut having: Vec<&Arc<dyn Store>> =
        places.iter().filter(|place| saved(place).contains(&newest)).collect();
    // Half of the time every place loses something, but no two the same.
    if pick >> 40 & 1 == 0 {
        having.drain(..pick as usize % having.len());
        having.truncate(1);
    }
    let mut numbered = (0..).zip(having);
    numbered.try_for_each(|(number, place)| harm_one(&**place, &folder, kind, pick.wrapping_add(number)))
}

/// Harms one file of a checkpoint.
fn harm_one(place: &dyn Store, folder: &str, kind: FaultKind, pick: u64) -> Result<()> {
    let mut all: Vec<String> = place.walk(folder)?.into_iter().map(|entry| entry.name).collect();
    // The mark itself is not harmed: a folder without it is not a checkpoint at all.
    all.retain(|name| !name.ends_with("/COMMIT"));
    let name = all.get(pick as usize % all.len().max(1)).context("the checkpoint has no files")?;
    let mut bytes = place.read(name, MOST)?.to_vec();
    match kind {
        FaultKind::Corrupt if !bytes.is_empty() => {
            let at = (pick >> 8) as usize % bytes.len();
            bytes[at] ^= 1 << (pick % 8);
            place.write(name, &bytes)?;
        }
        FaultKind::Torn if !bytes.is_empty() => {
            bytes.truncate((pick >> 8) as usize % bytes.len());
            place.write(name, &bytes)?;
        }
        _ => place.delete(name)?,
    }
    Ok(())
}

/// Sets the times of all files years into the past or the future.
pub(super) fn shift_times(folders: &[PathBuf], pick: u64) {
    for (number, file) in folders.iter().flat_map(|folder| files(folder)).enumerate() {
        let shift = Duration::from_secs(400 * 86_400 * (1 + (pick >> (number % 48)) % 9));
        let now = SystemTime::now();
        let then = if (pick >> (number % 60)) & 1 == 0 { now + shift } else { now - shift };
        let times = FileTimes::new().set_modified(then).set_accessed(then);
        // A file that may not be touched keeps its time.
        let _ = File::options().write(true).open(file).and_then(|file| file.set_times(times));
    }
}

/// All files below a folder, by name.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}
