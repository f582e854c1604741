//! What stands in a folder that is to be replaced, and whether all of it belongs to a checkpoint.

use super::failed;
use crate::convert::belongs;
use crate::error::Result;
use crate::formats::{OpenOptions, Source, open_url};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Files of a folder by their names in it, and its folders, inner ones first. Links are entries, never followed.
pub(super) struct Contents {
    files: Vec<String>,
    folders: Vec<String>,
}

impl Contents {
    pub(super) fn of(folder: &Path) -> Result<Contents> {
        let mut found = Contents { files: Vec::new(), folders: Vec::new() };
        let mut open = vec![String::new()];
        while let Some(inner) = open.pop() {
            let at = folder.join(&inner);
            for entry in fs::read_dir(&at).map_err(failed("list", &at))? {
                let entry = entry.map_err(failed("list", &at))?;
                let short = entry.file_name().to_string_lossy().into_owned();
                let name = if inner.is_empty() { short } else { format!("{inner}/{short}") };
                match entry.file_type().map_err(failed("look at", &entry.path()))? {
                    kind if kind.is_dir() => open.push(name),
                    _ => found.files.push(name),
                }
            }
            found.folders.extend(Some(inner).filter(|inner| !inner.is_empty()));
        }
        found.files.sort();
        found.folders.reverse();
        Ok(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.folders.is_empty()
    }

    /// Files that neither belong to the checkpoint that stands there nor are about to be written again. Where no checkpoint
    /// can be read, only the latter are known.
    pub(super) fn unrelated(&self, folder: &Path, written: &BTreeSet<String>) -> Vec<String> {
        let source: Option<Source> =
            folder.to_str().and_then(|path| open_url(path, &OpenOptions::default()).ok());
        let known = |name: &str| {
            written.contains(name) || source.as_ref().is_some_and(|source| belongs(source, name))
        };
        let empty = |inner: &&String| !self.files.iter().any(|file| file.starts_with(&format!("{inner}/")));
        let folders = self.folders.iter().filter(empty).map(|inner| format!("{inner}/"));
        self.files.iter().filter(|name| !known(name)).cloned().chain(folders).collect()
    }

    /// Removes what was listed from `folder` and the folder itself. What came later makes it fail, and stays.
    pub(super) fn remove(&self, folder: &Path) -> io::Result<()> {
        self.files.iter().try_for_each(|name| fs::remove_file(folder.join(name)))?;
        self.folders.iter().try_for_each(|name| fs::remove_dir(folder.join(name)))?;
        fs::remove_dir(folder)
    }
}
