//! What can be wrong with shapes, meshes, layouts and their text forms.

use thiserror::Error;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An input the layout algebra refuses, with the values that made it so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A shape whose element count does not fit in memory addresses.
    #[error("shape {shape:?} has too many elements for a 64-bit address space")]
    ShapeTooLarge {
        /// The refused shape.
        shape: Vec<usize>,
    },
    /// A text form that does not parse.
    #[error("cannot read {what} from '{text}': {reason}")]
    Parse {
        /// The type that was expected.
        what: &'static str,
        /// The text as given.
        text: String,
        /// What is wrong and what would be right.
        reason: String,
    },
}
