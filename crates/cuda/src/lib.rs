//! NVIDIA devices: contexts, lanes of streams, stream-ordered memory, kernels and launches.
//!
//! Nothing here knows arrays. The driver is opened at run time, so a binary built without CUDA runs anywhere and
//! says in one sentence why a device cannot be had. Device memory is named by addresses, which are plain numbers:
//! a wrong one is an error of the device, never of the host.

mod archive;
mod arena;
mod blas;
mod block;
mod context;
mod driver;
mod error;
mod graph;
mod lane;
mod late;
mod launch;
mod nccl;
mod nvrtc;
mod pinned;
mod program;
mod settings;
mod staging;
mod stream;
mod times;

pub use archive::{Archive, ArchiveWriter};
pub use blas::{Matrix, Product, ProductType, Tuned, tune, tuned_line};
pub use block::{Access, Block};
pub use context::{Context, DeviceInfo, MemoryStats, device_count, driver_version};
pub use error::{Error, Result};
pub use graph::Graph;
pub use lane::{Lane, Side};
pub use late::{BadValue, LateNote, Slot};
pub use launch::{Arg, Launch, TensorMap};
pub use nccl::{Communicator, GoOn, Move, UNIQUE, nccl_name, nccl_version};
pub use nvrtc::{Compiled, Compiler};
pub use pinned::{InFlight, Pinned};
pub use program::{Kernel, Key, Program};
pub use stream::{Event, Stream};
