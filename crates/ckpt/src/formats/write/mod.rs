//! The formats of others, written: each writer says where every byte goes before any data exists.
//!
//! A [`Draft`] lists the files with their headers and the places of the tensors' boxes; `convert` fills them in.
//! What a format needs to know about the data itself, such as the checksums of a zip archive, comes after the data.

mod dcp;
mod pickle;
mod safetensors;
mod zip;

pub(crate) use dcp::dcp;
pub(crate) use safetensors::{hugging_face, unified};

use super::Key;
use planaria_layout::{DType, Region, Shape};
use std::cmp::Ordering;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) key: Key,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// The boxes it is cut into, each with the number of the writer it belongs to.
    pub(crate) boxes: Vec<(usize, Region)>,
}

impl Wanted {
    pub(crate) fn bytes(&self) -> u64 {
        (self.shape.numel() * self.dtype.size()) as u64
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

/// All files of a folder. The small ones are written last: without them it is no checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) files: Vec<NewFile>,
    pub(crate) small: Vec<(String, Vec<u8>)>,
}

/// Order of names in which numbers count as numbers: `layers.2` before `layers.10`.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let digits = |text: &[u8]| text.iter().take_while(|c| c.is_ascii_digit()).count();
        match (digits(a), digits(b)) {
            (0, _) | (_, 0) => match (a.split_first(), b.split_first()) {
                (Some((x, rest)), Some((y, other))) if x == y => (a, b) = (rest, other),
                (x, y) => return x.map(|(c, _)| c).cmp(&y.map(|(c, _)| c)),
            },
            (x, y) => {
                let strip = |text: &[u8]| text.iter().take_while(|c| **c == b'0').count();
                let (p, q) = (&a[strip(&a[..x])..x], &b[strip(&b[..y])..y]);
                // Without leading zeros the longer number is the larger.
                match p.len().cmp(&q.len()).then_with(|| p.cmp(q)).then(x.cmp(&y)) {
                    Ordering::Equal => (a, b) = (&a[x..], &b[y..]),
                    other => return other,
                }
            }
        }
    }
}

/// Cuts tensors, in this order, into files of at most `limit` bytes; a larger tensor gets a file of its own.
fn cut_by_size(tensors: &[Wanted], order: &[usize], limit: u64) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0u64;
    for &number in order {
        let len = tensors[number].bytes();
        match parts.last_mut() {
            Some(part) if filled == 0 || filled.saturating_add(len) <= limit => part.push(number),
            _ => {
                parts.push(vec![number]);
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
    fn numbers_in_names_are_numbers() {
        let mut names = vec!["l.10.w", "l.2.w", "l.2.b", "a", "l.02.w", "l", "l.x"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "l", "l.2.b", "l.2.w", "l.02.w", "l.10.w", "l.x"]);
    }

    #[test]
    fn a_tensor_larger_than_a_file_gets_one_of_its_own() {
        let tensor = |numel: usize| Wanted {
            key: Key::model("t"),
            dtype: DType::U8,
            shape: Shape::new(&[numel]).unwrap(),
            boxes: Vec::new(),
        };
        let tensors: Vec<Wanted> = [4, 4, 20, 0, 3, 8].into_iter().map(tensor).collect();
        let order: Vec<usize> = (0..tensors.len()).collect();
        assert_eq!(cut_by_size(&tensors, &order, 10), [vec![0, 1], vec![2, 3], vec![4], vec![5]]);
    }
}
