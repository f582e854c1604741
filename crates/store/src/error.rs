//! What can go wrong with stores and the files in them.

use std::io;
use thiserror::Error;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed operation or a refused file, with the values that made it so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such file.
    #[error("'{name}' does not exist")]
    NotFound {
        /// The file asked for.
        name: String,
    },
    /// The file exists and must not be replaced.
    #[error("'{name}' already exists")]
    AlreadyExists {
        /// The file.
        name: String,
    },
    /// A name that could leave the store or that some store cannot hold.
    #[error("'{name}' is not a valid file name in a store: {reason}")]
    BadName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Something else in the place of a file, which may never end or never begin.
    #[error("'{name}' is {what}, not a file")]
    NotAFile {
        /// The name asked for.
        name: String,
        /// What it is, as in `a pipe`.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {op} '{name}': {message}")]
    Io {
        /// The file.
        name: String,
        /// What was tried.
        op: &'static str,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        message: String,
    },
    /// The object store refused or could not be reached.
    #[error("cannot {op} '{name}': {message}")]
    Remote {
        /// The object.
        name: String,
        /// What was tried.
        op: &'static str,
        /// The store's words.
        message: String,
        /// Whether trying again may help.
        transient: bool,
    },
    /// The caller said that nothing more should be written.
    #[error("stopped before '{name}' was written")]
    Stopped {
        /// The file that would have been next.
        name: String,
    },
    /// Retries did not help within their time.
    #[error("gave up after {tries} tries in {seconds} s: {last}")]
    GaveUp {
        /// Tries made.
        tries: u32,
        /// Seconds spent.
        seconds: u64,
        /// The last failure.
        last: Box<Error>,
    },
    /// A range that is not inside the file.
    #[error("bytes {offset}..{} of '{name}' are outside the file of {size} bytes", offset.saturating_add(*len))]
    OutOfFile {
        /// The file.
        name: String,
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// Size of the file.
        size: u64,
    },
    /// A file larger than the caller accepts.
    #[error("'{name}' has {size} bytes, at most {limit} are accepted")]
    TooLarge {
        /// The file.
        name: String,
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// A file that was finished before all of it was written.
    #[error("'{name}' was finished with {written} of {len} bytes written")]
    Incomplete {
        /// The file.
        name: String,
        /// Bytes written.
        written: u64,
        /// Bytes announced.
        len: u64,
    },
    /// Something this store cannot do.
    #[error("{store} cannot {what}")]
    Unsupported {
        /// The store.
        store: String,
        /// What was asked of it.
        what: &'static str,
    },
    /// A URL that names no store.
    #[error("cannot open '{url}': {reason}")]
    BadUrl {
        /// The URL as given.
        url: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A container file that is refused.
    #[error("'{name}' is not a valid safetensors file: {problem}")]
    Header {
        /// The file.
        name: String,
        /// What is wrong with it.
        problem: HeaderProblem,
    },
    /// Bytes that do not have the checksum they were written with.
    #[error("bytes {start}..{end} of '{name}' are damaged: checksum {found:08x}, expected {expected:08x}")]
    Checksum {
        /// The file.
        name: String,
        /// First byte of the block.
        start: u64,
        /// One past its last byte.
        end: u64,
        /// Checksum of the bytes.
        found: u32,
        /// Checksum they should have.
        expected: u32,
    },
    /// A failure made on purpose by [`crate::Faulty`].
    #[error("injected failure at operation {operation}: {what}")]
    Injected {
        /// Number of the operation, from 0.
        operation: u64,
        /// What was being done.
        what: &'static str,
        /// Whether trying again may help.
        transient: bool,
    },
}

/// What is wrong with the header of a container.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderProblem {
    /// The file ends before the header does.
    #[error("the file has {size} bytes, the header needs {needed}")]
    Truncated {
        /// Size of the file.
        size: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A header over the limit.
    #[error("the header has {len} bytes, at most {limit} are accepted")]
    TooLarge {
        /// Header size.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// More tensors than accepted.
    #[error("more than {limit} tensors")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// Text that is not the JSON of a header.
    #[error("{0}")]
    Json(String),
    /// A name that appears twice.
    #[error("tensor '{tensor}' appears twice")]
    Duplicate {
        /// The tensor.
        tensor: String,
    },
    /// An element type this version does not know.
    #[error("tensor '{tensor}' has the unknown dtype '{dtype}'")]
    UnknownDType {
        /// The tensor.
        tensor: String,
        /// The dtype as written.
        dtype: String,
    },
    /// A shape with too many dims or elements.
    #[error("tensor '{tensor}' has shape {shape:?}, which is too large for any memory")]
    BadShape {
        /// The tensor.
        tensor: String,
        /// The shape as written.
        shape: Vec<u64>,
    },
    /// A byte range that does not fit its shape.
    #[error("tensor '{tensor}' has {found} bytes, its shape and dtype need {expected}")]
    BadLength {
        /// The tensor.
        tensor: String,
        /// Bytes by its offsets.
        found: u64,
        /// Bytes by its shape.
        expected: u64,
    },
    /// Offsets in the wrong order or past the end of the file.
    #[error("tensor '{tensor}' lies at {start}..{end} of {size} data bytes")]
    OutOfFile {
        /// The tensor.
        tensor: String,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Data bytes in the file.
        size: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors '{first}' and '{second}' overlap")]
    Overlap {
        /// One tensor.
        first: String,
        /// The other.
        second: String,
    },
    /// Bytes that belong to no tensor.
    #[error("data bytes {start}..{end} belong to no tensor")]
    Hole {
        /// First such byte.
        start: u64,
        /// One past the last.
        end: u64,
    },
}

impl Error {
    pub(crate) fn io(name: &str, op: &'static str, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::NotFound => Error::NotFound { name: name.to_string() },
            io::ErrorKind::AlreadyExists => Error::AlreadyExists { name: name.to_string() },
            kind => Error::Io { name: name.to_string(), op, kind, message: error.to_string() },
        }
    }

    /// Whether the same operation may succeed if tried again.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Remote { transient, .. } | Error::Injected { transient, .. } => *transient,
            Error::Io { kind, .. } => {
                matches!(
                    kind,
                    io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
                )
            }
            _ => false,
        }
    }
}
