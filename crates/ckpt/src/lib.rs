//! Checkpoints. So far: reading what others wrote.
//!
//! [`formats::open`] looks at a folder or file, finds out who wrote it, checks that it is complete, and answers
//! with a [`formats::Source`]: where the bytes of every tensor lie. Nothing in such a file is executed.

#![forbid(unsafe_code)]

pub mod convert;
mod error;
pub mod examine;
pub mod formats;
pub mod stream;

pub use error::{Error, Result};
