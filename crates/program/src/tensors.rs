//! Tensors by name in a safetensors file: inputs and outputs of runs, parameters of folders.

use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_store::container::{Align, FileLayout, Header, Limits, NewTensor};
use planaria_store::{Sharing, Store};
use std::collections::BTreeMap;

fn failed(name: &str) -> impl Fn(planaria_array::Error) -> Error + '_ {
    move |source| Error::Array { place: format!("tensor {name}"), source }
}

/// All tensors of a file.
///
/// # Errors
/// A file that is missing or damaged.
pub fn read_tensors(store: &dyn Store, file: &str) -> Result<BTreeMap<String, Array>> {
    let reader = store.reader(file)?;
    let header = Header::read(&*reader, &Limits::default())?;
    let mut tensors = BTreeMap::new();
    for info in header.tensors {
        // The header has been checked against the size of the file.
        let mut bytes = vec![0; info.len as usize];
        reader.read_at(info.offset, &mut bytes)?;
        let array = Array::from_bytes(&bytes, &info.shape, info.dtype).map_err(failed(&info.name))?;
        tensors.insert(info.name, array);
    }
    Ok(tensors)
}

/// Writes a file of tensors, durably.
///
/// # Errors
/// What the store says.
pub fn write_tensors<'a>(
    store: &dyn Store,
    file: &str,
    tensors: impl IntoIterator<Item = (&'a str, &'a Array)>,
) -> Result<()> {
    let tensors: BTreeMap<&str, &Array> = tensors.into_iter().collect();
    let new = tensors.iter().map(|(name, array)| NewTensor {
        name: name.to_string(),
        dtype: array.dtype(),
        shape: array.shape().clone(),
        foreign: None,
    });
    let layout = FileLayout::new(file, new, &BTreeMap::new(), Align::Word)?;
    let writer = store.writer(file, layout.file_len(), Sharing::Threads)?;
    writer.write_at(0, layout.header())?;
    for (tensor, offset, _) in layout.tensors() {
        let array = tensors[tensor.name.as_str()].contiguous().map_err(failed(&tensor.name))?;
        writer.write_at(offset, &array.bytes().map_err(failed(&tensor.name))?)?;
    }
    writer.finish()?;
    Ok(())
}
