//! A folder of our own beside the target, in which a result is prepared. It has a name nobody else has, and a lock that
//! tells the living from the dead: only what a dead process of ours left is ever taken away.

use super::failed;
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process;

/// The file that says whose folder it is. Its owner holds a lock on it for as long as it lives.
const OWNER: &str = "owner";

/// First line of [`OWNER`]: without it a folder is not ours.
const MARK: &str = "planaria: a result in preparation, removed when its process has ended";

/// The result, under the name it has until it is published.
pub(super) const RESULT: &str = "result";

/// Present from the moment before a checkpoint is replaced: what lies in the folder may be the old one.
const REPLACING: &str = "replacing";

/// Before the identity of the work, in a line of [`OWNER`].
const WORK: &str = "work ";

/// Ending of the folder's name.
const ENDING: &str = ".planaria";

/// Names tried before giving up; more than one is needed only if clocks of two namespaces share process numbers.
const TRIES: u32 = 100;

/// A result in preparation. Dropped, it is removed.
#[derive(Debug)]
pub(super) struct Staging {
    path: PathBuf,
    /// Locked. The lock ends with the process, however it ends.
    _owner: File,
    keep: bool,
}

impl Staging {
    /// Makes one beside `target`, in `parent`, and removes those that dead processes left for the same target; one with the
    /// identity that is given is taken over.
    pub(super) fn beside(parent: &Path, name: &str, identity: Option<&str>) -> Result<Staging> {
        let left = identity
            .and_then(|identity| candidates(parent, name).iter().find_map(|at| take_over(at, identity)));
        remove_stale(parent, name);
        if let Some(left) = left {
            return Ok(left);
        }
        for number in 0..TRIES {
            let path = parent.join(format!(".{name}.{}-{number}{ENDING}", process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {
                    if let Some(staging) = Staging::own(path, identity)? {
                        return Ok(staging);
                    }
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("create", &path)(error)),
            }
        }
        let what =
            format!("'{}' holds {TRIES} unfinished results for '{name}'; remove them", parent.display());
        Err(Error::Request { what })
    }

    /// Marks and locks a folder just made; `None` if another process took it for an abandoned one meanwhile.
    fn own(path: PathBuf, identity: Option<&str>) -> Result<Option<Staging>> {
        let mark = path.join(OWNER);
        let make = || -> io::Result<File> {
            let mut owner = File::create_new(&mark)?;
            owner.lock()?;
            let work = identity.map(|identity| format!("{WORK}{identity}\n")).unwrap_or_default();
            write!(owner, "{MARK}\nprocess {}\n{work}", process::id())?;
            let (ours, there) = (owner.metadata()?, fs::metadata(&mark)?);
            match (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
                true => Ok(owner),
                false => Err(ErrorKind::NotFound.into()),
            }
        };
        match make() {
            Ok(owner) => Ok(Some(Staging { path, _owner: owner, keep: false })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => {
                let _ = fs::remove_dir_all(&path);
                Err(failed("lock", &mark)(error))
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the result is prepared.
    pub(super) fn result(&self) -> PathBuf {
        self.path.join(RESULT)
    }

    /// From now on this folder may hold what stood at the target: if the process dies, nobody removes it.
    pub(super) fn begin_replacing(&mut self) -> Result<()> {
        let mark = self.path.join(REPLACING);
        File::create(&mark).map_err(failed("write", &mark))?;
        self.keep = true;
        Ok(())
    }

    /// Ends without removing anything: a later process takes it over, or removes it.
    pub(super) fn leave(mut self) {
        self.keep = true;
    }

    /// What this folder holds is ours again.
    pub(super) fn end_replacing(&mut self) {
        self.keep = false;
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes what processes that are gone prepared for this target.
fn remove_stale(parent: &Path, name: &str) {
    candidates(parent, name).iter().for_each(|folder| remove_if_dead(folder));
}

/// Takes over what a dead process prepared, if it is the same work.
fn take_over(folder: &Path, identity: &str) -> Option<Staging> {
    let mut owner = File::open(folder.join(OWNER)).ok()?;
    let mut text = String::new();
    owner.try_lock().ok()?;
    owner.read_to_string(&mut text).ok()?;
    // It may have been removed by another run between the two calls.
    let (held, there) = (owner.metadata().ok()?, fs::metadata(folder.join(OWNER)).ok()?);
    if (held.dev(), held.ino()) != (there.dev(), there.ino()) {
        return None;
    }
    let same = text.lines().any(|line| line.strip_prefix(WORK) == Some(identity));
    let ours = text.lines().next() == Some(MARK) && same && !folder.join(REPLACING).exists();
    ours.then(|| Staging { path: folder.to_path_buf(), _owner: owner, keep: false })
}

/// Folders in which results for this target were prepared, by the dead or the living.
fn candidates(parent: &Path, name: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let begins = format!(".{name}.");
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let Some(middle) = found.to_str().and_then(|found| found.strip_prefix(&begins)?.strip_suffix(ENDING))
        else {
            continue;
        };
        let numbers = middle.split_once('-').is_some_and(|(process, number)| {
            [process, number]
                .iter()
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
        });
        if numbers && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            all.push(entry.path());
        }
    }
    all
}

fn remove_if_dead(folder: &Path) {
    let owner = folder.join(OWNER);
    // Held while removing, so that two runs that come at once do not both try.
    let Ok(mut lock) = File::open(&owner) else {
        // Killed before the mark was made; whatever is not empty stays.
        let _ = fs::remove_dir(folder);
        return;
    };
    let mut text = String::new();
    if lock.try_lock().is_err() || lock.read_to_string(&mut text).is_err() {
        return;
    }
    if text.is_empty() && fs::read_dir(folder).is_ok_and(|entries| entries.count() == 1) {
        // Killed before the mark was written; nothing is prepared in an unmarked folder.
        let _ = fs::remove_file(&owner).and_then(|()| fs::remove_dir(folder));
    } else if text.lines().next() == Some(MARK) && !folder.join(REPLACING).exists() {
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_process_of_ours_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let living = Staging::beside(at, "out", None).unwrap();
        // Somebody's folders, with names much like ours.
        for name in [".out.part", ".out.old", ".out.7-0.planaria", ".out.x.planaria"] {
            fs::create_dir(at.join(name)).unwrap();
            fs::write(at.join(name).join("precious"), "x").unwrap();
        }
        let dead = |name: &str| {
            fs::create_dir(at.join(name)).unwrap();
            fs::write(at.join(name).join(OWNER), format!("{MARK}\nprocess 1\n")).unwrap();
        };
        dead(".out.8-0.planaria");
        dead(".other.8-0.planaria");
        dead(".out.9-0.planaria");
        fs::write(at.join(".out.9-0.planaria").join(REPLACING), "").unwrap();
        // Killed before the mark was made, and before it was written.
        fs::create_dir(at.join(".out.10-0.planaria")).unwrap();
        fs::create_dir(at.join(".out.11-0.planaria")).unwrap();
        fs::write(at.join(".out.11-0.planaria").join(OWNER), "").unwrap();
        let next = Staging::beside(at, "out", None).unwrap();
        for name in [".out.8-0.planaria", ".out.10-0.planaria", ".out.11-0.planaria"] {
            assert!(!at.join(name).exists(), "left by a dead process: {name}");
        }
        for name in [
            ".out.part",
            ".out.old",
            ".out.7-0.planaria",
            ".out.x.planaria",
            ".other.8-0.planaria",
            ".out.9-0.planaria",
        ] {
            assert!(at.join(name).exists(), "{name}");
        }
        assert!(living.path().exists() && next.path().exists() && living.path() != next.path());
        let path = next.path().to_path_buf();
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn the_same_work_is_taken_over_and_other_work_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let first = Staging::beside(at, "out", Some("a")).unwrap();
        fs::write(first.path().join("half"), "x").unwrap();
        let beside = Staging::beside(at, "out", Some("a")).unwrap();
        assert_ne!(beside.path(), first.path(), "its process lives");
        drop(beside);
        let path = first.path().to_path_buf();
        first.leave();
        let again = Staging::beside(at, "out", Some("a")).unwrap();
        assert!(again.path() == path && path.join("half").exists());
        again.leave();
        let other = Staging::beside(at, "out", Some("b")).unwrap();
        assert!(!path.join("half").exists() && other.path().join(OWNER).exists());
    }
}
