//! Bytes in one memory: dtypes, storage, strided views, indexing and kernels.
//!
//! An [`Array`] is a dtype, a shape and strides over shared storage. Views alias: a write through one is seen
//! through the others. Bad input gives an [`Error`] with the offending values; nothing panics on it.

mod alloc;
mod array;
mod boxes;
mod buffer;
mod bytes;
mod convert;
mod cpu;
mod cuda;
mod device;
mod dispatch;
mod display;
mod element;
mod error;
mod float8;
mod foreign;
mod index;
mod lend;
mod minifloat;
pub mod ops;
mod parts;
mod promote;
pub mod random;
mod replay;
pub mod selftest;
mod storage;
mod transfer;
mod tune;
mod view;

pub use alloc::{
    MemoryStats, allocated, memory_stats, release_cached, reset_peak, reset_thread_peak, set_cache_limit,
    thread_memory_stats,
};
pub use array::{Array, Strides};
pub use boxes::{Place, copy_box, stream_box};
pub use bytes::Bytes;
pub use cuda::{Build as KernelBuild, builds as kernel_builds, queue_outside};
pub use device::Device;
pub use element::{Bool, Element, Scalar};
pub use error::{Error, ErrorClass, Result};
pub use float8::{F8E4M3, F8E5M2};
pub use foreign::{Access, Exported, Foreign};
pub use half::{bf16, f16};
pub use index::Index;
pub use lend::Lent;
pub use parts::ArrayPart;
pub use planaria_cpu::{CpuPath, Threads};
pub use planaria_layout::{DType, DTypeKind, Shape};
pub use promote::promote;
pub use replay::Replay;
pub use transfer::{cuda_devices, device_memory_stats, prepare_snapshots, synchronize};
pub use tune::{Tuned, tune};
pub use view::{broadcast_shapes, slice_bounds};
