//! What can be wrong with a checkpoint.

use planaria_layout::{DType, Region, Shape};
use thiserror::Error;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A checkpoint that is refused, with the values that made it so.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage failed, or refused a file.
    #[error(transparent)]
    Store(#[from] planaria_store::Error),
    /// An array refused an operation.
    #[error(transparent)]
    Array(#[from] planaria_array::Error),
    /// The ranks could not work together, or another rank failed.
    #[error(transparent)]
    Comm(#[from] planaria_comm::Error),
    /// A mapping between checkpoints that does not hold.
    #[error(transparent)]
    Mapping(#[from] planaria_aoa::Error),
    /// A layout that cannot be saved or loaded.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
    /// A folder or file of no known format.
    #[error("'{at}' is not a checkpoint of a known format: {found}")]
    UnknownFormat {
        /// Where was looked.
        at: String,
        /// What lies there.
        found: String,
    },
    /// A conversion that cannot be done as asked.
    #[error("{what}")]
    Request {
        /// What was asked, and why it cannot be.
        what: String,
    },
    /// Values that could not be computed.
    #[error("'{tensor}': {what}")]
    Values {
        /// The tensor that was being written.
        tensor: String,
        /// What is wrong with it.
        what: String,
    },
    /// Work that was told to stop.
    #[error("stopped before the end; nothing was kept")]
    Stopped,
    /// A pickle that cannot be read.
    #[error("'{file}', byte {offset}: {problem}")]
    Pickle {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// A file whose content is not what its format says.
    #[error("'{file}' is malformed: {what}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A file whose content is valid but cannot be read in place.
    #[error("'{file}' cannot be read: {what}")]
    Unsupported {
        /// The file.
        file: String,
        /// What stands in the way, and what would help.
        what: String,
    },
    /// A save that was not finished, or lost a file since.
    #[error("the checkpoint is torn: {what}")]
    Torn {
        /// What is missing.
        what: String,
    },
    /// Several checkpoints where one was asked for.
    #[error("'{at}' holds several checkpoints ({found}); say which one")]
    Ambiguous {
        /// Where was looked.
        at: String,
        /// Which there are.
        found: String,
    },
    /// A tensor whose tiles overlap or leave a hole.
    #[error("tensor '{tensor}': {problem}")]
    Tiles {
        /// The tensor.
        tensor: String,
        /// What is wrong with its tiles.
        problem: planaria_layout::Error,
    },
    /// Two places that disagree about one tensor.
    #[error("tensor '{tensor}' has {what} {first} in '{first_file}' and {second} in '{second_file}'")]
    Mismatch {
        /// The tensor.
        tensor: String,
        /// What they disagree about.
        what: &'static str,
        /// One value.
        first: String,
        /// Where it stands.
        first_file: String,
        /// The other value.
        second: String,
        /// Where it stands.
        second_file: String,
    },
    /// Copies of one box with different bytes.
    #[error("copies of {region} of tensor '{tensor}' differ between '{first}' and '{second}'")]
    Conflict {
        /// The tensor.
        tensor: String,
        /// The box.
        region: Box<Region>,
        /// One file.
        first: String,
        /// The other file.
        second: String,
    },
    /// A tensor that is not there.
    #[error("there is no tensor '{tensor}'")]
    NoTensor {
        /// The name asked for.
        tensor: String,
    },
    /// Two tensors that ask for one name.
    #[error("tensor '{tensor}' appears twice, in '{first}' and in '{second}'")]
    Duplicate {
        /// The name.
        tensor: String,
        /// One file.
        first: String,
        /// The other file.
        second: String,
    },
    /// An array that does not have the extents of its box.
    #[error("tensor '{tensor}': the array has shape {found}, its box needs {expected}")]
    Piece {
        /// The tensor.
        tensor: String,
        /// Shape of the array.
        found: Shape,
        /// Extents of the box.
        expected: Shape,
    },
    /// An element type where another is needed.
    #[error("tensor '{tensor}' has dtype {found}, {expected} is needed")]
    DType {
        /// The tensor.
        tensor: String,
        /// What there is.
        found: DType,
        /// What is needed.
        expected: DType,
    },
    /// A shape where another is needed.
    #[error("tensor '{tensor}' has shape {found} in the checkpoint, {expected} is asked for")]
    ShapeOf {
        /// The tensor.
        tensor: String,
        /// Shape in the files.
        found: Shape,
        /// Shape asked for.
        expected: Shape,
    },
    /// Ranks that disagree about what they save together.
    #[error("ranks {first_rank} and {rank} disagree about {what}: {first} and {second}")]
    RanksDisagree {
        /// About what.
        what: String,
        /// One rank.
        first_rank: usize,
        /// What it says.
        first: String,
        /// Another.
        rank: usize,
        /// What that one says.
        second: String,
    },
    /// A rank that holds something else than the list that all ranks share says.
    #[error("tensor '{tensor}': rank {rank} holds {found}, the list of the state says {expected}")]
    NotAsKnown {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: usize,
        /// What it holds.
        found: String,
        /// What the list says.
        expected: String,
    },
    /// A tensor that a rank names twice.
    #[error("tensor '{tensor}' appears twice in the state of rank {rank}")]
    NamedTwice {
        /// The tensor.
        tensor: String,
        /// The rank.
        rank: usize,
    },
    /// A folder that holds a checkpoint already; those are never changed.
    #[error("'{folder}' already has a committed checkpoint; save to another folder")]
    Committed {
        /// The folder.
        folder: String,
    },
    /// A place where a result cannot be put.
    #[error("'{target}' {why}")]
    Occupied {
        /// The place.
        target: String,
        /// What stands against it.
        why: Obstacle,
    },
    /// Storage that is full before a result is whole. What was written of it is removed again.
    #[error(
        "there is no room for '{target}', which takes {needed} bytes: {message}; make room, or choose another place"
    )]
    NoRoom {
        /// The place.
        target: String,
        /// Bytes of all its files.
        needed: u64,
        /// The storage's words.
        message: String,
    },
    /// A folder without a commit mark.
    #[error("'{folder}' has no committed checkpoint: {why}")]
    NotCommitted {
        /// The folder.
        folder: String,
        /// What was found.
        why: String,
    },
    /// Bytes of a checkpoint that are not what was written.
    #[error(
        "{} damaged: block {block} of '{file}' (bytes {start}..{end}) has checksum \
         {found:08x}, expected {expected:08x}; load another checkpoint", few(.tensor)
    )]
    Damaged {
        /// The tensors that have bytes in the block.
        tensor: String,
        /// The file.
        file: String,
        /// Number of the block in it.
        block: u64,
        /// First byte of the block.
        start: u64,
        /// One past its last byte.
        end: u64,
        /// Checksum of the bytes.
        found: u32,
        /// Checksum they were written with.
        expected: u32,
    },
    /// A member of an archive whose bytes are not what was written.
    #[error(
        "{} damaged: member '{member}' of '{file}' (bytes {start}..{end}) has CRC-32 {found:08x}, \
         expected {expected:08x}; load another checkpoint", few(.tensor)
    )]
    Member {
        /// The tensors that have bytes in it; empty for a pickle.
        tensor: String,
        /// The file.
        file: String,
        /// Its name in the archive.
        member: String,
        /// Its first byte in the file.
        start: u64,
        /// One past its last byte.
        end: u64,
        /// CRC-32 of the bytes.
        found: u32,
        /// CRC-32 they were written with.
        expected: u32,
    },
    /// State of several tensors that a mapping makes one of, where they have to agree.
    #[error(
        "'{tensor}' cannot be made: '{first}' and '{second}' differ, and the mapping makes one tensor of theirs"
    )]
    Disagree {
        /// What was to be made.
        tensor: String,
        /// One of them.
        first: String,
        /// Another.
        second: String,
    },
    /// Another rank failed, or this one; all ranks have the same error.
    #[error("rank {rank} failed: {message}")]
    Rank {
        /// The rank, in the world.
        rank: usize,
        /// What kind of failure it is.
        kind: Trouble,
        /// What it said.
        message: String,
    },
    /// A small file whose name is taken or not allowed.
    #[error("the state's file '{name}' has a name that checkpoints use themselves; rename it")]
    FileName {
        /// The name.
        name: String,
    },
    /// An array that cannot be loaded into.
    #[error("tensor '{tensor}': an array with strides {strides:?} cannot be loaded into; make it contiguous")]
    NotWritable {
        /// The tensor.
        tensor: String,
        /// Its strides.
        strides: Vec<isize>,
    },
    /// A tensor of the state that a mapping does not carry to the files.
    #[error(
        "tensor '{tensor}' of the state is not carried by the mapping; map it, or drop it with `{tensor} -> _`"
    )]
    NotMapped {
        /// The tensor.
        tensor: String,
    },
    /// Options that exclude each other.
    #[error("{what}")]
    Options {
        /// Which, and what to choose instead.
        what: String,
    },
    /// A strict load that does not match.
    #[error("{}", unmatched(.missing, .unexpected))]
    Unmatched {
        /// Tensors asked for that the checkpoint lacks.
        missing: Vec<String>,
        /// Tensors of the checkpoint that nobody asked for.
        unexpected: Vec<String>,
    },
}

/// What stands against writing to a place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// Something is there, and nobody said that it may go.
    #[error("already exists")]
    Exists,
    /// What is there is more than a checkpoint.
    #[error("holds more than a checkpoint: {}", some(.others))]
    More {
        /// Files and empty folders that belong to no checkpoint.
        others: Vec<String>,
    },
    /// A folder of an object store that is not empty: such stores cannot exchange folders.
    #[error("is not empty")]
    NotEmpty,
    /// Another process writes to this folder of an object store, or died while it did.
    #[error("is being written by {owner}")]
    Claimed {
        /// Who.
        owner: String,
    },
    /// A file, not a folder.
    #[error("is a file")]
    File,
    /// A link to nothing.
    #[error("is a dangling link")]
    Link,
    /// No name that a folder can have.
    #[error("does not name a folder")]
    Name,
    /// The result would take the place of what it is made of.
    #[error("and '{input}' share files")]
    Read {
        /// What is read.
        input: String,
    },
    /// Somebody wrote there meanwhile; what they wrote is kept.
    #[error("was changed while its replacement was being written")]
    Changed,
}

/// The first few of some names.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(3).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(3) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Kinds of failure that a caller may act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trouble {
    /// The checkpoint is damaged, torn or contradicts itself: another one is needed.
    Damage,
    /// The storage failed; it may work later.
    Storage,
    /// Ranks lost each other.
    Ranks,
    /// What was asked for does not fit the checkpoint.
    Request,
}

impl Error {
    /// What kind of failure this is, on whichever rank it happened.
    pub fn trouble(&self) -> Trouble {
        use planaria_store::Error as Stored;
        match self {
            Error::Rank { kind, .. } => *kind,
            Error::Store(Stored::Header { .. } | Stored::OutOfFile { .. } | Stored::Checksum { .. })
            | Error::Pickle { .. }
            | Error::Malformed { .. }
            | Error::Torn { .. }
            | Error::Tiles { .. }
            | Error::Mismatch { .. }
            | Error::Conflict { .. }
            | Error::Duplicate { .. }
            | Error::Member { .. }
            | Error::Damaged { .. } => Trouble::Damage,
            Error::Store(
                Stored::NotFound { .. }
                | Stored::NotAFile { .. }
                | Stored::BadUrl { .. }
                | Stored::BadName { .. },
            ) => Trouble::Request,
            Error::Store(_) | Error::NoRoom { .. } => Trouble::Storage,
            Error::Comm(_) => Trouble::Ranks,
            _ => Trouble::Request,
        }
    }
}

/// The first few names of a list that is joined by `', '`, with the verb that fits: a block of a file may hold hundreds of
/// small tensors.
fn few(tensors: &str) -> String {
    let names: Vec<&str> = tensors.split("', '").collect();
    let shown = names.iter().take(3).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    match names.len() {
        1 if tensors.is_empty() => "the description of tensors is".to_string(),
        1 => format!("tensor {shown} is"),
        2 | 3 => format!("tensors {shown} are"),
        more => format!("tensors {shown} and {} more are", more - 3),
    }
}

/// A short list of both sides and what to do about them.
fn unmatched(missing: &[String], unexpected: &[String]) -> String {
    let list = |names: &[String]| {
        let shown = names.iter().take(4).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
        let more = names.len().saturating_sub(4);
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    };
    let mut words = Vec::new();
    if !missing.is_empty() {
        words.push(format!("the checkpoint is missing {}", list(missing)));
    }
    if !unexpected.is_empty() {
        let whose = if missing.is_empty() { "the checkpoint has" } else { "has" };
        words.push(format!("{whose} unexpected {}", list(unexpected)));
    }
    format!("{}; name what may differ in the options", words.join(" and "))
}
