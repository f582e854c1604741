//! A small file that one process writes over and over, and others read at any time, also when the writer is stuck or gone: one JSON value.

use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of a file: every value takes as many, so that nothing is left of a longer one.
const BYTES: usize = 4096;

/// The file, seen from its writer.
#[derive(Debug)]
pub struct Slate(File);

impl Slate {
    /// Makes the file, or empties it.
    pub fn create(path: &Path) -> Result<Slate> {
        File::create(path).map(Slate).map_err(Error::io("create", path))
    }

    /// Writes a value in place of the one before; false where it is too long, and nothing was written.
    #[must_use]
    pub fn write(&self, value: &impl Serialize) -> bool {
        let mut text = serde_json::to_vec(value).unwrap_or_default();
        if text.len() >= BYTES {
            return false;
        }
        text.resize(BYTES, b' ');
        // Nobody can be told that nobody can be told.
        let _ = self.0.write_all_at(&text, 0);
        true
    }
}

/// The values of all files of a folder whose names end so, by name. A file that is being written is read the next time.
pub fn read_slates<T: DeserializeOwned>(folder: &Path, ending: &str) -> Vec<T> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|found| found == ending));
    paths.sort();
    let read = |path: PathBuf| serde_json::from_slice(&std::fs::read(path).ok()?).ok();
    paths.into_iter().filter_map(read).collect()
}
