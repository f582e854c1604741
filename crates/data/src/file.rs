//! Token files: a header, the token ids, where each document starts.
//!
//! All numbers are little-endian. 64 bytes of header: the magic `PLTOKENS`, version u32, bytes per token u32 (2 or 4),
//! vocabulary u64, tokens u64, documents u64, CRC-32C of everything after the header u32, fingerprint of the tokenizer
//! u32, 12 zero bytes, CRC-32C of the first 60 bytes. Then the tokens, zeros up to a multiple of 8, and one u64 per
//! document: the position of its first token.

use super::error::{Error, Result};
use super::map::Map;
use planaria_store::{checksum, open_file};
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"PLTOKENS";
const VERSION: u32 = 1;
const HEADER: usize = 64;

/// What the header of a token file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of one token: 2 or 4.
    pub width: u32,
    /// Size of the vocabulary: all tokens are below it.
    pub vocab: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of documents.
    pub documents: u64,
    /// CRC-32C of everything after the header.
    pub sum: u32,
    /// Fingerprint of the tokenizer, 0 if unknown.
    pub tokenizer: u32,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.width.to_le_bytes());
        out[16..24].copy_from_slice(&self.vocab.to_le_bytes());
        out[24..32].copy_from_slice(&self.tokens.to_le_bytes());
        out[32..40].copy_from_slice(&self.documents.to_le_bytes());
        out[40..44].copy_from_slice(&self.sum.to_le_bytes());
        out[44..48].copy_from_slice(&self.tokenizer.to_le_bytes());
        let sum = checksum::crc32c(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    fn parse(bytes: &[u8]) -> Result<Header, String> {
        let Some(bytes) = bytes.get(..HEADER) else {
            return Err(format!("it has {} bytes, the header alone has {HEADER}", bytes.len()));
        };
        if bytes[..8] != *MAGIC {
            return Err("it does not begin with PLTOKENS".into());
        }
        let header = Header {
            width: word(bytes, 12),
            vocab: long(bytes, 16),
            tokens: long(bytes, 24),
            documents: long(bytes, 32),
            sum: word(bytes, 40),
            tokenizer: word(bytes, 44),
        };
        let version = word(bytes, 8);
        if version != VERSION {
            return Err(format!("it has version {version}, this program reads version {VERSION}"));
        }
        if word(bytes, HEADER - 4) != checksum::crc32c(&bytes[..HEADER - 4]) {
            return Err("the checksum of its header does not match".into());
        }
        if !matches!(header.width, 2 | 4) {
            return Err(format!("tokens of {} bytes are not known", header.width));
        }
        Ok(header)
    }

    /// Offset of the document starts, if it fits 64 bits.
    fn starts_at(&self) -> Option<u64> {
        let tokens = self.tokens.checked_mul(u64::from(self.width))?;
        tokens.checked_next_multiple_of(8)?.checked_add(HEADER as u64)
    }

    fn size(&self) -> Option<u64> {
        self.starts_at()?.checked_add(self.documents.checked_mul(8)?)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// An open token file.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    header: Header,
    map: Map,
    starts_at: usize,
}

impl TokenFile {
    /// Opens a token file and checks its header and length. Nothing else is read.
    pub fn open(path: &Path) -> Result<TokenFile> {
        let file = open_file(path).map_err(Error::io("open", path))?;
        let size = file.metadata().map_err(Error::io("open", path))?.len();
        if size < HEADER as u64 {
            let problem = format!("it has {size} bytes, the header alone has {HEADER}");
            return Err(Error::token_file(path, problem));
        }
        let map = Map::new(&file).map_err(Error::io("map", path))?;
        let header = Header::parse(map.bytes()).map_err(|problem| Error::token_file(path, problem))?;
        let expected = header.size();
        if expected != Some(size) {
            let expected = expected.map_or("more than 2^64".into(), |n| n.to_string());
            let problem = format!("it has {size} bytes, its header says {expected}: it was cut or extended");
            return Err(Error::token_file(path, problem));
        }
        let starts_at = header.starts_at().unwrap_or(size) as usize;
        Ok(TokenFile { path: path.to_path_buf(), header, map, starts_at })
    }

    /// The header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends tokens `start..end`, which must exist.
    pub(super) fn read(&self, start: u64, end: u64, out: &mut Vec<u32>) {
        let width = self.header.width as usize;
        let bytes = &self.map.bytes()[HEADER + start as usize * width..HEADER + end as usize * width];
        if width == 2 {
            out.extend(bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))));
        } else {
            out.extend(bytes.chunks_exact(4).map(|b| word(b, 0)));
        }
    }

    /// Position of the first token of document `i`, which must exist.
    pub(super) fn start(&self, i: u64) -> u64 {
        long(self.map.bytes(), self.starts_at + i as usize * 8)
    }

    /// Reads everything and compares checksum, vocabulary and document starts.
    pub fn verify(&self) -> Result<()> {
        let sum = checksum::crc32c(&self.map.bytes()[HEADER..]);
        if sum != self.header.sum {
            let problem = format!("its checksum is {sum:08x}, the header says {:08x}", self.header.sum);
            return Err(Error::token_file(&self.path, problem));
        }
        let mut before = None;
        for i in 0..self.header.documents {
            let start = self.start(i);
            if start >= self.header.tokens || before.is_some_and(|b| start <= b) || (i == 0 && start != 0) {
                return Err(Error::token_file(
                    &self.path,
                    format!("document {i} cannot start at token {start}"),
                ));
            }
            before = Some(start);
        }
        Ok(())
    }
}

/// Bytes of a token.
fn width_of(vocab: u64) -> usize {
    if vocab <= 1 << 16 { 2 } else { 4 }
}

/// The checksum that a file of these tokens would have, so that data is the same whether it is held or mapped.
pub(super) fn content_sum(vocab: u64, tokens: &[u32], starts: &[u64]) -> u32 {
    let width = width_of(vocab);
    let mut sum = 0;
    for piece in tokens.chunks(1 << 14) {
        let bytes: Vec<u8> = piece.iter().flat_map(|t| t.to_le_bytes().into_iter().take(width)).collect();
        sum = checksum::append(sum, &bytes);
    }
    let written = tokens.len() * width;
    sum = checksum::append(sum, &[0; 8][..written.next_multiple_of(8) - written]);
    for piece in starts.chunks(1 << 13) {
        let bytes: Vec<u8> = piece.iter().flat_map(|start| start.to_le_bytes()).collect();
        sum = checksum::append(sum, &bytes);
    }
    sum
}

/// Writes a token file document by document. Nothing stands under its name before [`TokenWriter::finish`].
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    body: Part,
    starts: Part,
    header: Header,
}

/// A temporary file that is removed unless it is kept.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl Part {
    fn create(path: PathBuf) -> Result<Part> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(Error::io("create", &path))?;
        Ok(Part { path, file: Some(BufWriter::with_capacity(1 << 20, file)) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(Error::io("write", &self.path))
    }

    /// The file behind the buffer, everything written.
    fn flush(&mut self) -> Result<File> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let file = self.file.take().ok_or_else(gone).and_then(|f| f.into_inner().map_err(|e| e.into_error()));
        file.map_err(Error::io("write", &self.path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After a rename the name is free, and there is nothing to remove.
        let _ = fs::remove_file(&self.path);
    }
}

impl TokenWriter {
    /// Begins a file. Tokens take two bytes where the vocabulary allows it.
    pub fn create(path: &Path, vocab: u64, tokenizer: u32) -> Result<TokenWriter> {
        // Threads and processes may write the same cache at once; the last one to finish stays.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let beside = |ending: &str| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!(".{name}.{}-{number}.{ending}", std::process::id()))
        };
        let width = width_of(vocab) as u32;
        let header = Header { width, vocab, tokens: 0, documents: 0, sum: 0, tokenizer };
        let mut body = Part::create(beside("tokens"))?;
        body.write(&[0; HEADER])?;
        Ok(TokenWriter { path: path.to_path_buf(), body, starts: Part::create(beside("starts"))?, header })
    }

    /// Appends a document. Empty ones are left out.
    pub fn push(&mut self, tokens: &[u32]) -> Result<()> {
        let Some(index) = tokens.iter().position(|&t| u64::from(t) >= self.header.vocab) else {
            return self.append(tokens);
        };
        let (origin, vocab) = (self.path.display().to_string(), self.header.vocab);
        let index_in_file = self.header.tokens + index as u64;
        Err(Error::OutOfVocabulary { origin, index: index_in_file, token: tokens[index], vocab })
    }

    fn append(&mut self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.starts.write(&self.header.tokens.to_le_bytes())?;
        let width = self.header.width as usize;
        let mut bytes = Vec::with_capacity(tokens.len().min(1 << 16) * width);
        for piece in tokens.chunks(1 << 16) {
            bytes.clear();
            piece.iter().for_each(|t| bytes.extend_from_slice(&t.to_le_bytes()[..width]));
            self.header.sum = checksum::append(self.header.sum, &bytes);
            self.body.write(&bytes)?;
        }
        self.header.tokens += tokens.len() as u64;
        self.header.documents += 1;
        Ok(())
    }

    /// Writes what is left, makes it durable and gives the file its name.
    pub fn finish(mut self) -> Result<Header> {
        let written = self.header.tokens * u64::from(self.header.width);
        let zeros = [0u8; 8];
        let fill = (written.next_multiple_of(8) - written) as usize;
        self.body.write(&zeros[..fill])?;
        self.header.sum = checksum::append(self.header.sum, &zeros[..fill]);
        self.append_starts()?;
        let mut file = self.body.flush()?;
        let header = self.header.to_bytes();
        let done = file
            .seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&header))
            .and_then(|()| file.sync_all());
        done.map_err(Error::io("write", &self.body.path))?;
        fs::rename(&self.body.path, &self.path).map_err(Error::io("create", &self.path))?;
        Ok(self.header)
    }

    fn append_starts(&mut self) -> Result<()> {
        let mut file = self.starts.flush()?;
        file.seek(SeekFrom::Start(0)).map_err(Error::io("read", &self.starts.path))?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let got = io::Read::read(&mut file, &mut buffer).map_err(Error::io("read", &self.starts.path))?;
            if got == 0 {
                return Ok(());
            }
            self.header.sum = checksum::append(self.header.sum, &buffer[..got]);
            self.body.write(&buffer[..got])?;
        }
    }
}
