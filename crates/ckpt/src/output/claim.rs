//! A folder of an object store, which cannot be prepared elsewhere and moved: a file that one writer alone can create says that
//! it is being written, and what is given up takes away only what was to be written.

use super::refused;
use crate::error::{Obstacle, Result};
use planaria_store::{Error as StoreError, PutMode, Store, StoreExt};
use std::collections::BTreeSet;

/// The file, in the folder.
const CLAIM: &str = ".planaria-claim";

/// The longest name of an owner that is read.
const OWNER: u64 = 1 << 10;

/// Refuses a folder that holds anything.
pub(super) fn check(store: &dyn Store) -> Result<()> {
    let found = store.list("")?;
    if found.iter().any(|entry| entry.name == CLAIM) {
        return Err(claimed(store));
    }
    if found.is_empty() { Ok(()) } else { Err(refused(&store.address(), Obstacle::NotEmpty)) }
}

/// Takes the folder for this process, if it is still empty.
pub(super) fn take(store: &dyn Store) -> Result<()> {
    check(store)?;
    let owner = format!("process {} of {}", std::process::id(), host());
    match store.put(CLAIM, owner.as_bytes(), PutMode::Create) {
        Ok(()) => {}
        Err(StoreError::AlreadyExists { .. }) => return Err(claimed(store)),
        Err(error) => return Err(error.into()),
    }
    // Who looked before the claim was there may have written meanwhile.
    let others = store.list("").map(|found| found.iter().any(|entry| entry.name != CLAIM));
    match others {
        Ok(false) => Ok(()),
        Ok(true) => {
            let _ = store.delete(CLAIM);
            Err(refused(&store.address(), Obstacle::NotEmpty))
        }
        Err(error) => {
            let _ = store.delete(CLAIM);
            Err(error.into())
        }
    }
}

/// Gives the folder back with its result in it.
pub(super) fn release(store: &dyn Store) -> Result<()> {
    Ok(store.delete(CLAIM)?)
}

/// Gives the folder back without a result: files of these names go, which were not there before.
pub(super) fn undo(store: &dyn Store, written: &BTreeSet<String>) {
    // Nobody can be told; what stays is named by the next writer.
    let found = store.walk("").unwrap_or_default();
    for entry in found.iter().filter(|entry| written.contains(&entry.name)) {
        let _ = store.delete(&entry.name);
    }
    let _ = store.delete(CLAIM);
}

fn claimed(store: &dyn Store) -> crate::Error {
    let owner = store.read(CLAIM, OWNER).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let owner = owner.unwrap_or_else(|_| "another process".into());
    refused(&store.address(), Obstacle::Claimed { owner })
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "an unnamed machine".into() } else { name.trim().to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::{OutputFolder, Prepared};
    use super::*;
    use crate::Error;
    use planaria_store::Object;
    use std::sync::Arc;

    fn folder(store: &Object) -> OutputFolder {
        let written = ["model.safetensors", "config.json"].map(String::from).into();
        OutputFolder::Remote { store: Arc::new(store.clone()), written }
    }

    fn names(store: &Object) -> Vec<String> {
        store.walk("").unwrap().into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn of_two_writers_to_an_object_store_one_is_refused_and_told_by_whom() {
        let store = Object::memory();
        let first: Prepared = folder(&store).prepare().unwrap();
        let refused = folder(&store).prepare().unwrap_err().to_string();
        assert!(
            refused.contains(&format!("is being written by process {}", std::process::id())),
            "{refused}"
        );
        store.write("model.safetensors", b"one").unwrap();
        first.publish().unwrap();
        assert_eq!(names(&store), ["model.safetensors"]);
        assert!(folder(&store).prepare().unwrap_err().to_string().contains("is not empty"));
    }

    #[test]
    fn what_is_given_up_takes_only_its_own_files_with_it() {
        let store = Object::memory();
        let given_up: Result<(), Error> = folder(&store).fill(|to, _| {
            to.write("model.safetensors", b"half")?;
            // Somebody who knows of no claims.
            to.write("notes.txt", b"keep me")?;
            Err(Error::Stopped)
        });
        given_up.unwrap_err();
        assert_eq!(names(&store), ["notes.txt"]);
    }
}
