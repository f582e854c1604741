//! The formats of others, written: each writer says where every byte goes before any data exists.
//!
//! A [`Draft`] lists the files with their headers and the places of the tensors' boxes; `convert` fills them in.
//! What a format needs to know about the data itself, such as the checksums of a zip archive, comes after the data.

mod dcp;
mod pickle;
mod safetensors;
mod zip;

pub(crate) use dcp::{dcp, torch_name};
pub(crate) use safetensors::{hugging_face, planaria, unified};

use super::Key;
use planaria_layout::{DType, Region, Shape};
use planaria_store::container::Foreign;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// The true element type, where dtype and shape are those of bytes that stand for it.
    pub(crate) foreign: Option<&'static Foreign>,
    /// The boxes it is cut into, each with the number of the writer it belongs to.
    pub(crate) boxes: Vec<(usize, Region)>,
}

impl Wanted {
    fn bytes(&self) -> u64 {
        (self.shape.numel() * self.dtype.size()) as u64
    }

    fn bytes_of(&self, region: &Region) -> u64 {
        (region.numel() * self.dtype.size()) as u64
    }
}

/// A box of a tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Which of the wanted tensors.
    pub(crate) tensor: usize,
    pub(crate) region: Region,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes of a file that are known before the data is.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Bytes of a file that depend on the checksum of a slot.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Number of the slot in its file; none for an archive without data.
    pub(crate) slot: Option<usize>,
    archive: zip::Archive,
}

impl Tail {
    /// The bytes, once the CRC-32 of the slot is known.
    pub(crate) fn bytes(&self, crc: u32) -> Vec<u8> {
        self.archive.tail(crc)
    }
}

/// A file to be written: frames, slots and tails in ascending order, without holes.
#[derive(Clone, Debug, Default)]
pub(crate) struct NewFile {
    pub(crate) name: String,
    pub(crate) len: u64,
    pub(crate) frames: Vec<Frame>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) tails: Vec<Tail>,
}

/// All files of a folder. The small ones are written last: without them it is not a checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) files: Vec<NewFile>,
    pub(crate) small: Vec<(String, Vec<u8>)>,
}

/// Cuts what is to be written, in this order, into files of at most `limit` bytes; something larger gets a file of
/// its own.
fn cut_by_size<T>(items: impl IntoIterator<Item = T>, limit: u64, bytes: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut filled = 0u64;
    for item in items {
        let len = bytes(&item);
        match parts.last_mut() {
            Some(part) if filled == 0 || filled.saturating_add(len) <= limit => part.push(item),
            _ => {
                parts.push(vec![item]);
                filled = 0;
            }
        }
        filled = filled.saturating_add(len);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_larger_than_a_file_gets_one_of_its_own() {
        let parts = cut_by_size([4, 4, 20, 0, 3, 8], 10, |bytes| *bytes);
        assert_eq!(parts, [vec![4, 4], vec![20], vec![0, 3], vec![8]]);
        assert_eq!(cut_by_size([0, 0, 30, 1], 10, |bytes| *bytes), [vec![0, 0, 30], vec![1]]);
    }
}
