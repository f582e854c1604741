//! Combined parameter files: records one after the other, in the order of the sorted names, nothing else.

use crate::error::{Error, Result};
use crate::program::{Held, Program};
use crate::types::{Element, tensor_type};
use std::io::{Read, Write};

/// Offsets of variable length (`lod`) in one record; Paddle itself writes none.
const MOST_LEVELS: u64 = 64;

/// Bytes of a description: a dtype and 64 dims need fewer.
const LONGEST_DESCRIPTION: usize = 1024;

/// One tensor of a parameter file.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What its elements are.
    pub element: Element,
    /// Its extents.
    pub dims: Vec<u64>,
    /// Offsets of variable length, nearly always none.
    pub lod: Vec<Vec<u64>>,
    /// Its elements, little-endian, in row-major order.
    pub bytes: Vec<u8>,
}

impl Record {
    /// As text, as in `f32[4,16]`.
    pub fn describe(&self) -> String {
        let dims: Vec<String> = self.dims.iter().map(u64::to_string).collect();
        format!("{}[{}]", self.element, dims.join(","))
    }
}

/// Reads the records of a file of known size, one at a time.
#[derive(Debug)]
pub struct Records<R> {
    from: R,
    size: u64,
    offset: u64,
}

impl<R: Read> Records<R> {
    /// A file of this many bytes.
    pub fn new(from: R, size: u64) -> Records<R> {
        Records { from, size, offset: 0 }
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.size - self.offset
    }

    /// The next record, under the name that the program has for it.
    ///
    /// # Errors
    /// A file that ends early or has no record here.
    pub fn next(&mut self, name: &str) -> Result<Record> {
        let version = self.u32(name, "the version")?;
        if version != 0 {
            return Err(self.damaged(name, format!("the record is of version {version} instead of 0")));
        }
        let lod = self.lod(name)?;
        let version = self.u32(name, "the tensor's version")?;
        if version != 0 {
            return Err(self.damaged(name, format!("the tensor is of version {version} instead of 0")));
        }
        let (element, dims) = self.description(name)?;
        let count = dims.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim));
        let bytes = count.and_then(|n| n.checked_mul(element.size() as u64));
        let bytes = bytes.ok_or_else(|| self.damaged(name, format!("its extents {dims:?} are too large")))?;
        let bytes = self.take(name, bytes, "the elements")?;
        Ok(Record { element, dims, lod, bytes })
    }

    fn damaged(&self, name: &str, what: String) -> Error {
        Error::Parameter { name: name.to_string(), offset: self.offset, what }
    }

    /// Bytes that are known to be there before memory is asked for.
    fn take(&mut self, name: &str, count: u64, what: &str) -> Result<Vec<u8>> {
        if count > self.left() {
            let left = self.left();
            return Err(self.damaged(
                name,
                format!("the file ends inside {what}: {count} bytes are wanted, {left} are left"),
            ));
        }
        let mut bytes = vec![0; count as usize];
        self.from.read_exact(&mut bytes).map_err(|error| self.damaged(name, error.to_string()))?;
        self.offset += count;
        Ok(bytes)
    }

    fn u32(&mut self, name: &str, what: &str) -> Result<u32> {
        let bytes = self.take(name, 4, what)?;
        Ok(bytes.try_into().map_or(0, u32::from_le_bytes))
    }

    fn u64(&mut self, name: &str, what: &str) -> Result<u64> {
        let bytes = self.take(name, 8, what)?;
        Ok(bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    fn lod(&mut self, name: &str) -> Result<Vec<Vec<u64>>> {
        let levels = self.u64(name, "the offsets")?;
        if levels > MOST_LEVELS {
            return Err(
                self.damaged(name, format!("{levels} levels of offsets, at most {MOST_LEVELS} are allowed"))
            );
        }
        let mut lod = Vec::new();
        for _ in 0..levels {
            let bytes = self.u64(name, "the offsets")?;
            if bytes % 8 != 0 {
                return Err(
                    self.damaged(name, format!("a level of offsets has {bytes} bytes, no multiple of 8"))
                );
            }
            let level = self.take(name, bytes, "the offsets")?;
            lod.push(level.chunks_exact(8).map(|b| b.try_into().map_or(0, u64::from_le_bytes)).collect());
        }
        Ok(lod)
    }

    fn description(&mut self, name: &str) -> Result<(Element, Vec<u64>)> {
        let length = self.u32(name, "the length of the description")? as i32;
        let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST_DESCRIPTION);
        let length = length
            .ok_or_else(|| self.damaged(name, "the description has an impossible length".to_string()))?;
        let bytes = self.take(name, length as u64, "the description")?;
        let damaged = |what: &str| self.damaged(name, what.to_string());
        let (mut element, mut dims, mut rest) = (None, Vec::new(), bytes.as_slice());
        while let Some((tag, after)) = rest.split_first() {
            let (value, after) =
                varint(after).ok_or_else(|| damaged("the description ends inside a number"))?;
            rest = after;
            match tag {
                0x08 if element.is_none() => {
                    let known = Element::of_number(value);
                    element = Some(known.ok_or_else(|| damaged(&format!("data type {value} is not known")))?);
                }
                0x10 if (value as i64) >= 0 => dims.push(value),
                0x10 => return Err(damaged(&format!("extent {} is negative", value as i64))),
                _ => {
                    return Err(damaged(&format!(
                        "the description has a field that is not known (tag {tag})"
                    )));
                }
            }
        }
        Ok((element.ok_or_else(|| damaged("the description has no data type"))?, dims))
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        value |= part.checked_shl(7 * at as u32).filter(|shifted| shifted >> (7 * at as u32) == part)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes one record.
///
/// # Errors
/// What the writer says.
pub fn write_record(out: &mut dyn Write, record: &Record) -> std::io::Result<()> {
    let mut head = Vec::new();
    head.extend(0u32.to_le_bytes());
    head.extend((record.lod.len() as u64).to_le_bytes());
    for level in &record.lod {
        head.extend((8 * level.len() as u64).to_le_bytes());
        head.extend(level.iter().flat_map(|offset| offset.to_le_bytes()));
    }
    head.extend(0u32.to_le_bytes());
    let mut description = vec![0x08];
    push_varint(&mut description, record.element.number());
    for dim in &record.dims {
        description.push(0x10);
        push_varint(&mut description, *dim);
    }
    head.extend((description.len() as u32).to_le_bytes());
    head.extend(description);
    out.write_all(&head)?;
    out.write_all(&record.bytes)
}

/// Hands every parameter of a program to `take`, read from a combined file; in memory is one at a time.
///
/// # Errors
/// A file that is damaged, or holds other parameters than the program's.
pub fn read_parameters<R: Read>(
    program: &Program,
    from: R,
    size: u64,
    take: &mut dyn FnMut(&Held, Record) -> Result<()>,
) -> Result<()> {
    let mut records = Records::new(from, size);
    let held = program.held();
    for held in &held {
        let record = records.next(&held.name)?;
        check(&records, held, &record)?;
        take(held, record)?;
    }
    if records.left() > 0 {
        let last = held.last().map_or_else(|| "(none)".to_string(), |held| held.name.to_string());
        let what = format!("{} bytes follow the last parameter of the program", records.left());
        return Err(records.damaged(&last, what));
    }
    Ok(())
}

fn check<R: Read>(records: &Records<R>, held: &Held, record: &Record) -> Result<()> {
    let Some(declared) = tensor_type(&held.value.ty) else { return Ok(()) };
    let fits = declared.element == record.element
        && declared.dims.len() == record.dims.len()
        && declared.dims.iter().zip(&record.dims).all(|(want, found)| *want == -1 || *want as u64 == *found);
    if fits {
        return Ok(());
    }
    Err(records.damaged(
        &held.name,
        format!("it is {} in the file and {declared} in the program", record.describe()),
    ))
}

/// Writes the parameters of a program as a combined file; `give` is asked for one at a time, in the file's order.
///
/// # Errors
/// What `give` or the writer says.
pub fn write_parameters(
    program: &Program,
    out: &mut dyn Write,
    give: &mut dyn FnMut(&Held) -> Result<Record>,
) -> Result<()> {
    for held in program.held() {
        let record = give(&held)?;
        write_record(out, &record)
            .map_err(|error| Error::State { what: format!("{}: {error}", held.name) })?;
    }
    Ok(())
}
