//! A folder that appears whole or not at all: written beside its place, and moved there at the end.

use crate::checkpoint::is_url;
use crate::failure::Failure;
use anyhow::{Context, Result};
use planaria_store::{Local, Store, StoreExt};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to do about a target that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Leave it, and refuse.
    Refuse,
    /// Put the new one in its place.
    Replace,
}

/// Where a command writes.
#[derive(Debug)]
pub(crate) enum OutputFolder {
    /// A folder of the local file system.
    Local { path: PathBuf },
    /// A folder of an object store, and whether what is there goes first. There is no moving there: the files that make it a checkpoint come last.
    Remote { store: Arc<dyn Store>, existing: Existing },
}

impl OutputFolder {
    /// Checks that the target may be written; touches nothing.
    pub(crate) fn check(target: &str, existing: Existing) -> Result<OutputFolder> {
        let taken = |what: &str| {
            let hint = "choose another place, or add `--yes` to replace it";
            Err(Failure::usage(format!("'{target}' {what}")).hint(hint).into())
        };
        if is_url(target) {
            let store = planaria_store::open(target)?;
            if existing == Existing::Refuse && !store.list("")?.is_empty() {
                return taken("is not empty");
            }
            return Ok(OutputFolder::Remote { store, existing });
        }
        let path = PathBuf::from(target.trim_end_matches('/'));
        if path.is_file() {
            return Err(Failure::usage(format!("'{target}' is a file"))
                .hint("name a folder to write")
                .into());
        }
        let empty = || fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none());
        if path.exists() && existing == Existing::Refuse && !empty() {
            return taken("exists already");
        }
        Ok(OutputFolder::Local { path })
    }

    /// Writes through `write`, which gets a store and a folder in it, and makes the result visible.
    pub(crate) fn fill(&self, write: impl FnOnce(&dyn Store, &str) -> Result<()>) -> Result<()> {
        match self {
            OutputFolder::Remote { store, existing } => {
                if *existing == Existing::Replace {
                    store.delete_all("")?;
                }
                write(&**store, "")
            }
            OutputFolder::Local { path } => fill_local(path, write),
        }
    }
}

/// The name under which a folder is written, beside its place.
fn beside(path: &Path, ending: &str) -> Result<(PathBuf, String)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("'{}' is no name of a folder", path.display()))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    Ok((parent, format!(".{name}.{ending}")))
}

fn fill_local(path: &Path, write: impl FnOnce(&dyn Store, &str) -> Result<()>) -> Result<()> {
    let (parent, part) = beside(path, "part")?;
    fs::create_dir_all(&parent).with_context(|| format!("cannot create '{}'", parent.display()))?;
    let store = Local::new(&parent);
    // What a killed run left there.
    store.delete_all(&part)?;
    if let Err(error) = write(&store, &part) {
        let _ = store.delete_all(&part);
        return Err(error);
    }
    let (_, old) = beside(path, "old")?;
    let moved = |from: &Path, to: &Path| {
        fs::rename(from, to)
            .with_context(|| format!("cannot move '{}' to '{}'", from.display(), to.display()))
    };
    store.delete_all(&old)?;
    let replaced = path.exists();
    if replaced {
        moved(path, &parent.join(&old))?;
    }
    moved(&parent.join(&part), path)?;
    fs::File::open(&parent)
        .and_then(|folder| folder.sync_all())
        .context("cannot make the new folder durable")?;
    if replaced {
        store.delete_all(&old)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_nothing_and_keeps_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let fill = |text: &'static str, fail: bool| {
            let output = OutputFolder::check(target.to_str().unwrap(), Existing::Replace).unwrap();
            output.fill(|store, name| {
                store.write(&planaria_store::join(name, "f"), text.as_bytes())?;
                if fail { Err(anyhow::anyhow!("no")) } else { Ok(()) }
            })
        };
        fill("a", true).unwrap_err();
        assert_eq!(names(folder.path()), [""; 0]);
        fill("b", false).unwrap();
        fill("c", true).unwrap_err();
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "b");
        fs::create_dir(folder.path().join(".out.part")).unwrap();
        fs::write(folder.path().join(".out.part/left"), "x").unwrap();
        fill("d", false).unwrap();
        assert_eq!((names(folder.path()), names(&target)), (vec!["out".to_string()], vec!["f".to_string()]));
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "d");
    }

    #[test]
    fn what_is_there_is_not_replaced_unless_asked() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().to_str().unwrap().to_string();
        OutputFolder::check(&target, Existing::Refuse).unwrap();
        fs::write(folder.path().join("f"), "x").unwrap();
        assert!(
            OutputFolder::check(&target, Existing::Refuse)
                .unwrap_err()
                .to_string()
                .contains("exists already")
        );
        OutputFolder::check(&target, Existing::Replace).unwrap();
        assert!(OutputFolder::check(&format!("{target}/f"), Existing::Replace).is_err());
    }
}
