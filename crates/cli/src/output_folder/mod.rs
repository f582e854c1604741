//! A folder that appears whole or not at all: prepared beside its place, and moved there at the end.

mod contents;
mod staging;

use crate::failure::Failure;
use anyhow::{Context, Result};
use contents::Contents;
use planaria::store::{Local, Store, StoreExt, local_path};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use staging::{RESULT, Staging};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to do about a target that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Leave it, and refuse.
    Refuse,
    /// Put the new one in its place, if all of it is a checkpoint.
    Replace,
}

/// Where a command writes.
#[derive(Debug)]
pub(crate) enum OutputFolder {
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
    Remote { store: Arc<dyn Store> },
}

impl OutputFolder {
    /// Checks that what is read from `source` may be written to `target` as files of the given names; touches nothing.
    pub(crate) fn check<'a>(
        source: &str,
        target: &str,
        existing: Existing,
        files: impl IntoIterator<Item = &'a str>,
    ) -> Result<OutputFolder> {
        let Some(path) = local_path(target) else {
            let store = planaria::store::open(target)?;
            if !store.list("")?.is_empty() {
                let hint = "choose another place, or empty it first: an object store cannot swap folders";
                return Err(Failure::usage(format!("'{target}' is not empty")).hint(hint).into());
            }
            return Ok(OutputFolder::Remote { store });
        };
        let path = match fs::symlink_metadata(&path) {
            Ok(about) if about.is_symlink() => {
                fs::canonicalize(&path).with_context(|| format!("'{target}' is a link to nothing"))?
            }
            _ => path,
        };
        if local_path(source).is_some_and(|source| overlap(&source, &path)) {
            let message = format!("'{target}' and '{source}' share files");
            return Err(Failure::usage(message).hint("write to a folder beside the source").into());
        }
        let written = files.into_iter().map(str::to_string).collect();
        replaceable(&path, existing, &written)?;
        Ok(OutputFolder::Local { path, existing, written })
    }

    /// Writes through `write`, which gets a store and a folder in it, and makes the result visible.
    pub(crate) fn fill(&self, write: impl FnOnce(&dyn Store, &str) -> Result<()>) -> Result<()> {
        match self {
            OutputFolder::Remote { store } => write(&**store, "").inspect_err(|_| {
                // The place was empty before.
                let _ = store.delete_all("");
            }),
            OutputFolder::Local { path, existing, written } => {
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.with_context(|| format!("'{}' is no name of a folder", path.display()))?;
                let parent = match path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
                    _ => PathBuf::from("."),
                };
                fs::create_dir_all(&parent)
                    .with_context(|| format!("cannot create '{}'", parent.display()))?;
                let mut staging = Staging::beside(&parent, name)?;
                write(&Local::new(staging.path()), RESULT)?;
                publish(&mut staging, path, *existing, written)?;
                fs::File::open(&parent)
                    .and_then(|folder| folder.sync_all())
                    .context("cannot make the new folder durable")
            }
        }
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
    let refused = |what: &str, hint: &str| {
        Err(Failure::usage(format!("'{}' {what}", path.display())).hint(hint.to_string()).into())
    };
    match fs::metadata(path) {
        Err(_) => return Ok(None),
        Ok(about) if !about.is_dir() => return refused("is a file", "name a folder to write"),
        Ok(_) => {}
    }
    let contents = Contents::of(path)?;
    if contents.is_empty() {
        return Ok(None);
    }
    if existing == Existing::Refuse {
        return refused("exists already", "choose another place, or add `--yes` to replace it");
    }
    match contents.unrelated(path, written).as_slice() {
        [] => Ok(Some(contents)),
        others => {
            let named: Vec<String> = others.iter().take(3).map(|name| format!("'{name}'")).collect();
            let more = others.len() - named.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let what = format!("holds more than a checkpoint: {}{more}", named.join(", "));
            refused(&what, "choose another place, or move these away: `--yes` replaces checkpoints only")
        }
    }
}

/// Moves the result to its place. A folder that came there meanwhile is kept.
fn publish(staging: &mut Staging, path: &Path, existing: Existing, written: &BTreeSet<String>) -> Result<()> {
    if replaceable(path, existing, written)?.is_none() {
        // A folder takes the place of an empty one, and of nothing else.
        return fs::rename(staging.result(), path)
            .with_context(|| format!("cannot move the result to '{}'", path.display()));
    }
    staging.begin_replacing()?;
    swap(&staging.result(), path)?;
    // What was there is in our hands now: look again, since it may have changed until the swap.
    match replaceable(&staging.result(), existing, written) {
        Ok(Some(contents)) => {
            let removed = contents.remove(&staging.result());
            removed.with_context(|| format!("cannot remove what '{}' held", path.display()))?;
            staging.end_replacing();
            Ok(())
        }
        Ok(None) => {
            staging.end_replacing();
            Ok(())
        }
        Err(error) => {
            swap(&staging.result(), path)?;
            staging.end_replacing();
            Err(error.context(format!("'{}' changed while its successor was written", path.display())))
        }
    }
}

/// Two folders change places, at once where the file system can.
fn swap(a: &Path, b: &Path) -> Result<()> {
    let failed = || format!("cannot exchange '{}' and '{}'", a.display(), b.display());
    match renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let aside = a.with_file_name("aside");
            fs::rename(b, &aside).with_context(failed)?;
            if let Err(error) = fs::rename(a, b) {
                let _ = fs::rename(&aside, b);
                return Err(error).with_context(failed);
            }
            fs::rename(&aside, a).with_context(failed)
        }
        done => done.map_err(std::io::Error::from).with_context(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        OutputFolder::check("source", target.to_str().unwrap(), existing, [FILE])
    }

    fn refusal(target: &Path, existing: Existing) -> String {
        check(target, existing).map(drop).unwrap_err().to_string()
    }

    fn write(store: &dyn Store, name: &str, text: &[u8]) -> Result<()> {
        Ok(store.write(&planaria::store::join(name, FILE), text)?)
    }

    #[test]
    fn a_failed_write_leaves_nothing_and_keeps_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let fill = |text: &'static str, fail: bool| {
            check(&target, Existing::Replace).unwrap().fill(|store, name| {
                write(store, name, text.as_bytes())?;
                if fail { Err(anyhow::anyhow!("no")) } else { Ok(()) }
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
        assert!(refusal(&target, Existing::Refuse).contains("exists already"));
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
                Ok(())
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
        let mut staging = Staging::beside(folder.path(), "out").unwrap();
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
                    Ok(())
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
            OutputFolder::check(from, to, Existing::Replace, [FILE]).map(drop).unwrap_err().to_string()
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
