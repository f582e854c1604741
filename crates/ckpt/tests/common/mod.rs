//! What the tests of foreign formats share: finding test data, copying it, and reading expected values.

pub(crate) mod states;

use planaria_ckpt::formats::{Key, OpenOptions, Source, open};
use planaria_ckpt::{Error, Result};
use planaria_layout::DType;
use planaria_store::container::{Header, Limits};
use planaria_store::{Local, Object, PutMode, Store, StoreExt};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A folder of test data.
pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// The test data as a store.
pub(crate) fn stored(name: &str) -> Arc<dyn Store> {
    Arc::new(Local::new(testdata(name)))
}

/// A copy of a folder in memory, to be changed.
pub(crate) fn copied(name: &str) -> Arc<dyn Store> {
    let from = stored(name);
    let to = Object::memory();
    for entry in from.walk("").unwrap() {
        to.write(&entry.name, &from.read(&entry.name, u64::MAX).unwrap()).unwrap();
    }
    Arc::new(to)
}

/// Opens with default options.
pub(crate) fn opened(store: &Arc<dyn Store>, at: &str) -> Result<Source> {
    open(store, at, &OpenOptions::default())
}

/// Opens, compares copies and reads every tensor.
pub(crate) fn read_all(store: &Arc<dyn Store>, at: &str) -> Result<BTreeMap<Key, Vec<u8>>> {
    let source = opened(store, at)?;
    source.check_copies()?;
    source.tensors.keys().map(|key| Ok((key.clone(), source.read(key)?))).collect()
}

/// The tensors of an expected file: name to dtype, shape and bytes.
pub(crate) fn expected(name: &str) -> BTreeMap<String, (DType, Vec<usize>, Vec<u8>)> {
    let path = testdata(name);
    let store = Local::new(path.parent().unwrap());
    let file = store.reader(path.file_name().unwrap().to_str().unwrap()).unwrap();
    let header = Header::read(&*file, &Limits::default()).unwrap();
    let read = |t: &planaria_store::container::TensorInfo| {
        (t.name.clone(), (t.dtype, t.shape.to_vec(), file.read(t.offset, t.len as usize).unwrap()))
    };
    header.tensors.iter().map(read).collect()
}

/// Checks every tensor of a source, all of one part, against an expected file.
pub(crate) fn agree(source: &Source, expected: &BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>) {
    assert_eq!(source.tensors.len(), expected.len(), "{:?}", source.tensors.keys());
    for (key, entry) in &source.tensors {
        let (dtype, shape, bytes) = &expected[&key.name];
        assert_eq!((entry.dtype, entry.shape.to_vec()), (*dtype, shape.clone()), "{key}");
        assert!(source.read(key).unwrap() == *bytes, "{key}");
    }
}

/// The message of a refusal.
pub(crate) fn refusal(store: &Arc<dyn Store>, at: &str) -> Error {
    match read_all(store, at) {
        Ok(tensors) => panic!("'{at}' was accepted with {:?}", tensors.keys()),
        Err(error) => error,
    }
}

/// A file in a store.
pub(crate) fn put(store: &Arc<dyn Store>, name: &str, bytes: &[u8]) {
    store.put(name, bytes, PutMode::Replace).unwrap();
}

/// What `torch.save` makes of a pickle that refers to no storage.
pub(crate) fn archive(pickle: &[u8]) -> Vec<u8> {
    zip(&[("archive/data.pkl", pickle)])
}

/// The same with the storage `0`.
pub(crate) fn archive_with(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    zip(&[("archive/data.pkl", pickle), ("archive/data/0", storage)])
}

fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let mut sum = flate2::Crc::new();
        sum.update(bytes);
        let (crc, len) = (sum.sum().to_le_bytes(), (bytes.len() as u32).to_le_bytes());
        let head = [&[0; 8][..], &crc, &len, &len, &(name.len() as u16).to_le_bytes(), &[0; 2]].concat();
        let at = (out.len() as u32).to_le_bytes();
        directory
            .extend([b"PK\x01\x02", &[20, 0, 20, 0][..], &head, &[0; 10], &at, name.as_bytes()].concat());
        out.extend([b"PK\x03\x04", &[20, 0][..], &head, name.as_bytes(), bytes].concat());
    }
    let (size, at) = ((directory.len() as u32).to_le_bytes(), (out.len() as u32).to_le_bytes());
    let count = (members.len() as u16).to_le_bytes();
    [&out[..], &directory, b"PK\x05\x06", &[0; 4], &count, &count, &size, &at, &[0; 2]].concat()
}
