//! Files that a verb writes: what is there is replaced only when that was asked for, however late it came, and never by half a file.

use crate::failure::Failure;
use anyhow::{Context, Error, Result};
use std::fs::{self, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;

/// What may be done with a file that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It stays; `--yes` would replace it.
    Refuse,
    /// It stays.
    Keep,
    /// It is replaced: `--yes`.
    Replace,
}

impl Existing {
    /// From the option `--yes`.
    pub(crate) fn from_yes(yes: bool) -> Existing {
        if yes { Existing::Replace } else { Existing::Refuse }
    }
}

/// Refuses a file that is there, before work is done for it.
pub(crate) fn check(path: &Path, existing: Existing) -> Result<()> {
    match existing {
        Existing::Replace => Ok(()),
        _ if fs::symlink_metadata(path).is_ok() => Err(occupied(path, existing)),
        _ => Ok(()),
    }
}

/// Refuses to write over a file that is read, also where `--yes` was given.
pub(crate) fn apart<'a>(path: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let Ok(there) = fs::canonicalize(path) else { return Ok(()) };
    let is_read = |input: &Path| fs::canonicalize(input).is_ok_and(|input| input == there);
    match inputs.into_iter().any(is_read) {
        false => Ok(()),
        true => {
            let message = format!("'{}' is what this command reads", path.display());
            Err(Failure::usage(message).hint("choose another name").into())
        }
    }
}

/// Writes a file.
pub(crate) fn write(path: &Path, existing: Existing, bytes: &[u8]) -> Result<()> {
    let failed = || format!("cannot write '{}'", path.display());
    let is_special = fs::metadata(path).is_ok_and(|about| !about.is_file());
    match existing {
        Existing::Refuse | Existing::Keep => {
            let made = OpenOptions::new().write(true).create_new(true).open(path);
            let mut file = match made {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    return Err(occupied(path, existing));
                }
                made => made.with_context(failed)?,
            };
            file.write_all(bytes).with_context(failed)
        }
        // A pipe or a device takes what it is given.
        Existing::Replace if is_special => fs::write(path, bytes).with_context(failed),
        Existing::Replace => {
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let mut beside = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
            beside.write_all(bytes).with_context(failed)?;
            beside.persist(path).map(drop).with_context(failed)
        }
    }
}

/// Writes a file one byte after the other, under another name until it is whole.
pub(crate) fn stream(
    path: &Path,
    existing: Existing,
    work: &mut dyn FnMut(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let failed = || format!("cannot write '{}'", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut beside = BufWriter::new(tempfile::NamedTempFile::new_in(folder).with_context(failed)?);
    work(&mut beside)?;
    let file = beside.into_inner().map_err(|error| error.into_error()).with_context(failed)?;
    let (_, at) = file.keep().with_context(failed)?;
    publish(&at, path, existing)
}

/// Moves a finished file to its place.
pub(crate) fn publish(from: &Path, path: &Path, existing: Existing) -> Result<()> {
    let failed = || format!("cannot write '{}'", path.display());
    if existing == Existing::Replace {
        return fs::rename(from, path).with_context(failed);
    }
    match fs::hard_link(from, path) {
        Ok(()) => fs::remove_file(from).with_context(failed),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(from).with_context(failed)?;
            Err(occupied(path, existing))
        }
        // A file system without links.
        Err(_) => fs::rename(from, path).with_context(failed),
    }
}

fn occupied(path: &Path, existing: Existing) -> Error {
    let hint = if existing == Existing::Keep {
        "choose another name"
    } else {
        "choose another name, or add `--yes`"
    };
    Failure::usage(format!("'{}' already exists", path.display())).hint(hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let (read, link) = (folder.path().join("read"), folder.path().join("link"));
        fs::write(&read, "theirs").unwrap();
        std::os::unix::fs::symlink(&read, &link).unwrap();
        let roundabout = folder.path().join("../").join(folder.path().file_name().unwrap()).join("read");
        for output in [&read, &link, &roundabout] {
            let error = apart(output, [read.as_path()]).unwrap_err().to_string();
            assert!(error.contains("is what this command reads"), "{error}");
        }
        apart(&folder.path().join("new"), [read.as_path()]).unwrap();
        apart(&read, [folder.path()]).unwrap();
    }

    #[test]
    fn what_came_meanwhile_is_kept_unless_it_may_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, from) = (folder.path().join("a"), folder.path().join("b"));
        check(&path, Existing::Refuse).unwrap();
        fs::write(&path, "theirs").unwrap();
        fs::write(&from, "ours").unwrap();
        assert!(write(&path, Existing::Refuse, b"ours").unwrap_err().to_string().contains("already exists"));
        assert!(publish(&from, &path, Existing::Refuse).unwrap_err().to_string().contains("already exists"));
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        write(&path, Existing::Replace, b"ours").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        let half = stream(&folder.path().join("c"), Existing::Keep, &mut |out| {
            out.write_all(b"half")?;
            anyhow::bail!("no more")
        });
        assert!(half.unwrap_err().to_string().contains("no more"));
        let late = stream(&path, Existing::Keep, &mut |out| Ok(out.write_all(b"late")?));
        assert!(late.unwrap_err().to_string().contains("already exists"));
        assert_eq!(fs::read(&path).unwrap(), b"ours");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
