//! Listings in pages: what a frame holds of a folder, and where the next one goes on.

use super::frame::number;
use crate::name::join;
use crate::store::{Entry, EntryKind};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A page ends with the entry that fills it.
const PAGE: usize = 256 << 10;
/// Bytes of an entry before its name.
const FIXED: usize = 11;

/// The entries directly inside `folder` from the name `from` on, and the name from which the next page goes on: empty at
/// the end. Names are those of a sorted table of files.
pub(super) fn page<F>(
    files: &BTreeMap<String, F>,
    folder: &str,
    from: &str,
    size: impl Fn(&F) -> u64,
) -> (Vec<u8>, String) {
    let inside = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    let mut next = if from > inside.as_str() { from.to_string() } else { inside.clone() };
    let mut bytes = Vec::new();
    while let Some((name, file)) =
        files.range::<str, _>((Bound::Included(next.as_str()), Bound::Unbounded)).next()
    {
        let Some(short) = name.strip_prefix(&inside) else { break };
        if bytes.len() >= PAGE {
            return (bytes, name.clone());
        }
        next = match short.split_once('/') {
            Some((below, _)) => {
                add(&mut bytes, below, EntryKind::Folder);
                // The character behind the slash: what follows the last name of the folder.
                format!("{inside}{below}0")
            }
            None => {
                add(&mut bytes, short, EntryKind::File(size(file)));
                format!("{name}\0")
            }
        };
    }
    (bytes, String::new())
}

fn add(bytes: &mut Vec<u8>, name: &str, kind: EntryKind) {
    let (kind, size) = match kind {
        EntryKind::File(size) => (0, size),
        _ => (1, 0),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
}

/// The entries of a page; none if it makes no sense.
pub(super) fn entries(mut bytes: &[u8], folder: &str) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let (fixed, rest) = bytes.split_at_checked(FIXED)?;
        let (name, rest) = rest.split_at_checked(number(&fixed[9..]) as usize)?;
        let kind = match fixed[0] {
            0 => EntryKind::File(number(&fixed[1..9])),
            1 => EntryKind::Folder,
            _ => return None,
        };
        let name = std::str::from_utf8(name).ok().filter(|name| !name.contains('/'))?;
        let name = join(folder, name);
        crate::name::check_name(&name).ok()?;
        entries.push(Entry { name, kind });
        bytes = rest;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_together_are_the_folder() {
        let long = "x".repeat(200);
        let names = (0..5000).map(|i| match i % 3 {
            0 => format!("f/{long}{i:05}"),
            1 => format!("f/d{}/{i}", i / 300),
            _ => format!("f-beside/{i}"),
        });
        let files: BTreeMap<String, u64> = names.zip(0..).collect();
        let (mut shown, mut from, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let (bytes, next) = page(&files, "f", &from, |size| *size);
            shown.extend(entries(&bytes, "f").unwrap());
            pages += 1;
            if next.is_empty() {
                break;
            }
            assert!(next > from, "pages go on");
            from = next;
        }
        let count = |kind: fn(&Entry) -> bool| shown.iter().filter(|entry| kind(entry)).count();
        assert_eq!((count(Entry::is_file), count(|e| !e.is_file())), (1667, 17));
        assert!(pages > 1, "{pages}");
        let (root, _) = page(&files, "", "", |size| *size);
        let root: Vec<String> = entries(&root, "").unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(root, ["f-beside", "f"]);
    }

    #[test]
    fn pages_that_make_no_sense_are_refused() {
        let files = BTreeMap::from([("a".to_string(), 7), ("b/c".to_string(), 8)]);
        let (bytes, _) = page(&files, "", "", |size| *size);
        assert!(entries(&bytes, "x").is_some());
        for len in 1..bytes.len() {
            assert!(entries(&bytes[..len], "").is_none_or(|found| found.len() < 2), "{len}");
        }
        let mut out = Vec::new();
        add(&mut out, "..", EntryKind::Folder);
        assert!(entries(&out, "x").is_none());
        let mut out = Vec::new();
        add(&mut out, "a/b", EntryKind::Folder);
        assert!(entries(&out, "x").is_none());
    }
}
