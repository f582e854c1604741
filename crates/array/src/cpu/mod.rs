//! Kernels on host slices. Nothing above this module sees host memory.

pub(crate) mod copy;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod gather;
pub(crate) mod gather_prefetch;
pub(crate) mod gather_rule;
pub(crate) mod index;
pub(crate) mod index_sum;
pub(crate) mod map;
pub(crate) mod mask;
pub(crate) mod mask_compress;
pub(crate) mod math;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod optim;
pub(crate) mod real;
pub(crate) mod reduce;
pub(crate) mod rotary;
pub(crate) mod scan;
pub(crate) mod simd;
pub(crate) mod softmax;
pub(crate) mod sort;
pub(crate) mod strided;
pub(crate) mod swiglu;
pub(crate) mod trunc;
