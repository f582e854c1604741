//! Pickles as data: an interpreter that executes nothing.
//!
//! The machine runs the opcodes of protocols 0 to 5 and builds a tree of values. What Python would call or
//! instantiate becomes an [`Object`]: the name of the callable and its arguments. Long byte strings are not
//! read; the tree holds where they lie, so that tensors can be read in place. Every node costs at least one
//! byte of input, nothing recurses, and the number of nodes and the bytes of text are limited.

mod input;
mod json;
mod machine;
mod survey;
mod tree;

pub use machine::{Limits, read, read_at};
pub use tree::{Bytes, Id, Making, Node, Object, Span, Tree};

pub(crate) use json::VALUES;
