//! Kernels on host slices. Nothing above this module sees host memory.

pub(crate) mod copy;
pub(crate) mod math;
pub(crate) mod real;
pub(crate) mod reduce;
pub(crate) mod simd;
pub(crate) mod strided;
