//! Reading parts of a source's tensors in bounded memory: what conversion, statistics and comparison stand on.

mod feed;
mod nest;

pub use feed::{Feed, row_strides};
