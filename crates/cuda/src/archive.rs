//! A file of compiled kernels: magic, count, a table of key, offset and length, then the cubins.

use crate::error::{Error, Result};
use crate::program::Key;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const MAGIC: &[u8; 8] = b"PLNKERN1";
const ENTRY: usize = 32;
/// Cubins start at multiples of this: the driver reads them as structs.
const ALIGN: usize = 64;

/// A file of compiled kernels.
#[derive(Debug)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: BTreeMap<Key, (usize, usize)>,
}

impl Archive {
    /// Reads an archive.
    pub fn read(path: &Path) -> Result<Archive> {
        let wrong = |reason: String| Error::Archive { path: path.display().to_string(), reason };
        let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let entries = table(&bytes).ok_or_else(|| wrong("not a whole archive".into()))?;
        Ok(Archive { bytes, entries })
    }

    /// The archive this process uses: the file that `PLANARIA_KERNELS` names, or `planaria-kernels.bin` beside the
    /// executable where there is one.
    pub fn installed() -> Result<Option<&'static Archive>> {
        static INSTALLED: OnceLock<Result<Option<Archive>>> = OnceLock::new();
        let find = || {
            if let Some(path) = std::env::var_os("PLANARIA_KERNELS") {
                return Archive::read(&PathBuf::from(path)).map(Some);
            }
            let beside = std::env::current_exe().ok().map(|exe| exe.with_file_name("planaria-kernels.bin"));
            beside.filter(|path| path.is_file()).map(|path| Archive::read(&path)).transpose()
        };
        match INSTALLED.get_or_init(find) {
            Ok(archive) => Ok(archive.as_ref()),
            Err(error) => Err(error.clone()),
        }
    }

    /// The cubin of a key.
    pub fn get(&self, key: Key) -> Option<&[u8]> {
        self.entries.get(&key).map(|&(start, end)| &self.bytes[start..end])
    }

    /// The keys of all cubins.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.entries.keys().copied()
    }

    /// How many cubins there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Where each key's bytes lie, or `None` when the file is not whole.
fn table(bytes: &[u8]) -> Option<BTreeMap<Key, (usize, usize)>> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let count = u64::from_le_bytes(rest.get(..8)?.try_into().ok()?);
    let count = usize::try_from(count).ok().filter(|&count| count <= bytes.len() / ENTRY)?;
    let mut entries = BTreeMap::new();
    for entry in rest.get(8..8 + count * ENTRY)?.chunks_exact(ENTRY) {
        let key = u128::from_le_bytes(entry[..16].try_into().ok()?);
        let start = usize::try_from(u64::from_le_bytes(entry[16..24].try_into().ok()?)).ok()?;
        let len = usize::try_from(u64::from_le_bytes(entry[24..].try_into().ok()?)).ok()?;
        let end = start.checked_add(len).filter(|&end| end <= bytes.len())?;
        entries.insert(Key(key), (start, end));
    }
    Some(entries)
}

/// An archive being made.
#[derive(Debug, Default)]
pub struct ArchiveWriter(BTreeMap<Key, Vec<u8>>);

impl ArchiveWriter {
    /// Adds a cubin.
    pub fn add(&mut self, key: Key, cubin: Vec<u8>) {
        self.0.insert(key, cubin);
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend((self.0.len() as u64).to_le_bytes());
        let mut at = (out.len() + self.0.len() * ENTRY).next_multiple_of(ALIGN);
        for (key, cubin) in &self.0 {
            out.extend(key.0.to_le_bytes());
            out.extend((at as u64).to_le_bytes());
            out.extend((cubin.len() as u64).to_le_bytes());
            at = (at + cubin.len()).next_multiple_of(ALIGN);
        }
        for cubin in self.0.values() {
            out.resize(out.len().next_multiple_of(ALIGN), 0);
            out.extend(cubin);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_gives_back_what_was_added_and_cut_files_are_refused() {
        let mut writer = ArchiveWriter::default();
        writer.add(Key(7), vec![1, 2, 3]);
        writer.add(Key(1 << 100), vec![9; 5]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels.bin");
        std::fs::write(&path, writer.bytes()).unwrap();
        let archive = Archive::read(&path).unwrap();
        assert_eq!(
            (archive.len(), archive.get(Key(7)), archive.get(Key(8))),
            (2, Some(&[1, 2, 3][..]), None)
        );
        assert_eq!(archive.get(Key(1 << 100)), Some(&[9; 5][..]));
        for len in 0..writer.bytes().len() {
            std::fs::write(&path, &writer.bytes()[..len]).unwrap();
            assert!(Archive::read(&path).is_err(), "{len} bytes were taken for a whole archive");
        }
    }
}
