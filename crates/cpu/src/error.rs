//! What is wrong with a setting of the processor.

use thiserror::Error;

/// A setting that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{setting}: {what}")]
pub struct Error {
    /// Its name.
    pub setting: &'static str,
    /// Why, with the value and what to give instead.
    pub what: String,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
