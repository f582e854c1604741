//! Kernels on host slices. Nothing above this module sees host memory.

pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod map;
pub(crate) mod math;
pub(crate) mod matmul;
pub(crate) mod real;
pub(crate) mod simd;
pub(crate) mod strided;
pub(crate) mod trunc;
