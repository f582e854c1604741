//! The processor, as kernels need it: which instructions it has, how large its caches are, threads to share work out
//! to, and matrix products on strided slices.
//!
//! Products are compiled here once, for every element type and instruction set; the crates above only call them.

mod error;
mod level;
mod machine;
pub mod matmul;
pub mod pool;
mod prefetch;
#[cfg(target_arch = "x86_64")]
pub mod registers;

pub use error::{Error, Result};
pub use level::{Level, level};
pub use machine::{Caches, CpuPath, caches};
pub use pool::Threads;
pub use prefetch::{claim, prefetch, prefetch_at};
