//! Names of files in a store: relative, `/` between parts, nothing that could lead out.

use crate::error::{Error, Result};

/// Longest part of a name that common file systems hold.
const PART_BYTES: usize = 255;
/// Longest whole name; object stores allow 1024 bytes.
const NAME_BYTES: usize = 1024;

/// Refuses names that are absolute, contain `.` or `..` parts, empty parts, control characters or
/// backslashes, or are too long. Names from untrusted files pass through here.
pub fn check_name(name: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_BYTES {
        "it is longer than 1024 bytes"
    } else if name.starts_with('/') {
        "it is absolute"
    } else if name.split('/').any(|part| part == "..") {
        "it leads out of the folder"
    } else if name.split('/').any(|part| part.is_empty() || part == ".") {
        "it has an empty part"
    } else if name.split('/').any(|part| part.len() > PART_BYTES) {
        "a part is longer than 255 bytes"
    } else if name.chars().any(|c| c.is_control() || c == '\\') {
        "it has a control character or a backslash"
    } else if name.len() > 1 && name.as_bytes()[1] == b':' && name.as_bytes()[0].is_ascii_alphabetic() {
        "it starts with a drive letter"
    } else {
        return Ok(());
    };
    Err(Error::BadName { name: name.to_string(), reason })
}

/// `folder/name`, where an empty folder is the root of the store.
pub fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_string() } else { format!("{}/{name}", folder.trim_end_matches('/')) }
}

/// Like [`check_name`], but the root (empty) is a folder too.
pub(crate) fn check_folder(folder: &str) -> Result<()> {
    if folder.is_empty() { Ok(()) } else { check_name(folder) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_lead_out_of_a_store() {
        for name in
            ["", "/a", "../a", "a/../b", "a/..", "..", ".", "a//b", "a/", "./a", "a\\b", "a\0", "a\nb", "C:a"]
        {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "a/b.c", "model-00001-of-00002.safetensors", ".metadata", "..a", "a b/ü", "x@y:z"]
        {
            check_name(name).unwrap();
        }
        assert!(check_name(&"x".repeat(256)).is_err());
    }
}
