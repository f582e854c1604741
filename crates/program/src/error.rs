//! What can be wrong with programs and their files.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with programs and their files; each says where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not JSON, or not that of a program.
    #[error("{what}, at byte {offset} of the program file; save the program again")]
    Syntax {
        /// Bytes before the place.
        offset: usize,
        /// What is wrong there.
        what: String,
    },
    /// The text form of a program cannot be parsed.
    #[error("{what}, in line {line} of the program's text")]
    Text {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// The file is of a version that is not known.
    #[error("the program file has version {found}, and versions {oldest} to {newest} are supported; {}", if found > newest {
        "write it again with an older Paddle, or read it with a newer planaria"
    } else {
        "write it again with Paddle 3.0 or newer"
    })]
    Version {
        /// The version of the file.
        found: u64,
        /// The oldest that can be read.
        oldest: u64,
        /// The newest that can be read.
        newest: u64,
    },
    /// The program is not well formed.
    #[error("{place}: {what}{}", match more { 0 => String::new(), n => format!(" (and {n} more; `planaria program verify` lists them)") })]
    Invalid {
        /// The op or block.
        place: String,
        /// What is wrong with it.
        what: String,
        /// How many other things are wrong.
        more: usize,
    },
    /// A patch cannot be applied.
    #[error("{place}: {what}")]
    Patch {
        /// The op, or the patch.
        place: String,
        /// Why it cannot be applied.
        what: String,
    },
    /// A file of parameters is damaged, or belongs to another program.
    #[error(
        "parameter {name}: {what}, at byte {offset} of the parameter file; export program and parameters together again"
    )]
    Parameter {
        /// The parameter.
        name: String,
        /// Bytes before the place.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A parameter or an input that was not given, or not asked for, or has another type.
    #[error("{what}")]
    State {
        /// Which, and what is wrong with it.
        what: String,
    },
    /// An op cannot be run.
    #[error("{place}: {what}")]
    Run {
        /// The op.
        place: String,
        /// Why.
        what: String,
    },
    /// An op on arrays failed.
    #[error("{place}: {source}")]
    Array {
        /// The op.
        place: String,
        /// What the array library said.
        source: planaria_array::Error,
    },
    /// An ONNX model that cannot be read, or a program that cannot be written as one.
    #[error("{place}: {what}")]
    Onnx {
        /// The op or node.
        place: String,
        /// Why.
        what: String,
    },
    /// An op on tensors failed.
    #[error("{place}: {source}")]
    Tensor {
        /// The op.
        place: String,
        /// What the tensor library said.
        source: planaria_tensor::Error,
    },
    /// A function cannot be captured as a program.
    #[error("{place}: {what}")]
    Capture {
        /// The op, and its place among those that ran.
        place: String,
        /// Why, and what to do.
        what: String,
    },
    /// The function that was captured failed.
    #[error("the captured function failed: {0}")]
    Captured(Box<dyn std::error::Error + Send + Sync>),
    /// A store of files failed.
    #[error(transparent)]
    Store(#[from] planaria_store::Error),
}
