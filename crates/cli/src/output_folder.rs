//! A folder that appears whole or not at all: written beside its place, and moved there at the end.

use crate::failure::Failure;
use anyhow::{Context, Result};
use planaria_ckpt::formats::{OpenOptions, open_url};
use planaria_store::{Local, Store, StoreExt, local_path};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What to do about a target that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Leave it, and refuse.
    Refuse,
    /// Put the new one in its place, if it is a checkpoint.
    Replace,
}

/// Where a command writes.
#[derive(Debug)]
pub(crate) enum OutputFolder {
    /// A folder of the local file system.
    Local { path: PathBuf },
    /// An empty folder of an object store. Nothing is moved there: the files that make it a checkpoint come last.
    Remote { store: Arc<dyn Store> },
}

impl OutputFolder {
    /// Checks that what is read from `source` may be written to `target`; touches nothing.
    pub(crate) fn check(source: &str, target: &str, existing: Existing) -> Result<OutputFolder> {
        let refused = |what: &str, hint: &str| {
            Err(Failure::usage(format!("'{target}' {what}")).hint(hint.to_string()).into())
        };
        let Some(path) = local_path(target) else {
            let store = planaria_store::open(target)?;
            if !store.list("")?.is_empty() {
                let hint = "choose another place, or empty it first: an object store cannot swap folders";
                return refused("is not empty", hint);
            }
            return Ok(OutputFolder::Remote { store });
        };
        let path = match fs::symlink_metadata(&path) {
            Ok(about) if about.is_symlink() => {
                fs::canonicalize(&path).with_context(|| format!("'{target}' is a link to nothing"))?
            }
            _ => path,
        };
        if path.is_file() {
            return refused("is a file", "name a folder to write");
        }
        if local_path(source).is_some_and(|source| overlap(&source, &path)) {
            return refused(&format!("and '{source}' share files"), "write to a folder beside the source");
        }
        let empty = || fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none());
        if !path.exists() || empty() {
            return Ok(OutputFolder::Local { path });
        }
        match existing {
            Existing::Refuse => {
                refused("exists already", "choose another place, or add `--yes` to replace it")
            }
            Existing::Replace if !is_checkpoint(&path) => {
                refused("is not empty and holds no checkpoint", "choose another place, or remove it yourself")
            }
            Existing::Replace => Ok(OutputFolder::Local { path }),
        }
    }

    /// Writes through `write`, which gets a store and a folder in it, and makes the result visible.
    pub(crate) fn fill(&self, write: impl FnOnce(&dyn Store, &str) -> Result<()>) -> Result<()> {
        match self {
            OutputFolder::Remote { store } => write(&**store, "").inspect_err(|_| {
                // The place was empty before.
                let _ = store.delete_all("");
            }),
            OutputFolder::Local { path } => fill_local(path, write),
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

/// Whether this is a checkpoint of any format, sound or not.
fn is_checkpoint(folder: &Path) -> bool {
    let opened = folder.to_str().map(|path| open_url(path, &OpenOptions::default()));
    !matches!(opened, None | Some(Err(planaria_ckpt::Error::UnknownFormat { .. })))
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
    let (_, old) = beside(path, "old")?;
    let remove = |name: &str| match fs::remove_dir_all(parent.join(name)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove '{}'", parent.join(name).display()))
        }
        _ => Ok(()),
    };
    // What a killed run left there.
    remove(&part)?;
    if let Err(error) = write(&store, &part) {
        let _ = remove(&part);
        return Err(error);
    }
    let moved = |from: &Path, to: &Path| {
        fs::rename(from, to)
            .with_context(|| format!("cannot move '{}' to '{}'", from.display(), to.display()))
    };
    remove(&old)?;
    let replaced = path.exists();
    if replaced {
        moved(path, &parent.join(&old))?;
    }
    moved(&parent.join(&part), path)?;
    fs::File::open(&parent)
        .and_then(|folder| folder.sync_all())
        .context("cannot make the new folder durable")?;
    if replaced { remove(&old) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "model.safetensors";

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
            let output = OutputFolder::check("source", target.to_str().unwrap(), Existing::Replace).unwrap();
            output.fill(|store, name| {
                store.write(&planaria_store::join(name, FILE), text.as_bytes())?;
                if fail { Err(anyhow::anyhow!("no")) } else { Ok(()) }
            })
        };
        fill("a", true).unwrap_err();
        assert_eq!(names(folder.path()), [""; 0]);
        fill("b", false).unwrap();
        fill("c", true).unwrap_err();
        assert_eq!(fs::read_to_string(target.join(FILE)).unwrap(), "b");
        fs::create_dir(folder.path().join(".out.part")).unwrap();
        fs::write(folder.path().join(".out.part/left"), "x").unwrap();
        fill("d", false).unwrap();
        assert_eq!((names(folder.path()), names(&target)), (vec!["out".to_string()], vec![FILE.to_string()]));
        assert_eq!(fs::read_to_string(target.join(FILE)).unwrap(), "d");
    }

    #[test]
    fn only_a_checkpoint_is_replaced_and_only_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().to_str().unwrap().to_string();
        let refusal = |target: &str, existing: Existing| {
            OutputFolder::check("source", target, existing).map(drop).unwrap_err().to_string()
        };
        OutputFolder::check("source", &target, Existing::Refuse).unwrap();
        fs::write(folder.path().join("precious"), "x").unwrap();
        assert!(refusal(&target, Existing::Refuse).contains("exists already"));
        assert!(refusal(&target, Existing::Replace).contains("holds no checkpoint"));
        fs::write(folder.path().join(FILE), "x").unwrap();
        OutputFolder::check("source", &target, Existing::Replace).unwrap();
        assert!(refusal(&format!("{target}/precious"), Existing::Replace).contains("is a file"));
    }

    #[test]
    fn what_is_read_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (models, source) = (folder.path().to_path_buf(), folder.path().join("a"));
        fs::create_dir(&source).unwrap();
        fs::write(source.join(FILE), "x").unwrap();
        std::os::unix::fs::symlink(&source, models.join("link")).unwrap();
        let source = source.to_str().unwrap();
        for target in [source.to_string(), format!("file://{source}"), format!("{source}/../link")] {
            let refused = OutputFolder::check(source, &target, Existing::Replace).unwrap_err().to_string();
            assert!(refused.contains("share files"), "{refused}");
        }
        OutputFolder::check(source, models.to_str().unwrap(), Existing::Replace).unwrap_err();
        OutputFolder::check(&format!("{source}/{FILE}"), source, Existing::Replace).unwrap_err();
    }

    #[test]
    fn a_link_in_an_old_folder_is_removed_and_what_it_points_to_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (target, keep) = (folder.path().join("out"), folder.path().join("keep"));
        fs::create_dir(&target).unwrap();
        fs::create_dir(&keep).unwrap();
        fs::write(keep.join("f"), "x").unwrap();
        fs::write(target.join(FILE), "x").unwrap();
        std::os::unix::fs::symlink(&keep, target.join("data")).unwrap();
        std::os::unix::fs::symlink("nowhere", target.join("dangling")).unwrap();
        let output = OutputFolder::check("source", target.to_str().unwrap(), Existing::Replace).unwrap();
        output.fill(|store, name| Ok(store.write(&planaria_store::join(name, FILE), b"new")?)).unwrap();
        assert_eq!(
            (names(folder.path()), names(&target)),
            (vec!["keep".into(), "out".into()], vec![FILE.into()])
        );
        assert_eq!(fs::read_to_string(keep.join("f")).unwrap(), "x");
    }
}
