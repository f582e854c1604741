//! Laying out a new file: where every tensor goes is known before its data exists.

use super::dtype::{dtype_name, order};
use super::foreign::Foreign;
use super::header::Limits;
use crate::error::{Error, HeaderProblem, Result};
use planaria_layout::{DType, Shape};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
    /// The true element type where `dtype` and `shape` are those of bytes that stand for it; it has a name in files.
    pub foreign: Option<&'static Foreign>,
}

/// Where the data of a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Align {
    /// At a multiple of 8 bytes: the same bytes as the reference writer.
    #[default]
    Word,
    /// At a multiple of [`crate::BLOCK`] bytes, by spaces at the end of the header.
    Block,
}

/// A file that is to be written, byte by byte known: header, then tensors without holes, wide elements first,
/// so that every tensor is aligned to its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLayout {
    header: Vec<u8>,
    /// Name, first byte in the file, length; in file order.
    places: Vec<(NewTensor, u64, u64)>,
    /// Which of the tensors that were given each of them is.
    given: Vec<usize>,
    /// Positions in file order, by name.
    by_name: Vec<usize>,
    len: u64,
}

impl FileLayout {
    /// Lays out a file named `name` (for messages).
    pub fn new(
        name: &str,
        tensors: impl IntoIterator<Item = NewTensor>,
        metadata: &BTreeMap<String, String>,
        align: Align,
    ) -> Result<FileLayout> {
        let refuse = |problem| Error::Header { name: name.to_string(), problem };
        let mut tensors: Vec<(usize, NewTensor)> = tensors.into_iter().enumerate().collect();
        tensors.sort_by(|(_, a), (_, b)| {
            (Reverse(order(a.dtype)), &a.name).cmp(&(Reverse(order(b.dtype)), &b.name))
        });
        let (mut given, mut places) = (Vec::with_capacity(tensors.len()), Vec::with_capacity(tensors.len()));
        let mut end = 0u64;
        for (number, tensor) in tensors {
            let len = (tensor.shape.numel() * tensor.dtype.size()) as u64;
            let start = end;
            let shape = || tensor.shape.iter().map(|&d| d as u64).collect();
            end = end.checked_add(len).ok_or_else(|| {
                refuse(HeaderProblem::BadShape { tensor: tensor.name.clone(), shape: shape() })
            })?;
            given.push(number);
            places.push((tensor, start, len));
        }
        let name_of = |place: usize| places[place].0.name.as_str();
        let mut by_name: Vec<usize> = (0..places.len()).collect();
        by_name.sort_by_key(|&place| name_of(place));
        let twice = by_name.windows(2).find(|pair| name_of(pair[0]) == name_of(pair[1]));
        let reserved = by_name.iter().find(|&&place| name_of(place) == "__metadata__");
        if let Some(&place) = twice.map(|pair| &pair[1]).or(reserved) {
            return Err(refuse(HeaderProblem::Duplicate { tensor: name_of(place).to_string() }));
        }
        let header = header_bytes(&places, metadata, align);
        let limit = Limits::default().header_bytes;
        let len = header.len() as u64 - 8;
        if len > limit {
            return Err(refuse(HeaderProblem::TooLarge { len, limit }));
        }
        let data_start = header.len() as u64;
        for place in &mut places {
            place.1 += data_start;
        }
        Ok(FileLayout { header, places, given, by_name, len: data_start + end })
    }

    /// The first bytes of the file, up to the data.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Size of the whole file.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// Bytes of all tensors together.
    pub fn data_len(&self) -> u64 {
        self.len - self.header.len() as u64
    }

    /// First byte and number of bytes of a tensor.
    pub fn place(&self, name: &str) -> Option<(u64, u64)> {
        let named = |&place: &usize| self.places[place].0.name.as_str().cmp(name);
        let found = self.by_name.binary_search_by(named).ok()?;
        let (_, offset, len) = &self.places[self.by_name[found]];
        Some((*offset, *len))
    }

    /// Every tensor as its number among those that were given, with its first byte, in file order.
    pub fn placed(&self) -> impl Iterator<Item = (usize, u64)> {
        self.given.iter().zip(&self.places).map(|(&given, (_, offset, _))| (given, *offset))
    }

    /// Every tensor with its first byte and number of bytes, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = (&NewTensor, u64, u64)> {
        self.places.iter().map(|(tensor, offset, len)| (tensor, *offset, *len))
    }
}

/// Size, JSON text and spaces. The text is built by hand around escaped names: the order of entries is the
/// order of the data, which a sorted map would lose.
fn header_bytes(
    places: &[(NewTensor, u64, u64)],
    metadata: &BTreeMap<String, String>,
    align: Align,
) -> Vec<u8> {
    // Writing to a string does not fail.
    let mut text = String::with_capacity(160 * (places.len() + 1));
    text.push('{');
    if !metadata.is_empty() {
        let pairs: Map<String, Value> =
            metadata.iter().map(|(k, v)| (k.clone(), v.as_str().into())).collect();
        let _ = write!(text, "\"__metadata__\":{}", Value::Object(pairs));
    }
    for (tensor, start, len) in places {
        let in_file = tensor
            .foreign
            .map_or_else(|| tensor.shape.iter().copied().collect(), |foreign| foreign.in_file(&tensor.shape));
        let foreign = tensor.foreign.and_then(|foreign| foreign.safetensors);
        let comma = if text.len() > 1 { "," } else { "" };
        let dtype = foreign.unwrap_or(dtype_name(tensor.dtype));
        let _ = write!(text, r#"{comma}{}:{{"dtype":"{dtype}","shape":["#, json!(tensor.name));
        for (dim, len) in in_file.iter().enumerate() {
            let _ = write!(text, "{}{len}", if dim > 0 { "," } else { "" });
        }
        let _ = write!(text, r#"],"data_offsets":[{start},{}]}}"#, start + len);
    }
    text.push('}');
    let unit = match align {
        Align::Word => 8,
        Align::Block => crate::BLOCK,
    };
    let total = (8 + text.len()).next_multiple_of(unit);
    let mut bytes = ((total - 8) as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(total, b' ');
    bytes
}
