//! All integration tests of the package, in one program: it links once.

mod attention;
mod big;
mod create;
mod elementwise;
mod matmul;
mod parts;
mod rearrange;
mod reduce;
mod reduce_grad;
mod scan_sort;
mod training;
