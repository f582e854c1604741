//! What can be wrong with a checkpoint.

use planaria_layout::Region;
use thiserror::Error;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A checkpoint that is refused, with the values that made it so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage failed, or refused a file.
    #[error(transparent)]
    Store(#[from] planaria_store::Error),
    /// A mapping between checkpoints that does not hold.
    #[error(transparent)]
    Mapping(#[from] planaria_aoa::Error),
    /// A folder or file of no known format.
    #[error("'{at}' is no checkpoint of a known format: {found}")]
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
    #[error("tensor '{tensor}' stands twice, in '{first}' and in '{second}'")]
    Duplicate {
        /// The name.
        tensor: String,
        /// One file.
        first: String,
        /// The other file.
        second: String,
    },
}
