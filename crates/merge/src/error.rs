//! What can be wrong with a merge.

use std::fmt;
use thiserror::Error;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A merge that is refused, with the values that made it so.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A checkpoint could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] planaria_ckpt::Error),
    /// The storage failed.
    #[error(transparent)]
    Store(#[from] planaria_store::Error),
    /// An array refused an operation.
    #[error(transparent)]
    Array(#[from] planaria_array::Error),
    /// A shape or box that cannot be.
    #[error(transparent)]
    Layout(#[from] planaria_layout::Error),
    /// A recipe that says something impossible.
    #[error("line {line} of the recipe: {what}")]
    Recipe {
        /// Line, counted from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// A model that does not fit what is asked of it.
    #[error("{model}: {what}")]
    Model {
        /// The model as the recipe names it.
        model: String,
        /// What is wrong with it.
        what: String,
    },
    /// A tensor that cannot be merged.
    #[error("'{tensor}': {what}")]
    Tensor {
        /// Its name.
        tensor: String,
        /// What is wrong with it.
        what: String,
    },
    /// Something asked for that cannot be done.
    #[error("{what}")]
    Request {
        /// What, and why not.
        what: String,
    },
}

impl Error {
    pub(crate) fn recipe(line: usize, what: impl Into<String>) -> Error {
        Error::Recipe { line, what: what.into() }
    }

    pub(crate) fn model(model: impl fmt::Display, what: impl Into<String>) -> Error {
        Error::Model { model: model.to_string(), what: what.into() }
    }

    pub(crate) fn tensor(tensor: impl Into<String>, what: impl Into<String>) -> Error {
        Error::Tensor { tensor: tensor.into(), what: what.into() }
    }

    pub(crate) fn request(what: impl Into<String>) -> Error {
        Error::Request { what: what.into() }
    }

    /// The same at the line of the recipe that it comes from. What files say stays as it is.
    pub(crate) fn at_line(self, line: usize) -> Error {
        match self {
            Error::Model { .. } | Error::Tensor { .. } | Error::Request { .. } => {
                Error::recipe(line, self.to_string())
            }
            other => other,
        }
    }

    /// As an error of a checkpoint that was being written.
    pub(crate) fn while_writing(self, tensor: &str) -> planaria_ckpt::Error {
        match self {
            Error::Checkpoint(error) => error,
            Error::Tensor { tensor, what } => planaria_ckpt::Error::Values { tensor, what },
            other => planaria_ckpt::Error::Values { tensor: tensor.to_string(), what: other.to_string() },
        }
    }
}

/// The nearest of some names, as the end of a message: `; did you mean 'density'?`
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|other| (strsim::damerau_levenshtein(name, other), other));
    let best = near.min_by_key(|(distance, _)| *distance);
    match best.filter(|(distance, other)| *distance <= 1 + other.len() / 3) {
        Some((_, other)) => format!("; did you mean '{other}'?"),
        None => String::new(),
    }
}
