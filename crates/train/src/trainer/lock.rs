//! One process at a time in a run's folder.

use crate::error::{Error, Result};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Name of the file in a run's folder.
const LOCK: &str = "LOCK";

/// Held while a run is active. The system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    /// None where the file system has no locks.
    _file: Option<File>,
}

impl Lock {
    /// Refuses a folder that another process has now; makes nothing.
    pub(super) fn check(dir: &Path) -> Result<()> {
        match dir.join(LOCK).is_file() {
            true => Lock::take(dir).map(drop),
            false => Ok(()),
        }
    }

    /// Takes the folder, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Lock> {
        let path = dir.join(LOCK);
        let io = |source| Error::Io { path: path.display().to_string(), source };
        let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut by = String::new();
                // Who holds it is only a help; it may be writing just now.
                let _ = file.read_to_string(&mut by);
                let by = Some(by.trim().to_string()).filter(|by| !by.is_empty());
                let by = by.unwrap_or_else(|| "another process".into());
                return Err(Error::Locked { dir: dir.display().to_string(), by });
            }
            // Some network file systems have none; a run is worth more than its lock.
            Err(TryLockError::Error(_)) => return Ok(Lock { _file: None }),
        }
        // A full disk must not keep a run from continuing, so what is written is written if it can be.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", who()));
        Ok(Lock { _file: Some(file) })
    }
}

/// `process 4711 on host`.
fn who() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = Some(host.trim().to_string()).filter(|host| !host.is_empty());
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_else(|| "this machine".into());
    format!("process {} on {host}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_first_and_may_come_after() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let error = Lock::take(dir.path()).unwrap_err();
        assert!(error.is_usage(), "{error}");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert!(Lock::check(dir.path()).is_err());
        drop(first);
        Lock::check(dir.path()).unwrap();
        Lock::take(dir.path()).unwrap();
    }
}
