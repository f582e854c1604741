//! CPU kernels on slices with explicit strides, below the array type.

pub mod matmul;
pub mod simd;
