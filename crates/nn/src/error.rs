//! What can be wrong with a model's configuration, its parameters or its inputs.

use thiserror::Error;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused model, parameter or call. It is the same on every rank.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An op on tensors refused, or a peer was lost.
    #[error(transparent)]
    Tensor(#[from] planaria_tensor::Error),
    /// A local kernel refused.
    #[error(transparent)]
    Array(#[from] planaria_array::Error),
    /// The layout algebra refused.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
    /// A peer was lost, did not come, or disagreed.
    #[error(transparent)]
    Comm(#[from] planaria_comm::Error),
    /// A configuration that is not a JSON object.
    #[error("the model configuration is not a JSON object: {reason}")]
    Json {
        /// What the parser said.
        reason: String,
    },
    /// A key that is missing, or has a value of another type.
    #[error("model configuration: `{key}` is {found}, expected {expected}")]
    Key {
        /// The key.
        key: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
    /// A value that names something this crate does not do.
    #[error("model configuration: `{key}` is {found}, which is not supported; {hint}")]
    Unsupported {
        /// The key.
        key: String,
        /// What stands there.
        found: String,
        /// What can be done.
        hint: String,
    },
    /// Sizes that do not fit each other.
    #[error("model configuration: {what}")]
    Sizes {
        /// Which, with their values.
        what: String,
    },
    /// A parameter that a module needs and the table does not list.
    #[error("there is no parameter `{name}`; there are {known}")]
    NoParameter {
        /// The name.
        name: String,
        /// How many others there are, with an example.
        known: String,
    },
    /// Elements for a parameter that have another shape or dtype.
    #[error("parameter `{name}` is {expected} on this rank, got {found}")]
    Elements {
        /// The parameter.
        name: String,
        /// Shape and dtype of this rank's piece.
        expected: String,
        /// Shape and dtype given.
        found: String,
    },
    /// An adapter that cannot be, or cannot stand on the model.
    #[error("adapter: {what}")]
    Adapter {
        /// Why, with the value and one thing to do.
        what: String,
    },
    /// An argument outside what the function takes.
    #[error("{what}: {message}")]
    Argument {
        /// The function.
        what: &'static str,
        /// What is wrong, with the value.
        message: String,
    },
}
