//! Bytes in one memory: dtypes, storage, strided views, indexing and kernels.

pub mod cpu;
