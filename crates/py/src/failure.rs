//! What checkpoints and communicators refuse, as exceptions with their attributes.

use planaria::ckpt::{Error as CkptError, Obstacle, Trouble};
use planaria::comm::Error as CommError;
use planaria::store::Error as StoreError;
use pyo3::prelude::*;

use crate::error::{Raise, exception, exception_with};

impl Raise for StoreError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            StoreError::NotFound { .. } => exception(py, "NotFoundError", text),
            StoreError::AlreadyExists { .. } => exception(py, "ExistsError", text),
            StoreError::BadUrl { ref reason, .. } if reason.contains("lacks the feature") => {
                let hint = "build the wheel with it, as in `maturin build --release --features s3`";
                exception(py, "ArgumentError", format!("{text}; {hint}"))
            }
            StoreError::BadUrl { .. } | StoreError::BadName { .. } => exception(py, "ArgumentError", text),
            StoreError::Checksum { name, start, end, .. } => damaged(py, text, "", &name, start, end),
            StoreError::Header { name, .. } | StoreError::OutOfFile { name, .. } => {
                damaged(py, text, "", &name, 0, 0)
            }
            _ => exception(py, "CheckpointError", text),
        }
    }
}

impl Raise for CommError {
    fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            CommError::Array(error) => error.raise(py),
            CommError::Argument { .. } => exception(py, "ArgumentError", self.to_string()),
            other => exception(py, "CommError", other.to_string()),
        }
    }
}

impl Raise for CkptError {
    fn raise(self, py: Python<'_>) -> PyErr {
        let text = self.to_string();
        match self {
            CkptError::Store(error) => error.raise(py),
            CkptError::Array(error) => error.raise(py),
            CkptError::Comm(error) => error.raise(py),
            CkptError::Layout(error) => error.raise(py),
            CkptError::UnknownFormat { found, .. } if found.ends_with("nothing") => {
                exception(py, "NotFoundError", text)
            }
            CkptError::NoTensor { .. } => exception(py, "NotFoundError", text),
            CkptError::Committed { .. } => exception(py, "ExistsError", text),
            CkptError::Occupied { why, .. } => exception(py, by_obstacle(&why), text),
            CkptError::NotCommitted { ref why, .. } if why == "there is nothing" => {
                exception(py, "NotFoundError", text)
            }
            CkptError::Damaged { tensor, file, start, end, .. }
            | CkptError::Member { tensor, file, start, end, .. } => {
                damaged(py, text, &tensor, &file, start, end)
            }
            CkptError::Malformed { file, .. } => damaged(py, text, "", &file, 0, 0),
            CkptError::Pickle { file, offset, .. } => damaged(py, text, "", &file, offset, offset),
            CkptError::Unmatched { missing, unexpected } => {
                exception_with(py, "MismatchError", text, |value| {
                    value.setattr("missing", missing)?;
                    value.setattr("unexpected", unexpected)
                })
            }
            CkptError::ShapeOf { tensor, found, expected } => {
                exception_with(py, "MismatchError", text, |value| {
                    let pair = (found.dims().to_vec(), expected.dims().to_vec());
                    value.setattr(
                        "shapes",
                        [(tensor, pair)].into_iter().collect::<std::collections::BTreeMap<_, _>>(),
                    )
                })
            }
            CkptError::DType { tensor, found, expected } => {
                exception_with(py, "MismatchError", text, |value| {
                    let pair = (found.name(), expected.name());
                    value.setattr(
                        "dtypes",
                        [(tensor, pair)].into_iter().collect::<std::collections::BTreeMap<_, _>>(),
                    )
                })
            }
            CkptError::Request { .. } | CkptError::Options { .. } | CkptError::Mapping(_) => {
                exception(py, "ArgumentError", text)
            }
            other => exception(py, by_trouble(other.trouble()), text),
        }
    }
}

fn by_obstacle(why: &Obstacle) -> &'static str {
    match why {
        Obstacle::Exists
        | Obstacle::More { .. }
        | Obstacle::NotEmpty
        | Obstacle::Claimed { .. }
        | Obstacle::Changed => "ExistsError",
        _ => "ArgumentError",
    }
}

fn by_trouble(trouble: Trouble) -> &'static str {
    match trouble {
        Trouble::Damage => "DamagedError",
        Trouble::Ranks => "CommError",
        _ => "CheckpointError",
    }
}

/// The first of several tensors that lie in a damaged block; the message names them all.
pub(crate) fn first_of(tensors: &str) -> &str {
    tensors.split("', '").next().unwrap_or(tensors)
}

fn damaged(py: Python<'_>, text: String, tensor: &str, file: &str, start: u64, stop: u64) -> PyErr {
    exception_with(py, "DamagedError", text, |value| {
        value.setattr("tensor", first_of(tensor))?;
        value.setattr("file", file)?;
        value.setattr("start", start)?;
        value.setattr("stop", stop)
    })
}
