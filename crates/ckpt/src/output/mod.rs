//! A folder that appears whole or not at all: prepared beside its place, and moved there at the end.

mod claim;
mod contents;
mod staging;

use crate::error::{Error, Obstacle, Result};
use contents::Contents;
use planaria_store::{Local, Store, local_path};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use staging::{RESULT, Staging};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to do about a target that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Leave it, and refuse.
    #[default]
    Refuse,
    /// Put the new one in its place, if all of it is a checkpoint.
    Replace,
}

/// A place that may be written.
#[derive(Clone, Debug)]
pub enum OutputFolder {
    /// A folder of the local file system.
    Local {
        /// Its place.
        path: PathBuf,
        /// What may be done with what stands there.
        existing: Existing,
        /// Names of the files that will be written.
        written: BTreeSet<String>,
    },
    /// An empty folder of an object store. Nothing is moved there: the files that make it a checkpoint come last.
    Remote {
        /// The folder.
        store: Arc<dyn Store>,
        /// Names of the files that will be written.
        written: BTreeSet<String>,
    },
}

impl OutputFolder {
    /// Checks that what is read from `sources` may be written to `target` as files of the given names; touches nothing.
    pub fn check<'a>(
        sources: impl IntoIterator<Item = &'a str>,
        target: &str,
        existing: Existing,
        files: impl IntoIterator<Item = &'a str>,
    ) -> Result<OutputFolder> {
        let written = files.into_iter().map(str::to_string).collect();
        let Some(path) = local_path(target) else {
            let store = planaria_store::open(target)?;
            claim::check(&*store)?;
            return Ok(OutputFolder::Remote { store, written });
        };
        let path = match fs::symlink_metadata(&path) {
            Ok(about) if about.is_symlink() => {
                fs::canonicalize(&path).map_err(|_| refused(target, Obstacle::Link))?
            }
            _ => path,
        };
        for source in sources {
            if local_path(source).is_some_and(|source| overlap(&source, &path)) {
                return Err(refused(target, Obstacle::Read { input: source.to_string() }));
            }
        }
        replaceable(&path, existing, &written)?;
        Ok(OutputFolder::Local { path, existing, written })
    }

    /// The place, for messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            OutputFolder::Local { path, .. } => path.display().to_string(),
            OutputFolder::Remote { store, .. } => store.address(),
        }
    }

    /// Begins a result; nobody sees it before it is published.
    pub fn prepare(&self) -> Result<Prepared> {
        self.prepare_as(None)
    }

    /// The same; where an identity is given, what a dead process has prepared under it is taken over.
    pub(crate) fn prepare_as(&self, identity: Option<&str>) -> Result<Prepared> {
        let path = match self {
            OutputFolder::Local { path, .. } => path,
            OutputFolder::Remote { store, .. } => {
                claim::take(&**store)?;
                return Ok(Prepared(Some((self.clone(), None))));
            }
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let shown = path.display().to_string();
        let name = name.ok_or_else(|| refused(&shown, Obstacle::Name))?;
        let parent = parent_of(path);
        fs::create_dir_all(&parent).map_err(failed("create", &parent))?;
        Ok(Prepared(Some((self.clone(), Some(Staging::beside(&parent, name, identity)?)))))
    }

    /// Writes through `write`, which gets a store and a folder in it, and makes the result visible.
    pub fn fill<E: From<Error>>(
        &self,
        write: impl FnOnce(&dyn Store, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        let prepared = self.prepare()?;
        write(&*prepared.store(), prepared.folder())?;
        Ok(prepared.publish()?)
    }
}

/// A result on its way. Dropped before it is published, it is removed.
#[derive(Debug)]
pub struct Prepared(Option<(OutputFolder, Option<Staging>)>);

impl Prepared {
    /// The folder of a local store that becomes the result.
    pub(crate) const RESULT: &'static str = RESULT;

    /// Leaves what is there to a later process.
    pub(crate) fn leave(mut self) {
        if let Some((_, Some(staging))) = self.0.take() {
            staging.leave();
        }
    }

    /// Where it is written.
    pub fn store(&self) -> Arc<dyn Store> {
        match &self.0 {
            Some((_, Some(staging))) => Arc::new(Local::new(staging.path())),
            Some((OutputFolder::Remote { store, .. }, None)) => store.clone(),
            // A local result has a folder beside its place, and what is published is gone.
            _ => Arc::new(Local::new("")),
        }
    }

    /// The path of the store for other processes of this machine or of its file systems; none for object stores.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.0.as_ref()?.1.as_ref().map(Staging::path)
    }

    /// The folder of the store that becomes the result.
    pub fn folder(&self) -> &'static str {
        if self.path().is_some() { RESULT } else { "" }
    }

    /// Puts the result in its place.
    pub fn publish(mut self) -> Result<()> {
        let (path, existing, written, mut staging) = match self.0.take() {
            Some((OutputFolder::Local { path, existing, written }, Some(staging))) => {
                (path, existing, written, staging)
            }
            Some((OutputFolder::Remote { store, .. }, _)) => return claim::release(&*store),
            _ => return Ok(()),
        };
        publish(&mut staging, &path, existing, &written)?;
        let parent = parent_of(&path);
        fs::File::open(&parent).and_then(|folder| folder.sync_all()).map_err(failed("sync", &parent))
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some((OutputFolder::Remote { store, written }, _)) = &self.0 {
            claim::undo(&**store, written);
        }
    }
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

fn refused(target: &str, why: Obstacle) -> Error {
    Error::Occupied { target: target.to_string(), why }
}

/// What an operation on a path says when it fails.
fn failed(op: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    let name = path.display().to_string();
    move |error| {
        let (name, kind, message) = (name.clone(), error.kind(), error.to_string());
        Error::Store(planaria_store::Error::Io { name, op, kind, message })
    }
}

/// Whether replacing `target` would touch what is read: one is the other, or lies in it.
fn overlap(source: &Path, target: &Path) -> bool {
    match (fs::canonicalize(source), fs::canonicalize(target)) {
        (Ok(source), Ok(target)) => source.starts_with(&target) || target.starts_with(&source),
        _ => false,
    }
}

/// What stands at `path`, if it may make room; `None` where nothing does.
fn replaceable(path: &Path, existing: Existing, written: &BTreeSet<String>) -> Result<Option<Contents>> {
    let refuse = |why| Err(refused(&path.display().to_string(), why));
    match fs::metadata(path) {
        Err(_) => return Ok(None),
        Ok(about) if !about.is_dir() => return refuse(Obstacle::File),
        Ok(_) => {}
    }
    let contents = Contents::of(path)?;
    if contents.is_empty() {
        return Ok(None);
    }
    if existing == Existing::Refuse {
        return refuse(Obstacle::Exists);
    }
    match contents.unrelated(path, written) {
        others if others.is_empty() => Ok(Some(contents)),
        others => refuse(Obstacle::More { others }),
    }
}

/// Moves the result to its place. A folder that came there meanwhile is kept.
fn publish(staging: &mut Staging, path: &Path, existing: Existing, written: &BTreeSet<String>) -> Result<()> {
    if replaceable(path, existing, written)?.is_none() {
        // A folder takes the place of an empty one, and of nothing else.
        return fs::rename(staging.result(), path).map_err(failed("move the result to", path));
    }
    staging.begin_replacing()?;
    swap(&staging.result(), path)?;
    // What was there is in our hands now: look again, since it may have changed until the swap.
    match replaceable(&staging.result(), existing, written) {
        Ok(Some(contents)) => {
            contents.remove(&staging.result()).map_err(failed("remove what stood at", path))?;
            staging.end_replacing();
            Ok(())
        }
        Ok(None) => {
            staging.end_replacing();
            Ok(())
        }
        Err(_) => {
            swap(&staging.result(), path)?;
            staging.end_replacing();
            Err(refused(&path.display().to_string(), Obstacle::Changed))
        }
    }
}

/// Two folders change places, at once where the file system can.
fn swap(a: &Path, b: &Path) -> Result<()> {
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let aside = a.with_file_name("aside");
            fs::rename(b, &aside).map_err(failed("move", b))?;
            if let Err(error) = fs::rename(a, b) {
                let _ = fs::rename(&aside, b);
                return Err(failed("move", a)(error));
            }
            fs::rename(&aside, a).map_err(failed("move", &aside))
        }
        done => done.map_err(|error| failed("exchange", b)(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_store::StoreExt;

    const FILE: &str = "model.safetensors";

    /// A file of no tensors that the crate reads.
    const SOUND: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

    fn names(folder: &Path) -> Vec<String> {
        let entries =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    fn check(target: &Path, existing: Existing) -> Result<OutputFolder> {
        OutputFolder::check(["source"], target.to_str().unwrap(), existing, [FILE])
    }

    fn refusal(target: &Path, existing: Existing) -> String {
        check(target, existing).map(drop).unwrap_err().to_string()
    }

    fn write(store: &dyn Store, name: &str, text: &[u8]) -> Result<()> {
        Ok(store.write(&planaria_store::join(name, FILE), text)?)
    }

    #[test]
    fn a_failed_write_leaves_nothing_and_keeps_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let fill = |text: &'static str, fail: bool| {
            check(&target, Existing::Replace).unwrap().fill(|store, name| {
                write(store, name, text.as_bytes())?;
                if fail { Err(Error::Stopped) } else { Ok(()) }
            })
        };
        fill("a", true).unwrap_err();
        assert_eq!(names(folder.path()), [""; 0]);
        fill("b", false).unwrap();
        fill("c", true).unwrap_err();
        assert_eq!(fs::read_to_string(target.join(FILE)).unwrap(), "b");
        fill("d", false).unwrap();
        assert_eq!((names(folder.path()), names(&target)), (vec!["out".to_string()], vec![FILE.to_string()]));
        assert_eq!(fs::read_to_string(target.join(FILE)).unwrap(), "d");
    }

    #[test]
    fn only_a_checkpoint_is_replaced_and_only_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        fs::create_dir(&target).unwrap();
        check(&target, Existing::Refuse).unwrap();
        fs::write(target.join(FILE), SOUND).unwrap();
        assert!(refusal(&target, Existing::Refuse).contains("already exists"));
        check(&target, Existing::Replace).unwrap();
        fs::create_dir_all(target.join("src/empty")).unwrap();
        assert!(refusal(&target, Existing::Replace).contains("more than a checkpoint: 'src/empty/'"));
        for name in ["a", "b", "c"] {
            fs::write(target.join("src").join(name), "x").unwrap();
        }
        let refused = refusal(&target, Existing::Replace);
        assert!(refused.ends_with("'src/a', 'src/b', 'src/c' and 1 more"), "{refused}");
        assert!(refusal(&target.join(FILE), Existing::Replace).contains("is a file"));
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        for name in ["config.json", "vocab.txt"] {
            fs::write(other.join(name), "{}").unwrap();
        }
        assert!(refusal(&other, Existing::Replace).contains("'config.json', 'vocab.txt'"), "no checkpoint");
        fs::write(other.join(FILE), SOUND).unwrap();
        check(&other, Existing::Replace).unwrap();
    }

    #[test]
    fn what_comes_while_a_result_is_written_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        for existing in [Existing::Refuse, Existing::Replace] {
            let output = check(&target, existing).unwrap();
            let filled = output.fill(|store, name| {
                write(store, name, b"new")?;
                fs::create_dir_all(&target).unwrap();
                fs::write(target.join("thesis.txt"), "x").unwrap();
                Ok::<_, Error>(())
            });
            assert!(filled.is_err(), "{existing:?}");
            assert_eq!(
                (names(folder.path()), names(&target)),
                (vec!["out".into()], vec!["thesis.txt".into()])
            );
            fs::remove_dir_all(&target).unwrap();
        }
    }

    #[test]
    fn what_changes_before_the_swap_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("thesis.txt"), "x").unwrap();
        let mut staging = Staging::beside(folder.path(), "out", None).unwrap();
        fs::create_dir(staging.result()).unwrap();
        fs::write(staging.result().join(FILE), "new").unwrap();
        let written = BTreeSet::from([FILE.to_string()]);
        publish(&mut staging, &target, Existing::Replace, &written).unwrap_err();
        swap(&staging.result(), &target).unwrap();
        assert_eq!(names(&target), [FILE]);
        swap(&staging.result(), &target).unwrap();
        drop(staging);
        assert_eq!((names(folder.path()), names(&target)), (vec!["out".into()], vec!["thesis.txt".into()]));
    }

    #[test]
    fn of_two_writers_one_wins_and_nothing_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        for existing in [Existing::Refuse, Existing::Replace] {
            let barrier = std::sync::Barrier::new(2);
            let run = |text: &'static str| {
                let output = check(&target, existing).unwrap();
                barrier.wait();
                output.fill(|store, name| {
                    write(store, name, text.as_bytes())?;
                    barrier.wait();
                    Ok::<_, Error>(())
                })
            };
            let (a, b) = std::thread::scope(|scope| {
                let other = scope.spawn(|| run("b"));
                (run("a"), other.join().unwrap())
            });
            match existing {
                Existing::Refuse => assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}"),
                Existing::Replace => assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}"),
            }
            let found = fs::read_to_string(target.join(FILE)).unwrap();
            assert!(found == "a" && a.is_ok() || found == "b" && b.is_ok(), "{found} {a:?} {b:?}");
            assert_eq!(names(folder.path()), ["out"]);
            fs::remove_dir_all(&target).unwrap();
        }
    }

    #[test]
    fn what_is_read_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (models, source) = (folder.path().to_path_buf(), folder.path().join("a"));
        fs::create_dir(&source).unwrap();
        fs::write(source.join(FILE), SOUND).unwrap();
        std::os::unix::fs::symlink(&source, models.join("link")).unwrap();
        let source = source.to_str().unwrap();
        let check = |from: &str, to: &str| {
            OutputFolder::check([from], to, Existing::Replace, [FILE]).map(drop).unwrap_err().to_string()
        };
        for target in [source.to_string(), format!("file://{source}"), format!("{source}/../link")] {
            let refused = check(source, &target);
            assert!(refused.contains("share files"), "{refused}");
        }
        check(source, models.to_str().unwrap());
        check(&format!("{source}/{FILE}"), source);
    }

    #[test]
    fn a_link_in_an_old_folder_is_removed_and_what_it_points_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (target, keep) = (folder.path().join("out"), folder.path().join("keep"));
        fs::create_dir(&target).unwrap();
        fs::write(&keep, SOUND).unwrap();
        std::os::unix::fs::symlink(&keep, target.join(FILE)).unwrap();
        let output = check(&target, Existing::Replace).unwrap();
        output.fill(|store, name| write(store, name, b"new")).unwrap();
        assert_eq!(
            (names(folder.path()), names(&target)),
            (vec!["keep".into(), "out".into()], vec![FILE.into()])
        );
        assert_eq!(
            (fs::read(&keep).unwrap(), fs::read(target.join(FILE)).unwrap()),
            (SOUND.to_vec(), b"new".to_vec())
        );
    }
}
