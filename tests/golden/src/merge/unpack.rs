//! Folders whose files are packed one by one.

use anyhow::{Context, Result};
use flate2::read::MultiGzDecoder;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A folder without packed files: the one that was given, or a copy.
pub(crate) enum Unpacked {
    Given(PathBuf),
    Copy(tempfile::TempDir),
}

impl Unpacked {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Unpacked::Given(path) => path,
            Unpacked::Copy(folder) => folder.path(),
        }
    }
}

/// The folder itself where nothing in it is packed.
pub(crate) fn unpacked(path: &Path) -> Result<Unpacked> {
    let files = files(path)?;
    if files.iter().all(|file| file.extension().is_none_or(|ending| ending != "gz")) {
        return Ok(Unpacked::Given(path.to_path_buf()));
    }
    let copy = tempfile::tempdir()?;
    for file in files {
        let inner = file.strip_prefix(path)?;
        let packed = file.extension().is_some_and(|ending| ending == "gz");
        let target = copy.path().join(if packed { inner.with_extension("") } else { inner.to_path_buf() });
        fs::create_dir_all(target.parent().context("a file has a folder")?)?;
        let mut bytes = fs::read(&file)?;
        if packed {
            let mut whole = Vec::new();
            MultiGzDecoder::new(&bytes[..]).read_to_end(&mut whole)?;
            bytes = whole;
        }
        fs::write(target, bytes)?;
    }
    Ok(Unpacked::Copy(copy))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    Ok(found)
}
