//! Reading a header from an untrusted file.

use super::dtype::parse_dtype;
use super::foreign::Foreign;
use crate::error::{Error, HeaderProblem, Result};
use crate::store::{Reader, fill};
use planaria_layout::{DType, Shape};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// What a file may ask of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the header; the reference implementation accepts 100 MB.
    pub header_bytes: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Dims of one tensor.
    pub ndim: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { header_bytes: 100_000_000, tensors: 1 << 20, ndim: 64 }
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The true element type where `dtype` and `shape` are those of bytes that stand for it.
    pub foreign: Option<&'static Foreign>,
}

/// What a file holds. All ranges lie inside the file, fit their shapes, and follow each other without holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The tensors in the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// The free text pairs under `__metadata__`.
    pub metadata: BTreeMap<String, String>,
    /// First byte after the header.
    pub data_start: u64,
}

impl Header {
    /// Reads and checks the header; no data is read.
    pub fn read(file: &dyn Reader, limits: &Limits) -> Result<Header> {
        let refuse = |problem| Error::Header { name: file.name().to_string(), problem };
        let size = file.size();
        if size < 8 {
            return Err(refuse(HeaderProblem::Truncated { size, needed: 8 }));
        }
        let mut prefix = [0; 8];
        fill(file, 0, &mut prefix)?;
        let len = u64::from_le_bytes(prefix);
        if len > limits.header_bytes {
            return Err(refuse(HeaderProblem::TooLarge { len, limit: limits.header_bytes }));
        }
        if 8 + len > size {
            return Err(refuse(HeaderProblem::Truncated { size, needed: 8 + len }));
        }
        let mut text = vec![0; len as usize];
        fill(file, 8, &mut text)?;
        Header::parse(&text, size, limits).map_err(refuse)
    }

    /// Checks the text of a header that stands in a file of `size` bytes.
    pub fn parse(text: &[u8], size: u64, limits: &Limits) -> Result<Header, HeaderProblem> {
        let json = |error: serde_json::Error| HeaderProblem::Json(error.to_string());
        let mut reader = serde_json::Deserializer::from_slice(text);
        let raw = reader.deserialize_map(RawVisitor { limit: limits.tensors }).map_err(json)?;
        reader.end().map_err(json)?;
        if raw.too_many {
            return Err(HeaderProblem::TooMany { limit: limits.tensors });
        }
        if let Some(tensor) = raw.duplicate {
            return Err(HeaderProblem::Duplicate { tensor });
        }
        let data_start = 8 + text.len() as u64;
        let data = size.checked_sub(data_start);
        let data = data.ok_or(HeaderProblem::Truncated { size, needed: data_start })?;
        let mut tensors = Vec::with_capacity(raw.tensors.len());
        for (name, tensor) in raw.tensors {
            tensors.push(tensor.check(name, data_start, data, limits)?);
        }
        tensors.sort_by(|a, b| (a.offset, a.len, &a.name).cmp(&(b.offset, b.len, &b.name)));
        check_cover(&tensors, data_start, size)?;
        Ok(Header { tensors, metadata: raw.metadata, data_start })
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// Data follows data from the end of the header to the end of the file.
fn check_cover(tensors: &[TensorInfo], data_start: u64, size: u64) -> Result<(), HeaderProblem> {
    let mut end = data_start;
    let mut before = "";
    for tensor in tensors {
        if tensor.offset < end {
            return Err(HeaderProblem::Overlap { first: before.to_string(), second: tensor.name.clone() });
        }
        if tensor.offset > end {
            return Err(HeaderProblem::Hole { start: end - data_start, end: tensor.offset - data_start });
        }
        end += tensor.len;
        before = &tensor.name;
    }
    if end == size {
        return Ok(());
    }
    Err(HeaderProblem::Hole { start: end - data_start, end: size - data_start })
}

/// A tensor as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl RawTensor {
    fn check(
        self,
        name: String,
        data_start: u64,
        data: u64,
        limits: &Limits,
    ) -> Result<TensorInfo, HeaderProblem> {
        let (start, end) = self.data_offsets;
        let foreign = Foreign::of_safetensors(&self.dtype);
        let Some(dtype) = parse_dtype(&self.dtype).or(foreign.map(|foreign| foreign.carrier)) else {
            return Err(HeaderProblem::UnknownDType { tensor: name, dtype: self.dtype });
        };
        let dims: Option<Vec<usize>> = self.shape.iter().map(|&d| usize::try_from(d).ok()).collect();
        let fits = dims.filter(|dims| dims.len() <= limits.ndim).and_then(|dims| Shape::new(&dims).ok());
        let fits = fits
            .and_then(|shape| foreign.map_or(Some(shape.clone()), |foreign| foreign.carried_in_file(&shape)));
        let Some(shape) = fits else {
            return Err(HeaderProblem::BadShape { tensor: name, shape: self.shape });
        };
        if start > end || end > data {
            return Err(HeaderProblem::OutOfFile { tensor: name, start, end, size: data });
        }
        let expected = (shape.numel() * dtype.size()) as u64;
        if end - start != expected {
            return Err(HeaderProblem::BadLength { tensor: name, found: end - start, expected });
        }
        Ok(TensorInfo { name, dtype, shape, offset: data_start + start, len: expected, foreign })
    }
}

/// The header before it is checked. Reading stops early at what is refused anyway.
#[derive(Default)]
struct Raw {
    tensors: Vec<(String, RawTensor)>,
    metadata: BTreeMap<String, String>,
    duplicate: Option<String>,
    too_many: bool,
}

struct RawVisitor {
    limit: usize,
}

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one entry per tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = Raw::default();
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                raw.duplicate.get_or_insert(name);
                map.next_value::<serde::de::IgnoredAny>()?;
            } else if name == "__metadata__" {
                raw.metadata = map.next_value()?;
            } else if raw.tensors.len() == self.limit {
                raw.too_many = true;
                map.next_value::<serde::de::IgnoredAny>()?;
            } else {
                raw.tensors.push((name, map.next_value()?));
            }
        }
        Ok(raw)
    }
}
