//! Folders of the local file system: positional reads and writes, aligned direct I/O, durable commits.

mod cached;
mod map;
mod reader;
mod sys;
mod writer;

pub use map::Mapped;
pub use reader::open_file;
pub(crate) use sys::kill_this_process;

use crate::error::{Error, Result};
use crate::name::{check_folder, check_name, join};
use crate::store::{Entry, EntryKind, PutMode, Reader, Sharing, Store, Writer};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Temporary files of [`Store::put`]; never listed.
const TEMPORARY: &str = ".planaria-put-";

/// A folder.
#[derive(Clone, Debug)]
pub struct Local {
    root: PathBuf,
    direct: DirectIo,
}

/// Whether large aligned transfers go around the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DirectIo {
    /// Where the file system allows it. Reads of pages that are in the cache still come from there.
    #[default]
    WherePossible,
    /// Never.
    Never,
}

impl Local {
    /// The folder at `root`; it is created when something is written.
    pub fn new(root: impl Into<PathBuf>) -> Local {
        Local::with(root, DirectIo::default())
    }

    /// The folder at `root` with the kind of I/O chosen.
    pub fn with(root: impl Into<PathBuf>, direct: DirectIo) -> Local {
        let root = root.into();
        let root = if root.as_os_str().is_empty() { PathBuf::from(".") } else { root };
        Local { root, direct }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        Ok(self.root.join(name))
    }
}

impl Store for Local {
    fn address(&self) -> String {
        self.root.display().to_string()
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        check_folder(folder)?;
        let entries = match fs::read_dir(self.root.join(folder)) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(Error::io(folder, "list", &error)),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Error::io(folder, "list", &error))?;
            let short = entry.file_name();
            // Names that are not text, and our own temporary files, are not files of the store.
            let Some(short) = short.to_str().filter(|s| !s.starts_with(TEMPORARY)) else { continue };
            // Follows links: model hubs keep files as links. A file deleted meanwhile is left out.
            let Ok(about) = fs::metadata(entry.path()) else { continue };
            let kind = match (about.is_dir(), entry.file_type()) {
                (false, _) => EntryKind::File(about.len()),
                (true, Ok(own)) if own.is_symlink() => EntryKind::FolderLink,
                (true, _) => EntryKind::Folder,
            };
            listed.push(Entry { name: join(folder, short), kind });
        }
        listed.sort();
        Ok(listed)
    }

    fn reader(&self, name: &str) -> Result<Box<dyn Reader>> {
        Ok(Box::new(reader::LocalReader::open(&self.path(name)?, name, self.direct)?))
    }

    fn writer(&self, name: &str, len: u64, sharing: Sharing) -> Result<Box<dyn Writer>> {
        let path = self.path(name)?;
        let folders =
            create_parents(&path).map_err(|error| Error::io(name, "create the folder of", &error))?;
        Ok(Box::new(writer::LocalWriter::open(&path, name, len, sharing, self.direct, folders)?))
    }

    fn put(&self, name: &str, bytes: &[u8], mode: PutMode) -> Result<()> {
        let path = self.path(name)?;
        let folders =
            create_parents(&path).map_err(|error| Error::io(name, "create the folder of", &error))?;
        put_durably(&path, bytes, mode).map_err(|error| Error::io(name, "put", &error))?;
        folders
            .iter()
            .try_for_each(|folder| sync_folder(folder))
            .map_err(|error| Error::io(name, "sync", &error))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir());
        // What is not listed must not keep an empty folder alive: a killed put, a link to nothing, odd names.
        let deleted = match is_folder {
            true if self.list(name)?.is_empty() => fs::remove_dir_all(&path),
            true => fs::remove_dir(&path),
            false => fs::remove_file(&path),
        };
        deleted.map_err(|error| Error::io(name, "delete", &error))
    }
}

/// Writes beside the target, makes it durable, and only then gives it its name.
fn put_durably(path: &Path, bytes: &[u8], mode: PutMode) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    let number = NEXT.fetch_add(1, Relaxed);
    let temporary = folder.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match mode {
            PutMode::Replace => fs::rename(&temporary, path),
            PutMode::Create => create_from(&temporary, path, bytes),
        }
    })();
    // After a rename there is nothing left to remove.
    let _ = fs::remove_file(&temporary);
    written
}

/// A link never replaces a file; where links are missing, an exclusive creation does nearly the same.
fn create_from(temporary: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::hard_link(temporary, path) {
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
            let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
            file.write_all(bytes)?;
            file.sync_all()
        }
        linked => linked,
    }
}

/// Creates the folders above `path`; those whose entries must be made durable with it, innermost first.
fn create_parents(path: &Path) -> io::Result<Vec<PathBuf>> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut changed = vec![parent.to_path_buf()];
    let mut at = parent;
    while !at.exists() {
        at = match at.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        changed.push(at.to_path_buf());
    }
    fs::create_dir_all(parent)?;
    Ok(changed)
}

/// Makes the names in a folder durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
