//! `torch.save` files: zip archives of stored entries, whose data comes later.

use flate2::Crc;

/// Where tensor data starts: a multiple of this, as torch has it.
pub(super) const ALIGN: u64 = 64;
/// Largest number a 32-bit field holds; it says that the true one stands elsewhere.
const FULL: u64 = 0xffff_ffff;
/// 1980-01-01, the first day there is.
const DATE: u16 = 0x21;
/// Names are UTF-8.
const UTF8: u16 = 1 << 11;
/// Checksum and sizes follow the data.
const LATER: u16 = 1 << 3;

/// An entry of the archive.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    flags: u16,
    crc: u32,
    len: u64,
    header: u64,
}

/// An archive: what comes before the data is known, what comes after needs its checksum.
#[derive(Clone, Debug)]
pub(super) struct Archive {
    prefix: Vec<u8>,
    entries: Vec<Entry>,
    /// Bytes of the last entry, which follow the prefix.
    data: Option<u64>,
}

impl Archive {
    /// An archive with this pickle, and with `data` bytes of a tensor when it refers to one.
    pub(super) fn new(pickle: &[u8], data: Option<u64>) -> Archive {
        let mut archive = Archive { prefix: Vec::new(), entries: Vec::new(), data };
        let fixed: [(&str, &[u8]); 5] = [
            ("data.pkl", pickle),
            (".format_version", b"1"),
            (".storage_alignment", b"64"),
            ("byteorder", b"little"),
            ("version", b"3\n"),
        ];
        for (name, bytes) in fixed {
            let mut crc = Crc::new();
            crc.update(bytes);
            archive.open(name, 0, crc.sum(), bytes.len() as u64);
            archive.prefix.extend(bytes);
        }
        if let Some(len) = data {
            archive.open("data/0", LATER, 0, len);
        }
        archive
    }

    /// What stands before the data.
    pub(super) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Bytes of the tensor.
    pub(super) fn data_len(&self) -> u64 {
        self.data.unwrap_or(0)
    }

    /// Bytes after the data.
    pub(super) fn tail_len(&self) -> u64 {
        self.tail(0).len() as u64
    }

    /// Begins an entry, with padding in its header so that its bytes are aligned.
    fn open(&mut self, name: &str, flags: u16, crc: u32, len: u64) {
        let name = format!("archive/{name}");
        let header = self.prefix.len() as u64;
        let out = &mut self.prefix;
        let later = flags & LATER != 0;
        let wide = len >= FULL;
        let short = |value: u64| if wide { u32::MAX } else { value as u32 };
        let (stated_crc, stated_len) = if later { (0, 0) } else { (crc, len) };
        out.extend(b"PK\x03\x04");
        out.extend(if wide { 45u16 } else { 20 }.to_le_bytes());
        out.extend((flags | UTF8).to_le_bytes());
        out.extend([0; 4]);
        out.extend(DATE.to_le_bytes());
        out.extend(stated_crc.to_le_bytes());
        out.extend(short(stated_len).to_le_bytes());
        out.extend(short(stated_len).to_le_bytes());
        out.extend((name.len() as u16).to_le_bytes());
        let mut extra = Vec::new();
        if wide {
            extra.extend([1, 0, 16, 0]);
            extra.extend(stated_len.to_le_bytes());
            extra.extend(stated_len.to_le_bytes());
        }
        let start = out.len() as u64 + 2 + name.len() as u64 + extra.len() as u64 + 4;
        let padding = (start.next_multiple_of(ALIGN) - start) as u16;
        extra.extend(b"FB");
        extra.extend(padding.to_le_bytes());
        extra.resize(extra.len() + padding as usize, b'Z');
        out.extend((extra.len() as u16).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(extra);
        self.entries.push(Entry { name, flags: flags | UTF8, crc, len, header });
    }

    /// What stands after the data: its checksum and sizes, and the directory.
    pub(super) fn tail(&self, crc: u32) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(len) = self.data {
            out.extend(b"PK\x07\x08");
            out.extend(crc.to_le_bytes());
            for _ in 0..2 {
                match len >= FULL {
                    true => out.extend(len.to_le_bytes()),
                    false => out.extend((len as u32).to_le_bytes()),
                }
            }
        }
        let start = self.prefix.len() as u64 + self.data.unwrap_or(0) + out.len() as u64;
        let before = out.len();
        for entry in &self.entries {
            let crc = if entry.flags & LATER != 0 { crc } else { entry.crc };
            entry.directory(crc, &mut out);
        }
        end(self.entries.len() as u64, (out.len() - before) as u64, start, &mut out);
        out
    }
}

impl Entry {
    fn directory(&self, crc: u32, out: &mut Vec<u8>) {
        let wide = self.len >= FULL;
        let len = if wide { u32::MAX } else { self.len as u32 };
        out.extend(b"PK\x01\x02");
        out.extend(45u16.to_le_bytes());
        out.extend(if wide { 45u16 } else { 20 }.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend([0; 4]);
        out.extend(DATE.to_le_bytes());
        out.extend(crc.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend((self.name.len() as u16).to_le_bytes());
        out.extend(if wide { 20u16 } else { 0 }.to_le_bytes());
        out.extend([0; 10]);
        // The data comes last, so that no header is ever far from the start.
        out.extend((self.header as u32).to_le_bytes());
        out.extend(self.name.as_bytes());
        if wide {
            out.extend([1, 0, 16, 0]);
            out.extend(self.len.to_le_bytes());
            out.extend(self.len.to_le_bytes());
        }
    }
}

/// The end record, with its 64-bit form before it where the directory lies beyond 4 GiB.
fn end(count: u64, size: u64, start: u64, out: &mut Vec<u8>) {
    if start >= FULL {
        let record = start + size;
        out.extend(b"PK\x06\x06");
        out.extend(44u64.to_le_bytes());
        out.extend(45u16.to_le_bytes());
        out.extend(45u16.to_le_bytes());
        out.extend([0; 8]);
        for value in [count, count, size, start] {
            out.extend(value.to_le_bytes());
        }
        out.extend(b"PK\x06\x07");
        out.extend([0; 4]);
        out.extend(record.to_le_bytes());
        out.extend(1u32.to_le_bytes());
    }
    out.extend(b"PK\x05\x06");
    out.extend([0; 4]);
    out.extend((count as u16).to_le_bytes());
    out.extend((count as u16).to_le_bytes());
    out.extend((size as u32).to_le_bytes());
    out.extend((start.min(FULL) as u32).to_le_bytes());
    out.extend([0; 2]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::zip as read;
    use planaria_store::Reader;

    /// A file of which only the ends exist.
    #[derive(Debug)]
    struct Sparse {
        head: Vec<u8>,
        tail: Vec<u8>,
        size: u64,
    }

    impl Reader for Sparse {
        fn name(&self) -> &str {
            "sparse"
        }
        fn size(&self) -> u64 {
            self.size
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> planaria_store::Result<usize> {
            let tail_at = self.size - self.tail.len() as u64;
            let len = into.len().min((self.size - offset) as usize);
            for (i, byte) in into[..len].iter_mut().enumerate() {
                let at = offset + i as u64;
                *byte = match self.head.get(at as usize) {
                    Some(byte) => *byte,
                    None => at.checked_sub(tail_at).map_or(0, |at| self.tail[at as usize]),
                };
            }
            Ok(len)
        }
    }

    #[test]
    fn archives_of_any_size_are_read_back() {
        for len in [0, 24, FULL - 1, FULL, 5 << 32] {
            let archive = Archive::new(b"\x80\x02N.", Some(len));
            let tail = archive.tail(7);
            assert_eq!(tail.len() as u64, archive.tail_len());
            let head = archive.prefix().to_vec();
            assert!((head.len() as u64).is_multiple_of(ALIGN), "data is aligned");
            let size = head.len() as u64 + len + tail.len() as u64;
            let file = Sparse { head: head.clone(), tail, size };
            let opened = read::Archive::open(&file, 0..size).unwrap();
            let data = opened.require("data/0").unwrap();
            assert_eq!(data, head.len() as u64..head.len() as u64 + len);
            let pickle = opened.require("data.pkl").unwrap();
            assert_eq!(pickle.end - pickle.start, 4);
        }
    }
}
