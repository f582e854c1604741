//! Zip archives whose entries are stored, not compressed: what `torch.save` writes.

use crate::error::{Error, Result};
use planaria_store::Reader;
use std::collections::HashMap;
use std::ops::Range;

/// Largest central directory that is read.
const DIRECTORY: u64 = 256 << 20;
/// The end record with the longest comment.
const TAIL: u64 = 22 + 65_535;

/// An entry of an archive.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Of the local header, from the start of the archive.
    header: u64,
    len: u64,
    method: u16,
    /// Its bytes are not what it holds.
    encrypted: bool,
    /// CRC-32 of its bytes.
    crc: u32,
}

/// An entry and where its bytes lie in the file.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) range: Range<u64>,
    /// CRC-32 they were written with.
    pub(super) crc: u32,
}

/// An archive inside a file; DCP puts many of them one after the other.
pub(super) struct Archive<'a> {
    file: &'a dyn Reader,
    range: Range<u64>,
    entries: HashMap<String, Entry>,
    /// Folder of the entries, as torch names it after the file.
    folder: String,
}

/// Little-endian numbers of a record; reading past its end is an error, not a panic.
struct Record<'a>(&'a [u8]);

impl Record<'_> {
    fn number<const N: usize>(&self, at: usize) -> Option<u64> {
        let bytes = self.0.get(at..at.checked_add(N)?)?;
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(bytes);
        Some(u64::from_le_bytes(wide))
    }
}

/// Whether a file starts like a zip archive.
pub(super) fn looks_like_zip(file: &dyn Reader) -> Result<bool> {
    let mut start = [0; 4];
    Ok(file.read_at(0, &mut start)? == 4 && &start == b"PK\x03\x04")
}

impl Member {
    /// Whether it was written with a checksum: torch can be told to leave them out, and writes 0 then.
    pub(super) fn is_summed(&self) -> bool {
        self.crc != 0 && !self.range.is_empty()
    }
}

impl<'a> Archive<'a> {
    /// Reads the directory of the archive that fills `range` of the file.
    pub(super) fn open(file: &'a dyn Reader, range: Range<u64>) -> Result<Archive<'a>> {
        if range.start > range.end || range.end > file.size() {
            let what = format!("an archive is said to be at {range:?}, the file has {} bytes", file.size());
            return Err(Error::Torn { what: format!("'{}': {what}", file.name()) });
        }
        let mut archive = Archive { file, range, entries: HashMap::new(), folder: String::new() };
        archive.read_directory()?;
        let root = archive.entries.keys().find_map(|name| name.strip_suffix("data.pkl").map(str::to_string));
        archive.folder = root.ok_or_else(|| archive.malformed("the archive has no data.pkl"))?;
        if let Some((span, _)) = archive.find("byteorder")?
            && file.read(span.start, (span.end - span.start).min(16) as usize)? != b"little"
        {
            return Err(archive.unsupported("its numbers are big-endian"));
        }
        Ok(archive)
    }

    fn malformed(&self, what: impl Into<String>) -> Error {
        Error::Malformed { file: self.file.name().to_string(), what: what.into() }
    }

    fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::Unsupported { file: self.file.name().to_string(), what: what.into() }
    }

    /// Bytes at an offset from the start of the archive.
    fn read(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        let start = self.range.start.checked_add(at);
        match start.and_then(|start| Some((start, start.checked_add(len)?))) {
            Some((start, end)) if end <= self.range.end => Ok(self.file.read(start, len as usize)?),
            _ => Err(self.malformed("the archive points outside itself")),
        }
    }

    fn read_directory(&mut self) -> Result<()> {
        let (count, size, at) = self.find_directory()?;
        if size > DIRECTORY {
            return Err(self.unsupported(format!("its directory has {size} bytes")));
        }
        let bytes = self.read(at, size)?;
        let mut rest = &bytes[..];
        for _ in 0..count {
            let (name, entry, used) =
                directory_entry(rest).ok_or_else(|| self.malformed("the archive's directory is broken"))?;
            if self.entries.insert(name, entry).is_some() {
                return Err(self.malformed("the archive has two entries of one name"));
            }
            rest = &rest[used..];
        }
        Ok(())
    }

    /// Number of entries, size and place of the directory.
    fn find_directory(&self) -> Result<(u64, u64, u64)> {
        let len = self.range.end - self.range.start;
        let torn = || Error::Torn { what: format!("'{}': an archive has no end record", self.file.name()) };
        // Without a comment the end record is the end; only others need the long look back.
        let mut found = None;
        for tail_len in [22.min(len), TAIL.min(len)] {
            let tail = self.read(len - tail_len, tail_len)?;
            // The comment after the end record must reach exactly to the end.
            let end = (0..tail.len().saturating_sub(21)).rev().find(|&at| {
                tail[at..].starts_with(b"PK\x05\x06")
                    && Record(&tail).number::<2>(at + 20) == Some((tail.len() - at - 22) as u64)
            });
            found = end.map(|end| (len - tail_len + end as u64, tail[end..].to_vec()));
            if found.is_some() {
                break;
            }
        }
        let (end, record) = found.ok_or_else(torn)?;
        let record = Record(&record);
        let field = |value: Option<u64>| value.ok_or_else(torn);
        let short =
            (field(record.number::<2>(10))?, field(record.number::<4>(12))?, field(record.number::<4>(16))?);
        // A locator just before means that the true numbers are in a 64-bit record.
        let Some(locator) = end.checked_sub(20) else { return Ok(short) };
        let locator = self.read(locator, 20)?;
        if !locator.starts_with(b"PK\x06\x07") {
            return Ok(short);
        }
        let wide = self.read(field(Record(&locator).number::<8>(8))?, 56)?;
        if !wide.starts_with(b"PK\x06\x06") {
            return Err(self.malformed("the archive's 64-bit end record is broken"));
        }
        let wide = Record(&wide);
        Ok((field(wide.number::<8>(32))?, field(wide.number::<8>(40))?, field(wide.number::<8>(48))?))
    }

    /// Where the bytes of an entry lie in the file, and whether there is such an entry.
    pub(super) fn find(&self, name: &str) -> Result<Option<(Range<u64>, u64)>> {
        let Some(entry) = self.entries.get(&format!("{}{name}", self.folder)) else { return Ok(None) };
        if entry.encrypted {
            return Err(self.unsupported(format!("entry '{name}' is encrypted")));
        }
        if entry.method != 0 {
            return Err(self.unsupported(format!(
                "entry '{name}' is compressed, so tensors cannot be read in place; save it again without compression"
            )));
        }
        // The local header repeats the name and has padding of its own.
        let local = self.read(entry.header, 30)?;
        let local = Record(&local);
        let lengths = (local.number::<4>(0), local.number::<2>(26), local.number::<2>(28));
        let (Some(0x0403_4b50), Some(name_len), Some(extra_len)) = lengths else {
            return Err(self.malformed(format!("entry '{name}' has no header")));
        };
        let start = self.range.start + entry.header + 30 + name_len + extra_len;
        match start.checked_add(entry.len) {
            Some(end) if end <= self.range.end => Ok(Some((start..end, entry.len))),
            _ => Err(self.malformed(format!("entry '{name}' reaches past the archive"))),
        }
    }

    /// All entries, in the order of their bytes.
    pub(super) fn members(&self) -> Result<Vec<Member>> {
        let mut members = Vec::with_capacity(self.entries.len());
        for (name, entry) in &self.entries {
            let short = name.strip_prefix(self.folder.as_str());
            // What lies outside the folder is none of torch's.
            let Some((range, _)) = short.map(|short| self.find(short)).transpose()?.flatten() else {
                continue;
            };
            members.push(Member { name: name.clone(), range, crc: entry.crc });
        }
        members.sort_by_key(|member| member.range.start);
        Ok(members)
    }

    /// An entry that must be there, with its checksum.
    pub(super) fn member(&self, name: &str) -> Result<Member> {
        let (range, name) = (self.require(name)?, format!("{}{name}", self.folder));
        let crc = self.entries.get(&name).map_or(0, |entry| entry.crc);
        Ok(Member { name, range, crc })
    }

    /// Like [`Archive::find`] for an entry that must be there.
    pub(super) fn require(&self, name: &str) -> Result<Range<u64>> {
        let found = self.find(name)?;
        found
            .map(|(range, _)| range)
            .ok_or_else(|| self.malformed(format!("the archive has no entry '{name}'")))
    }

    /// The file the archive lies in.
    pub(super) fn file(&self) -> &'a dyn Reader {
        self.file
    }
}

/// One entry of the directory and the bytes it takes there.
fn directory_entry(bytes: &[u8]) -> Option<(String, Entry, usize)> {
    let record = Record(bytes);
    if record.number::<4>(0)? != 0x0201_4b50 {
        return None;
    }
    // Bits 0 and 6: encrypted, and encrypted in a newer way.
    let encrypted = record.number::<2>(8)? & 0x41 != 0;
    let method = record.number::<2>(10)? as u16;
    let crc = record.number::<4>(16)? as u32;
    let (stored, len) = (record.number::<4>(20)?, record.number::<4>(24)?);
    let name_len = record.number::<2>(28)? as usize;
    let extra_len = record.number::<2>(30)? as usize;
    let comment_len = record.number::<2>(32)? as usize;
    let mut header = record.number::<4>(42)?;
    let name = std::str::from_utf8(bytes.get(46..46 + name_len)?).ok()?.to_string();
    let mut extra = bytes.get(46 + name_len..46 + name_len + extra_len)?;
    let (mut len, stored) = (len, stored);
    // Values that do not fit in 32 bits stand in a field of their own, in this order.
    const FULL: u64 = 0xffff_ffff;
    while extra.len() >= 4 {
        let field = Record(extra);
        let (id, size) = (field.number::<2>(0)?, field.number::<2>(2)? as usize);
        let body = Record(extra.get(4..4 + size)?);
        if id == 1 {
            let mut at = 0;
            for (value, needed) in [(Some(&mut len), true), (None, stored == FULL), (Some(&mut header), true)]
            {
                let wide = value.as_ref().map_or(needed, |value| **value == FULL);
                if wide {
                    let read = body.number::<8>(at)?;
                    at += 8;
                    if let Some(value) = value {
                        *value = read;
                    }
                }
            }
        }
        extra = &extra[4 + size..];
    }
    let used = 46 + name_len + extra_len + comment_len;
    (bytes.len() >= used).then_some((name, Entry { header, len, method, encrypted, crc }, used))
}
