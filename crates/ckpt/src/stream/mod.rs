//! Reading parts of a source's tensors in bounded memory: what conversion, statistics and comparison stand on.

mod feed;
mod nest;
mod verified;

pub(crate) use feed::named;
pub use feed::{Feed, row_strides};
