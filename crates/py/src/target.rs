//! Where checkpoints are written: a folder of a store, and the way one takes the place of another.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use planaria::ckpt::{Error, Result};
use planaria::store::{Local, Stoppable, Store, local_path, open};

/// A store that can be told to stop, and a folder in it.
pub(crate) struct Target {
    pub(crate) store: Stoppable<Arc<dyn Store>>,
    pub(crate) folder: String,
}

/// The folder that a path or URL names.
pub(crate) fn target(url: &str, stop: &Arc<AtomicBool>) -> Result<Target> {
    let trimmed = url.trim_end_matches('/');
    if let Some(path) = local_path(trimmed) {
        let (parent, name) = split(&path)?;
        let store: Arc<dyn Store> = Arc::new(Local::new(parent));
        return Ok(Target { store: Stoppable::new(store, stop.clone()), folder: name });
    }
    let refused = || Error::Request { what: format!("'{url}' names no folder of a store") };
    let (parent, name) = trimmed.rsplit_once('/').filter(|(p, _)| !p.ends_with('/')).ok_or_else(refused)?;
    Ok(Target { store: Stoppable::new(open(parent)?, stop.clone()), folder: name.to_string() })
}

fn split(path: &Path) -> Result<(PathBuf, String)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let refused = || Error::Request { what: format!("'{}' is no name of a folder", path.display()) };
    let name = name.ok_or_else(refused)?.to_string();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_path_buf(), name))
}

/// A folder beside a local one, in which its successor is prepared. Dropped, it is removed.
pub(crate) struct Beside {
    pub(crate) path: PathBuf,
    target: PathBuf,
}

impl Beside {
    /// For a folder of the local file system; others cannot exchange folders.
    pub(crate) fn of(url: &str, what: &str) -> Result<Beside> {
        let local = local_path(url.trim_end_matches('/'));
        let refused = || Error::Request { what: format!("'{url}' is no local folder; {what} needs one") };
        let target = local.ok_or_else(refused)?;
        let (parent, name) = split(&target)?;
        let made = fs::create_dir_all(&parent);
        made.map_err(|error| failed("create", &parent, &error))?;
        let path = parent.join(format!(".{name}.{}.planaria", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).map_err(|error| failed("create", &path, &error))?;
        Ok(Beside { path, target })
    }

    /// Puts `ready`, a folder in it, in the place of the target.
    pub(crate) fn publish(&self, ready: &str) -> Result<()> {
        let (from, old) = (self.path.join(ready), self.path.join("old"));
        let there = self.target.exists();
        if there {
            fs::rename(&self.target, &old).map_err(|error| failed("move", &self.target, &error))?;
        }
        if let Err(error) = fs::rename(&from, &self.target) {
            if there {
                let _ = fs::rename(&old, &self.target);
            }
            return Err(failed("move", &self.target, &error));
        }
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn failed(op: &'static str, path: &Path, error: &std::io::Error) -> Error {
    let (name, message) = (path.display().to_string(), error.to_string());
    Error::Store(planaria::store::Error::Io { name, op, kind: error.kind(), message })
}

/// True when a local folder holds anything.
pub(crate) fn is_taken(url: &str) -> bool {
    local_path(url.trim_end_matches('/')).is_some_and(|path| {
        path.is_file() || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
    })
}
