//! The header of a structure: version, then its nodes in order. Reading one trusts nothing: every length is held
//! against the bytes that are there, nesting is bounded, and shapes are checked before anything is allocated.

use super::Value;
use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_layout::{DType, Rank, Shape};

/// First bytes of every header.
const MAGIC: &[u8; 4] = b"PLNV";
/// Version of the format; a reader refuses any other.
const VERSION: u16 = 1;
/// Deepest nesting.
const DEEPEST: usize = 64;
/// Longest header, and most elements of one payload.
const LONGEST: i64 = 1 << 46;

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaf {
    pub(super) dtype: DType,
    pub(super) shape: Shape,
}

/// A structure whose tensors are still to be filled in.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) value: Skeleton,
    pub(super) leaves: Vec<Leaf>,
}

/// A structure that has gaps where its tensors go.
#[derive(Debug)]
pub(super) enum Skeleton {
    Plain(Value),
    Tensor,
    List(Vec<Skeleton>),
    Tuple(Vec<Skeleton>),
    Map(Vec<(Skeleton, Skeleton)>),
}

impl Skeleton {
    /// Fills the gaps in order.
    pub(super) fn with_tensors(self, tensors: &mut impl Iterator<Item = Array>) -> Value {
        match self {
            Skeleton::Plain(value) => value,
            Skeleton::Tensor => tensors.next().map_or(Value::None, Value::Tensor),
            Skeleton::List(items) => {
                Value::List(items.into_iter().map(|i| i.with_tensors(tensors)).collect())
            }
            Skeleton::Tuple(items) => {
                Value::Tuple(items.into_iter().map(|i| i.with_tensors(tensors)).collect())
            }
            Skeleton::Map(entries) => {
                let entry = |(k, v): (Skeleton, Skeleton)| (k.with_tensors(tensors), v.with_tensors(tensors));
                Value::Map(entries.into_iter().map(entry).collect())
            }
        }
    }
}

/// A length another rank announced, if it can be one.
pub(super) fn checked_length(length: i64, from: Rank) -> Result<usize> {
    match usize::try_from(length) {
        Ok(n) if length <= LONGEST => Ok(n),
        _ => Err(Error::Header { from, what: format!("a length of {length} cannot be") }),
    }
}

/// The header of a structure.
pub(super) fn encode(value: &Value) -> Result<Vec<u8>> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    write(value, 0, &mut out)?;
    Ok(out)
}

fn write(value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    if depth > DEEPEST {
        let what = format!("a structure may be nested {DEEPEST} deep at most");
        return Err(Error::argument("encode", what));
    }
    let length = |tag: u8, n: usize, out: &mut Vec<u8>| {
        out.push(tag);
        out.extend((n as u64).to_le_bytes());
    };
    match value {
        Value::None => out.push(b'n'),
        Value::Bool(b) => out.extend([b'b', u8::from(*b)]),
        Value::Int(i) => {
            out.push(b'i');
            out.extend(i.to_le_bytes());
        }
        Value::Float(x) => {
            out.push(b'f');
            out.extend(x.to_bits().to_le_bytes());
        }
        Value::Text(text) => {
            length(b's', text.len(), out);
            out.extend(text.as_bytes());
        }
        Value::Bytes(bytes) => {
            length(b'y', bytes.len(), out);
            out.extend(bytes);
        }
        Value::Tensor(array) if array.is_meta() => {
            return Err(Error::argument("encode", "a meta array has no bytes to send"));
        }
        Value::Tensor(array) => {
            let ndim = u8::try_from(array.ndim()).map_err(|_| Error::argument("encode", "over 255 dims"))?;
            out.extend([b't', array.dtype() as u8, ndim]);
            array.shape().iter().for_each(|&d| out.extend((d as u64).to_le_bytes()));
        }
        Value::List(items) | Value::Tuple(items) => {
            length(if matches!(value, Value::List(_)) { b'l' } else { b'u' }, items.len(), out);
            return items.iter().try_for_each(|item| write(item, depth + 1, out));
        }
        Value::Map(entries) => {
            length(b'm', entries.len(), out);
            return entries.iter().try_for_each(|(k, v)| {
                write(k, depth + 1, out)?;
                write(v, depth + 1, out)
            });
        }
    }
    Ok(())
}

/// Reads a header that came from another rank.
pub(super) fn decode(bytes: &[u8], from: Rank) -> Result<Decoded> {
    let mut reader = Reader { bytes, from, leaves: Vec::new() };
    if reader.take(4)? != MAGIC {
        return Err(reader.refuse("this is not a structure"));
    }
    let version = u16::from_le_bytes(reader.array()?);
    if version != VERSION {
        return Err(
            reader.refuse(format!("version {version} is not {VERSION}; run one release on all ranks"))
        );
    }
    let value = reader.node(0)?;
    match reader.bytes.len() {
        0 => Ok(Decoded { value, leaves: reader.leaves }),
        left => Err(reader.refuse(format!("{left} bytes are left over"))),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    from: Rank,
    leaves: Vec<Leaf>,
}

impl<'a> Reader<'a> {
    fn refuse(&self, what: impl Into<String>) -> Error {
        Error::Header { from: self.from, what: what.into() }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.bytes.split_at_checked(n) {
            Some((head, rest)) => {
                self.bytes = rest;
                Ok(head)
            }
            None => Err(self.refuse(format!("{n} bytes are announced, {} are left", self.bytes.len()))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| self.refuse("a number is cut short"))
    }

    /// A count of things that take at least `least` bytes each.
    fn count(&mut self, least: usize) -> Result<usize> {
        let n = u64::from_le_bytes(self.array()?);
        let most = self.bytes.len() / least;
        match usize::try_from(n) {
            Ok(n) if n <= most => Ok(n),
            _ => Err(self.refuse(format!("{n} entries are announced, {most} could follow"))),
        }
    }

    fn node(&mut self, depth: usize) -> Result<Skeleton> {
        if depth > DEEPEST {
            return Err(self.refuse(format!("it is nested more than {DEEPEST} deep")));
        }
        let [tag] = self.array()?;
        let plain = match tag {
            b'n' => Value::None,
            b'b' => match self.array()? {
                [flag @ 0..=1] => Value::Bool(flag == 1),
                [other] => return Err(self.refuse(format!("{other} is not a truth value"))),
            },
            b'i' => Value::Int(i64::from_le_bytes(self.array()?)),
            b'f' => Value::Float(f64::from_bits(u64::from_le_bytes(self.array()?))),
            b's' => {
                let n = self.count(1)?;
                let text =
                    std::str::from_utf8(self.take(n)?).map_err(|_| self.refuse("a text is not UTF-8"))?;
                Value::Text(text.into())
            }
            b'y' => {
                let n = self.count(1)?;
                Value::Bytes(self.take(n)?.to_vec())
            }
            b't' => return self.tensor(),
            b'l' | b'u' => {
                let n = self.count(1)?;
                let items = (0..n).map(|_| self.node(depth + 1)).collect::<Result<Vec<_>>>()?;
                return Ok(if tag == b'l' { Skeleton::List(items) } else { Skeleton::Tuple(items) });
            }
            b'm' => {
                let n = self.count(2)?;
                let entry = |_| Ok((self.node(depth + 1)?, self.node(depth + 1)?));
                return Ok(Skeleton::Map((0..n).map(entry).collect::<Result<Vec<_>>>()?));
            }
            other => return Err(self.refuse(format!("{other} marks no kind of value"))),
        };
        Ok(Skeleton::Plain(plain))
    }

    fn tensor(&mut self) -> Result<Skeleton> {
        let [dtype, ndim] = self.array()?;
        let dtype = DType::ALL.into_iter().find(|d| *d as u8 == dtype);
        let dtype = dtype.ok_or_else(|| self.refuse("a tensor has an unknown dtype"))?;
        let mut dims = Vec::with_capacity(ndim.into());
        for _ in 0..ndim {
            let dim = u64::from_le_bytes(self.array()?);
            dims.push(usize::try_from(dim).map_err(|_| self.refuse(format!("a dim of {dim}")))?);
        }
        let shape = Shape::new(&dims).map_err(|e| self.refuse(e.to_string()))?;
        self.leaves.push(Leaf { dtype, shape });
        Ok(Skeleton::Tensor)
    }
}
