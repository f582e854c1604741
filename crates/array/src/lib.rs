//! Bytes in one memory: dtypes, storage, strided views, indexing and kernels.

mod float8;
mod minifloat;

pub use float8::{F8E4M3, F8E5M2};
