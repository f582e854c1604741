//! Files that may be compressed: gzip and Zstandard are known by their first bytes, which no UTF-8 text begins with.

use super::zstandard::Frames;
use crate::error::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use planaria_store::open_file;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

/// What names of compressed files end in, after the ending of what is compressed.
pub(super) const ENDINGS: [&str; 3] = [".gz", ".zst", ".zstd"];

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTANDARD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Bytes read at a time.
const BUFFER: usize = 1 << 18;

/// A file that is read from its beginning to its end, decompressed.
pub(super) struct Input {
    pub(super) reader: Box<dyn BufRead>,
    pub(super) origin: Origin,
}

/// Where bytes come from, for messages.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) path: PathBuf,
    /// The name of the compression, if there is one.
    form: Option<&'static str>,
}

impl Input {
    pub(super) fn open(path: &Path) -> Result<Input> {
        let file = open_file(path).map_err(Error::io("open", path))?;
        let mut plain = BufReader::with_capacity(BUFFER, file);
        let first = plain.fill_buf().map_err(Error::io("read", path))?;
        let (gzip, zstandard) = (first.starts_with(GZIP), first.starts_with(ZSTANDARD));
        let (reader, form): (Box<dyn BufRead>, _) = if gzip {
            (Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain))), Some("gzip"))
        } else if zstandard {
            (Box::new(BufReader::with_capacity(BUFFER, Frames::new(plain))), Some("Zstandard"))
        } else {
            (Box::new(plain), None)
        };
        Ok(Input { reader, origin: Origin { path: path.to_path_buf(), form } })
    }
}

impl Origin {
    /// A read that failed: of the system, or because what is compressed is damaged.
    pub(super) fn failed(&self, error: io::Error) -> Error {
        let path = self.path.clone();
        match self.form {
            // Decoders have no number of the system in their errors.
            Some(form) if error.raw_os_error().is_none() => {
                Error::Compressed { path, form, problem: error.to_string() }
            }
            _ => Error::Io { op: "read", path, error },
        }
    }
}
