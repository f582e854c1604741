//! What happens to the files of a run while it is down.

use super::fault::Kind;
use anyhow::{Context, Result};
use std::fs::{self, File, FileTimes};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Harms the newest checkpoint below a run's folder, or the times of all its files; what was harmed.
pub(super) fn harm(run: &Path, kind: Kind, pick: u64) -> Result<String> {
    if kind == Kind::Clock {
        let all = files(run);
        for (number, file) in all.iter().enumerate() {
            let shift = Duration::from_secs(400 * 86_400 * (1 + (pick >> (number % 48)) % 9));
            let now = SystemTime::now();
            let then = if (pick >> (number % 60)) & 1 == 0 { now + shift } else { now - shift };
            let times = FileTimes::new().set_modified(then).set_accessed(then);
            // A file that may not be touched keeps its time.
            let _ = File::options().write(true).open(file).and_then(|file| file.set_times(times));
        }
        return Ok(format!("the times of {} files", all.len()));
    }
    let mut saved: Vec<PathBuf> = folders(&run.join("ckpt"));
    saved.retain(|folder| folder.join("COMMIT").is_file());
    let Some(newest) = saved.pop() else { return Ok("nothing: there is no checkpoint".into()) };
    // The mark itself is not harmed: a folder without it is not a checkpoint at all.
    let mut all = files(&newest);
    all.retain(|file| file.file_name().is_some_and(|name| name != "COMMIT"));
    let file = all.get(pick as usize % all.len().max(1)).context("the checkpoint has no files")?;
    let io = || format!("cannot harm '{}'", file.display());
    let size = fs::metadata(file).with_context(io)?.len();
    match kind {
        Kind::Corrupt if size > 0 => {
            let mut bytes = fs::read(file).with_context(io)?;
            let at = (pick >> 8) as usize % bytes.len();
            bytes[at] ^= 1 << (pick % 8);
            fs::write(file, bytes).with_context(io)?;
        }
        Kind::Torn if size > 0 => {
            let file = File::options().write(true).open(file).with_context(io)?;
            file.set_len((pick >> 8) % size).with_context(io)?;
        }
        _ => fs::remove_file(file).with_context(io)?,
    }
    Ok(file.strip_prefix(run).unwrap_or(file).display().to_string())
}

/// The folders in a folder, by name.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    all.sort();
    all
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
